"""One peer's client under an algorithm with a server: it trains in rounds, and settles rounds that are over.

A peer that holds the server's model after round r opens round r + 1 by itself. A round is over for a client when its
state is settled: its update counted or did not, which the model itself states. Missed rounds are not repeated: a peer
that was away settles the newest round and goes on.
"""

from __future__ import annotations

from torch import Tensor

from fedpeer.peer.consensus.round_consensus import RoundConsensus
from fedpeer.peer.node.amending import goes_over
from fedpeer.peer.state.entries import Began, ClientStateSaved, UpdateMade
from fedpeer.peer.state.events import ClientTrained, FinishRound, RoundFinished, TrainClient
from fedpeer.peer.state.node_state import NodeState


class RoundClient:
    """One peer's client in coordinated rounds."""

    def __init__(self, state: NodeState, consensus: RoundConsensus) -> None:
        self.state, self.consensus = state, consensus
        self._job: TrainClient | FinishRound | None = None  # under way
        self._trains_since = 0

    @property
    def working(self) -> bool:
        """True while it trains or settles a round."""
        return self._job is not None

    def models(self) -> tuple[Tensor, Tensor | None]:
        """Return the models (n,) of this client and of the server after the client's last round.

        The server's is None if it has none, or has gone on.
        """
        consensus, state = self.consensus, self.state
        newer = consensus.consensus_state.settled < consensus.applied
        server_n = None if newer else state.setup.reader.server_model(consensus.in_force.server)
        return state.durable.x_n, server_n

    def begin(self) -> None:
        """Begin this peer's first round; after a start from its disk, the next one."""
        self.state.write(Began(round=self.consensus.consensus_state.settled + 1))

    def go_on(self) -> None:
        """Settle a round that is over, or train in the one under way."""
        consensus, consensus_state = self.consensus, self.consensus.consensus_state
        if self.working or goes_over(self.state):
            return
        if consensus_state.settled < consensus.applied and not consensus.update_waits:
            self._settle()
        elif consensus_state.pending is None and not consensus.over and consensus.trains:
            self._trains_since = self.state.now
            self._begin_job(
                TrainClient(consensus.applied + 1, consensus_state.client, consensus.in_force.server, consensus.clients)
            )

    def trained(self, done: ClientTrained) -> None:
        """Store the update of a training, and offer it."""
        if not self._ends_job(TrainClient, done.round):
            return
        # Kept, the state of a training that diverged would be there in each later one, whatever the learning rate is.
        client = done.client if done.fault is None else self.consensus.consensus_state.client
        self.state.write(UpdateMade(group=self.consensus.group, round=done.round, update=done.update, client=client))
        self.consensus.offers(done.digest, done.fault)
        ticks = self.state.now - self._trains_since
        self.state.note("debug", "trained", f"round {done.round} is trained", round=done.round, ticks=ticks)

    def settled(self, done: RoundFinished) -> None:
        """Store the client's state after a round, and begin the next."""
        state, learning = self.state, self.state.setup.federation.learning
        if not self._ends_job(FinishRound, done.round):
            return
        state.write(ClientStateSaved(group=self.consensus.group, round=done.round, client=done.client, x_n=done.x_n))
        state.write(Began(round=done.round + 1))
        nothing: dict[str, float] = {}
        text = f"round {done.round} is done"
        state.note("debug", "round", text, round=done.round, weights=nothing, disagreement=nothing)
        if learning.evaluated(done.round):
            state.evaluate(done.round, done.x_n, done.server_n)
        state.snapshot_if_due()
        if done.round >= learning.rounds and state.phase == "learning":  # it may be leaving by now
            state.enter("finished")
            state.note("info", "finished", f"all {learning.rounds} rounds are done")
            state.snapshot()
        else:
            state.advertise()

    def _settle(self) -> None:
        consensus_state, (counted, server) = self.consensus.consensus_state, self.consensus.in_force
        pending = consensus_state.pending
        trained = None if pending is None else pending.client
        in_it = pending is not None and counted.get(self.state.me, 0) == pending.round
        self._begin_job(FinishRound(self.consensus.applied, consensus_state.client, trained, server, in_it))

    def _begin_job(self, job: TrainClient | FinishRound) -> None:
        self._job = job
        self.state.effects.append(job)

    def _ends_job(self, kind: type[TrainClient | FinishRound], round: int) -> bool:
        """End the job under way if this is its result; return whether it is.

        After a failed step (`atomic_step.py`) a job is requested again while the first one is under way, and both end.
        """
        if not isinstance(self._job, kind) or self._job.round != round:
            return False
        self._job = None
        return True
