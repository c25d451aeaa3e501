"""The network engine: all peers of one method and seed as whole nodes, in virtual time, over simulated links.

It has the interface of the vector engine: run a round, evaluate, return parameters, weights and disagreement. It
records the nodes' reports about themselves, and the traffic on the links.

A run follows from its seed, so a checkpoint is the number of a round: resuming means running the same rounds again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from torch import Tensor

from fedpeer.config.choice import Choice
from fedpeer.learning.groups import longest_deadline
from fedpeer.peer.state.events import Effect, Evaluate, Evaluated, Note, Stop
from fedpeer.sims.disagreement import disagreement_of
from fedpeer.sims.engine import RoundTimes
from fedpeer.sims.network.faults import Faults, over
from fedpeer.sims.network.node_factory import NodeFactory
from fedpeer.sims.network.simulator import Simulator
from fedpeer.sims.network.timeline import Timeline
from fedpeer.sims.peers_engine import DEADLINES_MAX, PeersEngine, stacked
from fedpeer.sims.vector.pool import EngineError, Stopped
from fedpeer.sims.world import World

T = TypeVar("T")

#: Name of the statistic of this engine.
SECONDS = "virtual seconds"
#: Ticks after which a running peer has evaluated itself.
_EVALUATION_TICKS = 200.0
#: Ticks between two checks for a stop.
_STOP_TICKS = 40.0
#: (score, loss) of a peer on the examples that it holds out if there are none.
_NOTHING_HELD_OUT = (math.nan, math.nan)
#: Longest wait, in virtual seconds, of a peer that nobody answers.
ALONE_S = 600.0


@dataclass
class _Seen:
    """The reports of one peer's node, by round."""

    done: int = 0
    weights: dict[int, Mapping[str, float]] = field(default_factory=dict)
    models: dict[int, Tensor] = field(default_factory=dict)
    moments: dict[int, float] = field(default_factory=dict)
    evaluated: dict[int, Evaluated] = field(default_factory=dict)
    served: dict[int, Evaluated] = field(default_factory=dict)


