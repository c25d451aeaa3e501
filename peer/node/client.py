"""One peer's client under an algorithm with a server: it trains in rounds, and settles those that are over.

Whoever holds the server after round r opens round r + 1 alone. A round is over for a client when its state is settled:
its update was part of the server, or was not, which the model says itself. What was missed is not played again: who
was away settles the newest round and goes on.
"""

from __future__ import annotations

from fedpeer.peer.consensus.round_consensus import RoundConsensus
from fedpeer.peer.node.amending import goes_over
from fedpeer.peer.state.entries import Began, ClientStateSaved, UpdateMade
from fedpeer.peer.state.events import ClientTrained, Evaluate, FinishRound, RoundFinished, TrainClient
from fedpeer.peer.state.node_state import NodeState


class RoundClient:
    """See the top of this file."""

    def __init__(self, life: NodeState, council: RoundConsensus) -> None:
        self.life, self.council = life, council
        self._working = False  # a Practise or a Settle is out
        self._trains_since = 0

    @property
    def working(self) -> bool:
        """Whether it trains, or settles a round."""
        return self._working

    def begin(self) -> None:
        """The first round of this peer; or the next, after a start from its disk."""
        self.life.write(Began(round=self.council.chamber.settled + 1))

    def go_on(self) -> None:
        """Settle what is over, and train."""
        council, chamber = self.council, self.council.chamber
        if self._working or goes_over(self.life):
            return
        if chamber.settled < council.applied:
            self._settle()
        elif chamber.study is None and not council.over and council.trains:
            self._working, self._trains_since = True, self.life.now
            self.life.effects.append(
                TrainClient(council.applied + 1, chamber.client, council.in_force()[1], council.clients)
            )

    def practised(self, done: ClientTrained) -> None:
        """The training of a round is over; perhaps the round is too."""
        self._working = False
        self.life.write(UpdateMade(group=self.council.group, round=done.round, update=done.update, client=done.client))
        self.council.offers(done.digest, done.fault)
        ticks = self.life.now - self._trains_since
        self.life.note("debug", "trained", f"round {done.round} is trained", round=done.round, ticks=ticks)

    def settled(self, done: RoundFinished) -> None:
        """The client's state after a round is known."""
        life, learning = self.life, self.life.setup.federation.learning
        self._working = False
        life.write(ClientStateSaved(group=self.council.group, round=done.round, client=done.client, x_n=done.x_n))
        life.write(Began(round=done.round + 1))
        nothing: dict[str, float] = {}
        text = f"round {done.round} is done"
        life.note("debug", "round", text, round=done.round, weights=nothing, disagreement=nothing)
        if learning.evaluated(done.round):
            life.effects.append(Evaluate(done.round, done.x_n, done.server_n))
        life.snapshot_if_due()
        if done.round >= learning.rounds:
            life.enter("finished")
            life.note("info", "finished", f"all {learning.rounds} rounds are done")
            life.snapshot()
        else:
            life.advertise()

    def _settle(self) -> None:
        self._working = True
        chamber, (counted, server) = self.council.chamber, self.council.in_force()
        study = chamber.study
        trained = None if study is None else study.client
        in_it = study is not None and counted.get(self.life.me, 0) == study.round
        self.life.effects.append(FinishRound(self.council.applied, chamber.client, trained, server, in_it))
