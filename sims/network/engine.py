"""The network engine: all peers of one method and seed as whole nodes, in virtual time, over simulated links.

It is asked the same things as the vector engine: to go on by a round, to evaluate, for parameters, weights and
disagreement. What it measures is what the nodes say of themselves, and what went over the links.

A run is its seed, so a checkpoint is a number: going on from it means playing the same rounds again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedpeer.config.choice import Choice
from fedpeer.config.methods import method_of
from fedpeer.peer.state.events import Effect, Evaluate, Evaluated, Note, Stop
from fedpeer.sims.network.faults import Faults, over
from fedpeer.sims.network.node_factory import NodeFactory
from fedpeer.sims.network.simulator import Simulator
from fedpeer.sims.network.timeline import Timeline
from fedpeer.sims.vector.engine import RoundTimes
from fedpeer.sims.vector.pool import EngineError, Stopped
from fedpeer.sims.world import World
from fedpeer.slicing.plan import Plan

T = TypeVar("T")

#: The name of what it tells of each peer.
SECONDS = "virtual seconds"
#: Ticks in which a peer that is there has evaluated itself.
_EVALUATION_TICKS = 200.0
#: Ticks between two looks at whether somebody asked to stop.
_STOP_TICKS = 40.0
#: Virtual seconds for which a peer that nobody answers waits at most.
ALONE_S = 600.0
#: Deadlines of an exchange in which some peer gets further, whatever happens to others: a peer waits for one at most in
#: each exchange, and starts anew after a crash.
DEADLINES_MAX = 3


@dataclass
class _Seen:
    """What one peer's node said of itself, by round."""

    done: int = 0
    weights: dict[int, Mapping[str, float]] = field(default_factory=dict)
    models: dict[int, Tensor] = field(default_factory=dict)
    moments: dict[int, float] = field(default_factory=dict)
    results: dict[int, tuple[float, float]] = field(default_factory=dict)
    servers: dict[int, tuple[float, float]] = field(default_factory=dict)


