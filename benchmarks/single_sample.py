"""Single-sample SGD of 784-300-100-10: the engine with one worker beside a compiled loop for exactly this network."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from benchmarks.floors import compiled_pass, manual_pass
from benchmarks.measure import times
from benchmarks.rows import Section, compared
from benchmarks.worlds import Engine, beside_a_pass, federation, world_of

PEERS, IMAGES, RATE = 4, 3000, 0.01
TARGET = 1.5


def measure(quick: bool) -> Section:
    pairs = 3 if quick else 9
    world = world_of(federation(f"blocks:{IMAGES},test=100", peers=PEERS, batch=1, lr=RATE))
    x_NF, y_N = torch.from_numpy(world.dataset.x), torch.from_numpy(world.dataset.y)
    with Engine(world, "local", workers=1) as engine:
        x_Pn = [row.clone() for row in engine.x_Pn]  # separate copies, so that every weight begins at a cache line

        def compiled(peer: int, index_S: Tensor) -> None:
            compiled_pass(x_Pn[peer].numpy(), world.dataset.x, world.dataset.y, index_S.numpy(), np.float32(RATE))

        ours, floor = beside_a_pass(engine, compiled, pairs)
        apart = float((engine.x_Pn - torch.stack(x_Pn)).norm() / engine.x_Pn.norm())
        again, loop = beside_a_pass(
            engine, lambda peer, index_S: manual_pass(x_Pn[peer], x_NF, y_N, index_S, 1, RATE), min(pairs, 3)
        )
    each = PEERS * IMAGES * 1e-6
    return Section(
        "Single-sample SGD of 784-300-100-10, training alone, one worker",
        f"{PEERS} peers x {IMAGES:,} examples a round. After {pairs + 1} rounds the parameters of both programs differ "
        f"by {apart:.1e}, relative: the compiled loops add in different orders.",
        [
            compared(
                "beside a compiled loop", "CPU us a sample", times(ours, "training", per=each),
                times(floor, "training", per=each), TARGET,
            ),
            compared(
                "beside a torch loop by hand", "CPU us a sample", times(again, "training", per=each),
                times(loop, "training", per=each),
            ),
        ],
    )  # fmt: skip
