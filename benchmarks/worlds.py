"""fedpeer's side of a comparison: the engine on the job of a floor, with a clock around each phase.

Everything runs as in `fedpeer simulate`, from a `Federation` to the engine's rounds, but without reports, checkpoints
and a run folder.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.measure import Lap, Spent, clocked, interleaved
from fedpeer.algorithms.batches import order
from fedpeer.algorithms.draws import Draws
from fedpeer.config.choice import Choice, parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.settings import GossipSettings, LearningSettings, SimulationSettings
from fedpeer.data.dataset import Dataset
from fedpeer.learning.groups import averaging_of
from fedpeer.learning.holdings import load_dataset
from fedpeer.sims.memory import job_of, workspace_of
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.vector.tasks import TrainBlock, WorkerTask
from fedpeer.sims.world import World, build_world, plan_of

SEED = 0


@functools.cache
def fashion_mnist(shape: str = "flat") -> Dataset:
    """Return the official 60,000 and 10,000 images, which are read once."""
    return load_dataset(Choice("fashion-mnist", None, {"shape": shape}))


def federation(
    split: str,
    *,
    peers: int,
    network: str = "mlp:784+300+100+10",
    batch: int = 50,
    lr: float = 0.1,
) -> Federation:
    """Return a federation whose rounds are one pass and one exchange on a 4-regular graph."""
    return Federation(
        network=parse_choice(network),
        learning=LearningSettings(
            optimizer=Choice("sgd", None, {"lr": lr}), batch_size=batch, steps_between_averaging="pass"
        ),
        gossip=GossipSettings(topology=parse_choice(f"k-regular:{min(4, peers - 1)}"), exchanges=1, tolerance=None),
        simulation=SimulationSettings(peers=peers, dataset=parse_choice("fashion-mnist"), split=(parse_choice(split),)),
        seed=SEED,
    )


class Engine(VectorEngine):
    """The vector engine with a clock; `method` as on the command line."""

    def __init__(self, world: World, method: str, *, workers: int) -> None:
        plan = plan_of(world, parse_choice(method))
        self.world, self._training = world, Spent(0.0, 0.0)
        self.mixing = averaging_of(plan, world.federation, world.seed)
        super().__init__(
            replace(job_of(world, "cpu"), algorithm=parse_choice(method)),
            plan,
            self.mixing,
            workspace_of(world, plan, "cpu"),
            [world.drawn],
            workers=workers,
        )

    def lap(self) -> Lap:
        """Run a round and an evaluation. Time in no phase counts as averaging, so that no time is left out."""
        whole = clocked(self.step, self.process_ids)
        found = {"round": whole, "training": self._training, "averaging": whole - self._training}
        return {**found, "evaluation": clocked(self.evaluate, self.process_ids)}

    def _run(self, tasks: Sequence[WorkerTask]) -> list[Any]:
        if not isinstance(tasks[0], TrainBlock):
            return super()._run(tasks)
        results: list[Any] = []
        self._training = clocked(lambda: results.extend(super(Engine, self)._run(tasks)), self.process_ids)
        return results


def beside_a_pass(
    engine: Engine, floor_pass: Callable[[int, Tensor], object], pairs: int
) -> tuple[list[Lap], list[Lap]]:
    """Return laps of an engine's training rounds and of passes by hand here, with the same examples in the same order.

    `floor_pass(peer, index_S)` trains one peer on these rows of the data set. A further pair at the beginning warms up.
    """
    held = [torch.from_numpy(share.train_M) for share in engine.world.split.shares]
    rounds = itertools.count(engine.round + 1)

    def by_hand(round: int) -> None:
        for peer, index in enumerate(held):
            floor_pass(peer, index[torch.from_numpy(same_order(len(index), peer, round))])

    def floor_lap() -> Lap:
        return {"training": clocked(lambda: by_hand(next(rounds)))}

    interleaved(engine.lap, floor_lap, 1)
    return interleaved(engine.lap, floor_lap, pairs)


def world_of(wanted: Federation, dataset: Dataset | None = None) -> World:
    return build_world(wanted, dataset or fashion_mnist(), SEED)


def same_order(examples: int, peer: int, round: int) -> NDArray[np.int64]:
    """Return fedpeer's order of a peer's examples, for rounds of one pass; floors use it, too."""
    return order(examples, (round - 1) * examples, examples, Draws(SEED), f"peer{peer + 1}")


def dense(engine: Engine) -> Tensor:
    """Return the effect of one averaging of the engine's only group on the peers' parameters, (P, P) float32."""
    matrix: Any = next(iter(engine.mixing.values())).matrix(0)
    return torch.from_numpy(np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)).float()
