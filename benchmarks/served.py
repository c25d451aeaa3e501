"""Algorithms with a server: FedAvg compared with a hand-written loop, and the other algorithms with FedAvg.

100 clients have 600 MNIST images each (Fashion-MNIST's, which have the same form); the network is 784-100-10 with ReLU,
batches have 20 examples, a round is one pass, and all clients take part. Both programs take the same examples in the
same order from the same start.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from benchmarks.floors import two_layer_pass
from benchmarks.measure import Lap, clocked, interleaved, times
from benchmarks.rows import Row, Section, compared
from benchmarks.worlds import federation, same_order, world_of
from fedpeer.config.choice import parse_choice
from fedpeer.sims.memory import engine_of
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.world import World

CLIENTS, IMAGES, BATCH, RATE = 100, 600, 20, 0.05
TARGET = 1.3
#: Most time of a round, in rounds of FedAvg.
AT_MOST: dict[str, float | None] = {"scaffold": None, "fedper": None, "virtual": 4.0}


def measure(quick: bool) -> Section:
    pairs = 2 if quick else 7
    wanted = federation(
        f"blocks:{IMAGES},test=100", peers=CLIENTS, network="mlp:784+100+10,activation=relu", batch=BATCH, lr=RATE
    )
    world = world_of(wanted)
    rows: list[Row] = []
    with _engine(world, "fedavg") as engine:
        floor = _Floor(world)
        interleaved(lambda: _lap(engine), floor.lap, 1)
        ours, theirs = interleaved(lambda: _lap(engine), floor.lap, pairs)
        rows.append(compared("FedAvg beside a loop by hand", "CPU s", _rounds(ours), _rounds(theirs), TARGET))
        assert engine.server_n is not None
        apart = float((engine.server_n - floor.server_n).norm() / floor.server_n.norm())
        for name, target in AT_MOST.items():
            with _engine(world, name) as other:
                interleaved(lambda: _lap(other), lambda: _lap(engine), 1)
                longer, plain = interleaved(lambda: _lap(other), lambda: _lap(engine), pairs)
                rows.append(compared(f"{name} beside FedAvg", "CPU s", _rounds(longer), _rounds(plain), target))
    return Section(
        f"Algorithms with a server: a round of {CLIENTS} clients x {IMAGES} images, 784-100-10, batches of {BATCH}",
        f"One worker. After {pairs + 1} rounds the servers of FedAvg and of the loop differ by {apart:.1e}, relative.",
        rows,
    )


def _engine(world: World, algorithm: str) -> VectorEngine:
    return engine_of(world, parse_choice(algorithm), workers=1)


def _lap(engine: VectorEngine) -> Lap:
    return {"round": clocked(engine.step, engine.process_ids)}


def _rounds(laps: list[Lap]) -> list[float]:
    return times(laps, "round")


class _Floor:
    """Rounds of FedAvg by hand: every client trains from the server's model, and the server takes the plain mean."""

    def __init__(self, world: World) -> None:
        self.server_n = world.drawn("").clone()
        self._x_NF, self._y_N = torch.from_numpy(world.dataset.x), torch.from_numpy(world.dataset.y)
        self._held: list[Tensor] = [torch.from_numpy(share.train_M) for share in world.split.shares]
        self._rounds = itertools.count(1)

    def lap(self) -> Lap:
        return {"round": clocked(self._round)}

    def _round(self) -> None:
        number, total_n = next(self._rounds), torch.zeros_like(self.server_n, dtype=torch.float64)
        for client, held_S in enumerate(self._held):
            x_n = self.server_n.clone()
            index_S = held_S[torch.from_numpy(same_order(len(held_S), client, number))]
            two_layer_pass(x_n, self._x_NF, self._y_N, index_S, BATCH, RATE)
            total_n += x_n
        self.server_n = (total_n / len(self._held)).float()
