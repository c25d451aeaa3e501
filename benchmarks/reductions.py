"""`python -m benchmarks.reductions [--quick]`: bytes and accuracy of each wire encoding after the same rounds.

The default simulation (16 peers on digits, default slices, push-sum to a tolerance of 1e-4) runs on the vector engine,
except for the averaging: there every share travels over a channel in memory, packed, restored and acknowledged as
between real peers. Bytes are those of payloads; a message's head is the same for all encodings and left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedpeer.algorithms.draws import Draws
from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.gossip.averaging import Averaging, turn
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.push_sum import absorb
from fedpeer.gossip.reductions import Form, bfloat16, float32, float64, int8, top_k, zstd
from fedpeer.gossip.transfers import Incoming, NumberedTransfer, Outgoing, acknowledged, give, take
from fedpeer.learning.groups import averaging_of
from fedpeer.learning.holdings import load_dataset
from fedpeer.sims.engine import RoundTimes
from fedpeer.sims.memory import job_of, workspace_of
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.vector.tasks import Mix, WorkerTask
from fedpeer.sims.world import World, build_world, plan_of
from fedpeer.slicing.plan import Group

SEEDS = (0, 1, 2)

#: Half of the default simulation's rounds: accuracy still rises then, so an encoding that slows learning shows it.
ROUNDS = 15

#: Least factor by which bytes are fewer than with float32, and most points of accuracy that this may cost.
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
    "top-k:0.02/zstd": lambda: zstd()(top_k(share=0.02)),
}


@dataclass
class GroupChannels:
    """One group's peers with their masses and channels; `bytes` counts all that they have sent."""

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
            sent = {edge: share for peer in self.group.members for edge, share in self._given(peer, round, exchange)}
            for (source, to), share in sent.items():
                channel = self.into.get((source, to), Incoming())
                self.into[source, to], mass = take(channel, share, self.form, self.group.length)
                self.held[to] = self.held[to] + mass
                self.out[source, to], _ = acknowledged(self.out[source, to], share.seq, self.form)
                self.bytes += share.payload.nbytes

    def _given(self, peer: str, round: int, exchange: int) -> Iterator[tuple[tuple[str, str], NumberedTransfer]]:
        plan = turn(self.policy, peer, round, exchange)
        channels = {to: self.out.get((peer, to), Outgoing()) for to in plan.to}
        draws, at = self.draws.numpy(f"wire {self.group.id} {exchange}", peer, round), (round, exchange)
        self.held[peer], channels, shares = give(self.held[peer], channels, plan.fraction, self.form, at, draws)
        for to, channel in channels.items():
            self.out[peer, to] = channel
            yield (peer, to), shares[to]


class Engine(VectorEngine):
    """The vector engine with channels in place of mixing matrices."""

    def __init__(self, world: World, form: Form) -> None:
        plan = plan_of(world, parse_choice("partial-averaging"))
        policies = averaging_of(plan, world.federation, world.seed)
        self.groups = [GroupChannels(group, policies[group.id], form, world.draws) for group in plan.groups]
        self._rows = {peer: row for row, peer in enumerate(world.peers)}
        super().__init__(
            job_of(world, "cpu"), plan, policies, workspace_of(world, plan, "cpu"), [world.drawn], workers=1
        )

    def step(self) -> RoundTimes:
        self._before_Pn = self.x_Pn.clone()
        for channels, peer, place in self._places():
            if peer not in channels.held:
                channels.held[peer] = Mass.of(self._before_Pn[place])
        return super().step()

    def _run(self, tasks: Sequence[WorkerTask]) -> list[Any]:
        """Run tasks: averaging over the channels, all other tasks as usual."""
        mixes = [task for task in tasks if isinstance(task, Mix)]
        results = super()._run([task for task in tasks if not isinstance(task, Mix)])
        if not mixes:
            return results
        source = mixes[0].source
        for channels, peer, place in self._places():
            trained_D = self.workspace.x[source][place]
            channels.held[peer] = absorb(channels.held[peer], self._before_Pn[place], trained_D)
        for channels in self.groups:
            channels.average(self.round)
        for channels, peer, place in self._places():
            self.workspace.x[1 - source][place] = channels.held[peer].estimate_D.to(torch.float32)
        return results

    def _places(self) -> Iterator[tuple[GroupChannels, str, tuple[int, Tensor]]]:
        """Yield each member of each group, and the places of its values in x."""
        for channels in self.groups:
            for peer in channels.group.members:
                yield channels, peer, (self._rows[peer], torch.from_numpy(channels.group.indices[peer]))


@dataclass(frozen=True)
class Result:
    """Means over seeds: accuracy of all peers, bytes that all sent, largest disagreement in a group."""

    accuracy: float
    bytes: float
    disagreement: float


def play(form: Form, seed: int, rounds: int) -> Result:
    federation = Federation.model_validate({"gossip": {"tolerance": 1e-4}})
    world = build_world(federation, load_dataset(federation.simulation.dataset), seed)
    with Engine(world, form) as engine:
        for _ in range(rounds):
            engine.step()
        accuracy = fmean(score for score, _ in engine.evaluate())
        return Result(accuracy, sum(channels.bytes for channels in engine.groups), max(engine.disagreement().values()))


def mean(results: Sequence[Result]) -> Result:
    return Result(*(fmean(getattr(each, field.name) for each in results) for field in fields(Result)))


def table(found: Mapping[str, Result], rounds: int, seeds: int) -> Table:
    plain = found["float32"]
    title = f"Wire reductions: 16 peers on digits, {rounds} rounds, mean of {seeds} seeds"
    drawn = Table(title=title, title_justify="left")
    for word in ("form", "MB", "fewer", "accuracy", "points", "disagreement", "target"):
        drawn.add_column(word, justify="left" if word in ("form", "target") else "right")
    for name, result in found.items():
        factor, points = plain.bytes / result.bytes, 100 * (result.accuracy - plain.accuracy)
        met = factor >= TARGET_FACTOR and points >= -TARGET_POINTS
        drawn.add_row(
            name,
            f"{result.bytes / 1e6:.1f}",
            f"{factor:.2f} x",
            f"{result.accuracy:.4f}",
            f"{points:+.2f}",
            f"{result.disagreement:.1e}",
            "met" if met else "",
        )
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reductions", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, 5 rounds")
    rounds, seeds = (5, SEEDS[:1]) if parser.parse_args().quick else (ROUNDS, SEEDS)
    torch.set_num_threads(1)
    found = {name: mean([play(make(), seed, rounds) for seed in seeds]) for name, make in FORMS.items()}
    Console(width=100).print(table(found, rounds, len(seeds)))


if __name__ == "__main__":
    main()