class NetworkEngine:
    """All peers of one method and seed."""

    def __init__(
        self,
        world: World,
        plan: Plan,
        method: Choice,
        *,
        faults: Faults | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        world = _impatient(world)
        self._world, self._plan = world, plan
        self._stop = stop or threading.Event()
        node_factory = NodeFactory.of(world, method, dict(faults.paces) if faults else {})
        self._simulator = Simulator(world.peers, node_factory.driver(self._evaluated), faults)
        self._simulator.said = self._said
        self._seen = {peer: _Seen() for peer in world.peers}
        self.timeline = Timeline(world.federation.gossip.tick, faults or Faults())
        self._patience, self._over = self._limit(node_factory), over(faults or Faults())
        # Under `weights: samples` a node counts in examples; what is compared over runs counts in the mean of all. An
        # algorithm may have units of its own in each group and round: then the mean is of those who are there.
        by_examples = world.federation.learning.weights == "samples"
        self._unit = np.mean([each.examples for each in node_factory.trainers.values()]) if by_examples else 1.0
        self._liars = frozenset(each.peer for each in (faults or Faults()).liars)
        self._own_units = method_of(method).own_weights
        self._counted = self._simulator.counted()
        self.traffic = ([0] * len(world.peers), [0] * len(world.peers))
        self.weights = {group.id: np.ones(len(group.members)) for group in plan.groups}
        self.round = 0

    def __enter__(self) -> Self:
        self._simulator.start()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def x_Pn(self) -> Tensor:
        """The parameters of all peers at the end of the last evaluated round."""
        return torch.stack([_latest(seen.models, self.round) for seen in self._seen.values()])

    def step(self) -> RoundTimes:
        """Let everything happen until every peer has finished the next round; one that lies may stay behind, since
        others cease to listen to it, and has its last numbers then.

        Raises:
            Stopped: if asked to stop meanwhile.
            EngineError: if no peer gets any further.
        """
        began = time.perf_counter()
        self.round += 1
        self._go_on(lambda: all(seen.done >= self._due(peer) for peer, seen in self._seen.items()))
        for group in self._plan.groups:
            weights = [_latest(self._seen[peer].weights, self.round)[group.id] for peer in group.members]
            self.weights[group.id] = np.array(weights) / (np.mean(weights) if self._own_units else self._unit)
        counted = self._simulator.counted()
        self.traffic = (counted[0] - self._counted[0]).tolist(), (counted[1] - self._counted[1]).tolist()
        self._counted = counted
        return RoundTimes(0.0, time.perf_counter() - began)

    def evaluate(self, *, validation: bool = False) -> list[tuple[float, float]]:
        """(score, loss) of each peer on its own test part, as its node evaluated itself after this round; or before it,
        if it was killed just then or skipped this one; or, if it was never evaluated yet, the next time.

        Raises:
            EngineError: nobody gets any further, or a peer lied before it was evaluated once.
        """
        within = self._simulator.now + _EVALUATION_TICKS
        honest = [seen for peer, seen in self._seen.items() if peer not in self._liars]
        self._simulator.run(within, lambda: all(max(seen.results, default=0) >= self.round for seen in honest))
        self._go_on(lambda: all(seen.results for seen in honest))
        if early := [peer for peer in self._liars if not self._seen[peer].results]:
            raise EngineError(f"{early[0]} lies before its first evaluation: let it begin later (liar:...,at=SECONDS)")
        return [_latest(seen.results, self.round) for seen in self._seen.values()]

    def evaluate_server(self, *, validation: bool = False) -> list[tuple[float, float]] | None:
        """The same of the server's model, as each peer holds it; None where there is none."""
        if not all(seen.servers for seen in self._seen.values()):
            return None
        return [_latest(seen.servers, self.round) for seen in self._seen.values()]

    def statistics(self) -> dict[str, list[float]]:
        """When each peer had finished this round, in virtual seconds after the start: where nobody waits, apart."""
        return {SECONDS: [_latest(seen.moments, self.round) for seen in self._seen.values()]}

    @property
    def relations_PP(self) -> None:
        """Peers are equals."""

    def disagreement(self) -> dict[str, float]:
        """Of each group: the largest distance of a member from the members' mean, relative to the mean's norm."""
        x_Pn, found = self.x_Pn.double(), {}
        rows = {peer: row for row, peer in enumerate(self._world.peers)}
        for group in self._plan.groups:
            # Of several averaged vectors, the first: a node shows its model.
            places = [group.indices[p][: group.length // self._plan.vectors] for p in group.members]
            each = zip(group.members, places, strict=True)
            values_MD = torch.stack([x_Pn[rows[p]][torch.from_numpy(index_D)] for p, index_D in each])
            mean_D = values_MD.mean(0)
            found[group.id] = float((values_MD - mean_D).norm(dim=1).max() / mean_D.norm().clamp(min=1e-30))
        return found

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What `restore` needs: the number of the round."""
        return {}, {"round": self.round}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Play again what was played before, to the very numbers."""
        while self.round < state["round"]:
            self.step()

    def _go_on(self, done: Callable[[], bool]) -> None:
        before, until = self._progress(), max(self._simulator.now, self._over) + self._patience
        while True:
            if self._stop.is_set():
                raise Stopped
            if self._simulator.run(min(until, self._simulator.now + _STOP_TICKS), done):
                return
            if self._progress() != before:
                before, until = self._progress(), self._simulator.now + self._patience
            elif self._simulator.now >= until:
                behind = ", ".join(peer for peer, seen in self._seen.items() if seen.done < self._due(peer))
                raise EngineError(f"in {self._patience:.0f} ticks nobody got further; waiting for {behind}")

    def _due(self, peer: str) -> int:
        """The round that a peer has to have finished by now."""
        return min(1, self.round) if peer in self._liars else self.round

    def _progress(self) -> int:
        return sum(seen.done for seen in self._seen.values())

    def _limit(self, node_factory: NodeFactory) -> float:
        """Ticks in which some peer finishes a round, if any ever will."""
        gossip = self._world.federation.gossip
        exchanges = max((each.exchanges for each in node_factory.averaging()), default=0)
        alone = self._world.federation.learning.alone_limit or 0.0
        waiting = alone + gossip.gather + DEADLINES_MAX * gossip.deadline * (1 + exchanges)
        return waiting / gossip.tick + DEADLINES_MAX * node_factory.longest_ticks()

    def _said(self, peer: str, effect: Effect) -> None:
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
        seen.results[event.round] = event.score, event.loss
        if event.server is not None:
            seen.servers[event.round] = event.server


def _impatient(world: World) -> World:
    """Return the world in which a peer alone goes on by itself after `ALONE_S` at most: others that have ended do not
    come back here, and nobody looks at a banner."""
    learning = world.federation.learning
    limit = ALONE_S if learning.alone_limit is None else min(learning.alone_limit, ALONE_S)
    learning = learning.model_copy(update={"alone_limit": limit})
    return replace(world, federation=world.federation.model_copy(update={"learning": learning}))


def _latest(by_round: dict[int, T], round: int) -> T:
    """What was said in this round, or last before it, and of who came in later, first; what is older is forgotten."""
    last = max((each for each in by_round if each <= round), default=min(by_round))
    for old in [each for each in by_round if each < last]:
        del by_round[old]
    return by_round[last]
