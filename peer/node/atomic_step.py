"""Atomic steps: a message takes effect whole or not at all, also if our own program fails on it.

A step that raises may have changed half of what it was about to change, in the durable state and beside it. So nothing
of it stays: the durable state is put back to the copy from before the step, the effects of the step are dropped (none
was saved or sent), and a new node is made on that durable state, as if this process had been killed before the message
arrived and had been started again. That needs no proof of its own: only the durable state must survive, and a peer that
is killed at any moment goes on exactly (`docs/reliability.md`, P3). It costs what a restart costs: peers are greeted
anew, and training under way is done again. The sender is charged as for any rejected message, and reputations are
carried over, so that nobody can make us start again and again.

A failure on another event (a tick, a training result) has no sender to charge, and would come again in the next step:
it is raised, and the driver of the node ends it.
"""

from __future__ import annotations

from collections.abc import Callable

from fedpeer.peer.node.node import Node
from fedpeer.peer.state.events import Effect, Event, MessageReceived, OperatorCommand, Tick


class Steps:
    """Steps of one peer.

    node     the current node; a failed step replaces it
    failed   called with each exception that a message caused, and the message's sender
    """

    def __init__(self, node: Node, failed: Callable[[Exception, str], None]) -> None:
        self.node, self._failed = node, failed

    def step(self, event: Event) -> list[Effect]:
        """Return the effects of an event."""
        if not isinstance(event, MessageReceived):
            return self.node.step(event)
        before = self.node.restore_point()
        try:
            return self.node.step(event)
        except Exception as error:
            self._failed(error, event.sender)
        failed, leaving = self.node.state, self.node.phase == "leaving"
        self.node = self.node.again(before)
        self.node.state.others.reputations |= failed.others.reputations
        effects = self.node.step(Tick(failed.now))
        if leaving:
            effects += self.node.step(OperatorCommand("leave"))
        self.node.state.refuse("internal_error", event.sender)
        return effects + self.node.take_effects()
