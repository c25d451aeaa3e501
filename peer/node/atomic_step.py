"""A message is taken whole or not at all, also where our own program fails on it.

A step that raises may have changed half of what it was about to change, in the durable state and beside it. So nothing
of it stays: the durable state is put back to the copy that was taken before the step, the effects of the step are
dropped (nothing of them was saved or said), and a new node is made on that durable state, as if this process had been
killed before the message came and had been started again. That needs no proof of its own: only the durable state must
survive, and a peer that is killed at any moment goes on exactly (`docs/reliability.md`, P3). It costs what a restart
costs:
others are greeted anew, and training under way is done again. Who sent the message pays as for any that is refused, and
standing is carried over, so that nobody makes us start again and again.

A mistake of ours elsewhere (time passes, training is done) has no sender who could be refused, and would come again in
the next step: it is raised, and whoever runs the node ends it.
"""

from __future__ import annotations

from collections.abc import Callable

from fedpeer.peer.node.node import Node
from fedpeer.peer.state.events import Effect, Event, MessageReceived, OperatorCommand, Tick


class Steps:
    """Steps of one peer. `node` is the one that lives now.

    failed   told of each exception that a message met, and whose message it was
    """

    def __init__(self, node: Node, failed: Callable[[Exception, str], None]) -> None:
        self.node, self._failed = node, failed

    def step(self, event: Event) -> list[Effect]:
        """What follows from an event."""
        if not isinstance(event, MessageReceived):
            return self.node.step(event)
        before = self.node.moment()
        try:
            return self.node.step(event)
        except Exception as error:
            self._failed(error, event.sender)
        now, reputations, leaving = (
            self.node.state.now,
            self.node.state.others.reputations,
            self.node.phase == "leaving",
        )
        self.node = self.node.again(before)
        self.node.state.others.reputations |= reputations
        effects = self.node.step(Tick(now))
        if leaving:
            effects += self.node.step(OperatorCommand("leave"))
        self.node.state.refuse("internal_error", event.sender)
        return effects + self.node.told()
