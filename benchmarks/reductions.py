"""`python -m benchmarks.reductions [--quick]`: bytes and accuracy of each form of the wire after the same rounds.

The default simulation (16 peers on digits, default slices, push-sum to the default tolerance) on the vector engine,
but for the averaging: there every share travels over a lane in memory, packed, restored and acknowledged as between
real peers. Bytes are those of payloads; a message's head is the same for all forms and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch

from fedpeer.algorithms.draws import Draws
from fedpeer.gossip.averaging import Averaging, turn
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.push_sum import absorb
from fedpeer.gossip.reductions import Form, bfloat16, float32, float64, int8, top_k, zstd
from fedpeer.gossip.transfers import Incoming, Outgoing, acknowledged, give, take
from fedpeer.peer.core.choice import parse
from fedpeer.peer.core.federation import Federation
from fedpeer.sims.memory import job_of, start_of, workspace_of
from fedpeer.sims.prepare import averaging_of
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.vector.tasks import Mix, Task
from fedpeer.sims.world import World, build, load_dataset, method_of, plan_of
from fedpeer.slicing.plan import Group

SEEDS = (0, 1, 2)

#: Fewer bytes than float32 by at least this factor, at no more than so many points of accuracy.
TARGET_FACTOR, TARGET_POINTS = 4.0, 0.5

FORMS: dict[str, Callable[[], Form]] = {
    "float64": float64,
    "float32": float32,
    "float32/zstd": lambda: zstd()(float32()),
    "bfloat16": bfloat16,
    "int8": int8,
    "int8/zstd": lambda: zstd()(int8()),
    "top-k:0.1": lambda: top_k(share=0.1),
    "top-k:0.1/zstd": lambda: zstd()(top_k(share=0.1)),
    "top-k:0.01": lambda: top_k(share=0.01),
}


@dataclass
class Town:
    """One group's peers with their masses and lanes."""

    group: Group
    policy: Averaging
    form: Form
    draws: Draws
    held: dict[str, Mass] = field(default_factory=dict)
    out: dict[tuple[str, str], Outgoing] = field(default_factory=dict)
    into: dict[tuple[str, str], Incoming] = field(default_factory=dict)
    bytes: int = 0

    def average(self, round: int) -> None:
        for exchange in range(self.policy.exchanges):
            turns = {peer: turn(self.policy, peer, round, exchange) for peer in self.group.members}
            sent = {}
            for peer, plan in turns.items():
                lanes = {to: self.out.get((peer, to), Outgoing()) for to in plan.to}
                draws = self.draws.numpy(f"wire {self.group.id} {exchange}", peer, round)
                self.held[peer], lanes, parcels = give(
                    self.held[peer], lanes, plan.fraction, self.form, (round, exchange), draws
                )
                for to, lane in lanes.items():
                    sent[peer, to] = parcels[to]
                    self.out[peer, to] = lane
            for (source, to), parcel in sent.items():
                edge = source, to
                self.into[edge], mass = take(self.into.get(edge, Incoming()), parcel, self.form, self.group.length)
                self.held[to] = self.held[to] + mass
                self.out[edge], _ = acknowledged(self.out[edge], parcel.seq, self.form)
                self.bytes += parcel.payload.nbytes


class Engine(VectorEngine):
    """The vector engine with lanes in the place of mixing matrices."""

    def __init__(self, world: World, form: Form) -> None:
        plan = plan_of(world, method_of(parse("partial-averaging")))
        policies = averaging_of(plan, world.federation, world.seed)
        self.towns = [Town(group, policies[group.id], form, world.draws) for group in plan.groups]
        self._world = world
        super().__init__(
            job_of(world, "cpu"), plan, policies, workspace_of(world, plan, "cpu"), start_of(world), workers=1
        )

    def step(self) -> Any:
        before = self.x_Pn.clone()
        if not self.round:
            for town in self.towns:
                for peer, index_D in self._places(town):
                    town.held[peer] = Mass.of(before[self._world.peers.index(peer), index_D])
        self._before = before
        return super().step()

    def _run(self, tasks: Sequence[Task]) -> list[Any]:
        mixes = [task for task in tasks if isinstance(task, Mix)]
        if not mixes:
            return super()._run(tasks)
        results = super()._run([task for task in tasks if not isinstance(task, Mix)])
        source = mixes[0].source
        for town in self.towns:
            for peer, index_D in self._places(town):
                row = self._world.peers.index(peer)
                start, trained = self._before[row, index_D], self.workspace.x[source][row, index_D]
                town.held[peer] = absorb(town.held[peer], start, trained)
            town.average(self.round)
            for peer, index_D in self._places(town):
                row = self._world.peers.index(peer)
                self.workspace.x[1 - source][row, index_D] = town.held[peer].estimate_D.to(torch.float32)
        return results

    def _places(self, town: Town) -> list[tuple[str, torch.Tensor]]:
        return [(peer, torch.from_numpy(town.group.indices[peer])) for peer in town.group.members]


def play(form: Form, seed: int, rounds: int, federation: Federation) -> tuple[float, int, float]:
    """(mean accuracy, bytes of all peers, largest disagreement) after these rounds."""
    world = build(federation, load_dataset(federation.simulation.dataset), seed)
    with Engine(world, form) as engine:
        for _ in range(rounds):
            engine.step()
        accuracy = fmean(score for score, _ in engine.evaluate())
        return accuracy, sum(town.bytes for town in engine.towns), max(engine.disagreement().values())
