"""Networks without a fast path: the engine with one worker, compared with the loop of every tutorial in one process."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from benchmarks.floors import autograd_pass
from benchmarks.measure import times
from benchmarks.rows import Row, Section, compared
from benchmarks.worlds import Engine, beside_a_pass, fashion_mnist, federation, world_of

#: Name -> network, shape of an example, peers, examples of each.
CASES = {
    "784-300-100-10, ReLU, layer normalisation": ("python:benchmarks.networks:layer_norm", "flat", 4, 3000),
    "784-300-100-10, sigmoid, fast path off": ("python:benchmarks.networks:perceptron", "flat", 4, 3000),
    "CNN of 8 and 16 5x5 channels": ("cnn:8+16", "image", 2, 1000),
    "CNN of 32, 64, 128 and 256 3x3 channels": ("cnn:32+64+128+256,kernel=3", "image", 2, 300),
}
BATCH, RATE = 50, 0.1
TARGET = 1.1


def measure(quick: bool) -> Section:
    found = [_compared(name, 3 if quick else 15) for name in CASES]
    apart = max(apart for _, apart in found)
    return Section(
        f"Networks without a fast path: training alone, one worker, batches of {BATCH}",
        "The floor is a plain loop with autograd and torch.optim.SGD. After two rounds the parameters of both programs "
        f"differ by {apart:.1e} at most, relative: images lie channels last here, so sums have another order.",
        [row for row, _ in found],
    )


def _compared(name: str, pairs: int) -> tuple[Row, float]:
    network, shape, peers, examples = CASES[name]
    wanted = federation(f"blocks:{examples},test=100", peers=peers, network=network, batch=BATCH, lr=RATE)
    world = world_of(wanted, fashion_mnist(shape))
    x_NF, y_N = torch.from_numpy(world.dataset.x), torch.from_numpy(world.dataset.y)
    with Engine(world, "local", workers=1) as engine:
        modules = [copy.deepcopy(world.module).train() for _ in world.peers]
        for module, x_n in zip(modules, engine.x_Pn, strict=True):
            module.load_state_dict({key: value.clone() for key, value in world.layout.unflatten(x_n).items()})

        def by_hand(peer: int, index_S: Tensor) -> None:
            autograd_pass(modules[peer], x_NF, y_N, index_S, BATCH, RATE)

        beside_a_pass(engine, by_hand, 1)
        theirs = torch.stack([world.layout.flatten(module) for module in modules])
        apart = float((engine.x_Pn - theirs).norm() / theirs.norm())
        ours, floor = beside_a_pass(engine, by_hand, pairs)
    steps = peers * examples / BATCH * 1e-3
    laps = times(ours, "training", per=steps), times(floor, "training", per=steps)
    return compared(name, "CPU ms a step", *laps, TARGET), apart