class NetworkEngine(PeersEngine):
    """All peers of one method and seed."""

    def __init__(
        self,
        world: World,
        method: Choice,
        *,
        faults: Faults | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        world = _impatient(world)
        super().__init__(world, method, stop)
        node_factory = NodeFactory.of(world, method, dict(faults.paces) if faults else {})
        self._simulator = Simulator(world.peers, node_factory.driver(self._evaluated), faults, keeps_rows=False)
        self._simulator.on_effect = self._on_effect
        self._seen = {peer: _Seen() for peer in world.peers}
        self.timeline = Timeline(world.federation.gossip.tick, faults or Faults())
        self._patience, self._over = self._limit(node_factory), over(faults or Faults())
        self._liars = frozenset(each.peer for each in (faults or Faults()).liars)
        self._counted = self._simulator.counted()
        self._evaluated_round = 0

    def __enter__(self) -> Self:
        self._simulator.start()
        return self

    @property
    def x_Pn(self) -> Tensor:
        """Parameters of all peers at the end of the last evaluated round."""
        return stacked([_latest(seen.models, self.round) for seen in self._seen.values()])

    def step(self) -> RoundTimes:
        """Run until every peer has finished the next round.

        A liar may fall behind, since others stop listening to it; its latest numbers are used then.

        Raises:
            Stopped: the run was asked to stop.
            EngineError: no peer makes progress.
        """
        began, number = time.perf_counter(), self.round + 1
        self._go_on(lambda: (peer for peer, seen in self._seen.items() if seen.done < self._due(peer, number)))
        self.round = number
        counted = self._simulator.counted()
        sent = (counted[0] - self._counted[0]).tolist(), (counted[1] - self._counted[1]).tolist()
        self._report(lambda peer, group: _latest(self._seen[peer].weights, self.round)[group], sent)
        self._counted = counted
        return RoundTimes(0.0, time.perf_counter() - began)

    def evaluate(self, *, validation: bool = False) -> list[tuple[float, float]]:
        """Return (score, loss) of each peer on its own test or validation part, as its node found after this round.

        If the peer was killed just then or skipped the round, its results are from an earlier round; if it was never
        evaluated before, from its next evaluation.

        Raises:
            EngineError: no peer makes progress, or a peer lied before its first evaluation.
        """
        within = self._simulator.now + _EVALUATION_TICKS
        honest = {peer: seen for peer, seen in self._seen.items() if peer not in self._liars}
        self._simulator.run(
            within, lambda: all(max(seen.evaluated, default=0) >= self.round for seen in honest.values())
        )
        self._go_on(lambda: (peer for peer, seen in honest.items() if not seen.evaluated))
        if early := [peer for peer in self._liars if not self._seen[peer].evaluated]:
            raise EngineError(f"{early[0]} lies before its first evaluation; let it start later (liar:...,at=SECONDS)")
        self._evaluated_round = self.round
        latest = [_latest(seen.evaluated, self.round) for seen in self._seen.values()]
        if validation:
            return [each.validation or _NOTHING_HELD_OUT for each in latest]
        return [(each.score, each.loss) for each in latest]

    def evaluate_server(self, *, validation: bool = False) -> list[tuple[float, float]] | None:
        """Return (score, loss) of each peer's copy of the server's model; None without a server."""
        if not all(seen.served for seen in self._seen.values()):
            return None
        latest = [_latest(seen.served, self.round) for seen in self._seen.values()]
        found = [each.server_validation if validation else each.server for each in latest]
        return [each or _NOTHING_HELD_OUT for each in found]

    def statistics(self) -> dict[str, list[float]]:
        """Return when each peer finished this round, in virtual seconds after the start.

        The times differ much if peers do not wait for one another.
        """
        return {SECONDS: [_latest(seen.moments, self.round) for seen in self._seen.values()]}

    def disagreement(self) -> dict[str, float]:
        """Return each group's largest distance of a member from the members' mean, relative to the mean's norm."""
        return disagreement_of(self._plan, self._world.peers, self.x_Pn)

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the input of `restore`: the number of the round, and whether it has been evaluated."""
        return {}, {"round": self.round, "evaluated": self._evaluated_round == self.round}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Repeat the rounds before the snapshot, with exactly the same numbers.

        Evaluations are repeated, too: one that waits for a peer may last until the next round is over.
        """
        learning, last = self._world.federation.learning, state["round"]
        while self.round < last:
            self.step()
            if learning.evaluated(self.round) and (self.round < last or state.get("evaluated")):
                self.evaluate()

    def _go_on(self, awaited: Callable[[], Iterator[str]]) -> None:
        """Run until no peer is awaited any more."""

        def done() -> bool:
            return next(awaited(), None) is None

        def limit() -> float:
            return max(self._simulator.now, self._over) + self._patience

        before, until = self._progress(), limit()
        while True:
            if self._stop.is_set():
                raise Stopped
            if self._simulator.run(min(until, self._simulator.now + _STOP_TICKS), done):
                return
            if self._progress() != before:
                before, until = self._progress(), limit()
            elif self._simulator.now >= until:
                raise EngineError(
                    f"no peer made progress in {self._patience:.0f} ticks; waiting for {', '.join(awaited())}"
                )

    def _due(self, peer: str, round: int) -> int:
        """Return the round that a peer must have finished when this round is over."""
        return min(1, round) if peer in self._liars else round

    def _progress(self) -> int:
        return sum(seen.done for seen in self._seen.values())

    def _limit(self, node_factory: NodeFactory) -> float:
        """Return the ticks within which some peer finishes a round, unless all are stuck."""
        gossip = self._world.federation.gossip
        exchanges = max((each.exchanges for each in node_factory.averaging()), default=0)
        alone = self._world.federation.learning.alone_limit or 0.0
        waiting = alone + gossip.gather + DEADLINES_MAX * longest_deadline(self._world.federation) * (1 + exchanges)
        return waiting / gossip.tick + DEADLINES_MAX * node_factory.longest_ticks()

    def _on_effect(self, peer: str, effect: Effect) -> None:
        match effect:
            case Note(what="round", fields={"round": int(round), "weights": Mapping() as weights}):
                seen = self._seen[peer]
                seen.done = max(seen.done, round)
                seen.weights[round] = weights
                self.timeline.finished(peer, self._simulator.now, round, weights)
                seen.moments[round] = self._simulator.now * self._world.federation.gossip.tick
            case Evaluate(round=round, x_n=x_n):
                self._seen[peer].models[round] = x_n
            case Stop(code=code, text=text) if code:
                raise EngineError(f"{peer} stopped: {text}")

    def _evaluated(self, peer: str, event: Evaluated) -> None:
        seen = self._seen[peer]
        seen.evaluated[event.round] = event
        if event.server is not None:
            seen.served[event.round] = event


def _impatient(world: World) -> World:
    """Return the world with a peer's wait alone limited to `ALONE_S`.

    Here peers that have stopped do not come back, and nobody watches the dashboard of a waiting peer.
    """
    learning = world.federation.learning
    limit = ALONE_S if learning.alone_limit is None else min(learning.alone_limit, ALONE_S)
    learning = learning.model_copy(update={"alone_limit": limit})
    return replace(world, federation=world.federation.model_copy(update={"learning": learning}))


def _latest(by_round: dict[int, T], round: int) -> T:
    """Return the report of this round, or else the last one before it, or else the first one; delete older ones."""
    last = max((each for each in by_round if each <= round), default=min(by_round))
    for old in [each for each in by_round if each < last]:
        del by_round[old]
    return by_round[last]
