"""The common job: 16 peers x 3,500 images, one pass and one neighbor averaging a round, beside two processes by hand.

Both programs take the same batches in the same order from the same start, so that their parameters must agree at the
end; the notes say how closely they do.
"""

from __future__ import annotations

from functools import partial
from statistics import fmean

import torch

from benchmarks.floors import Memory, TwoProcesses
from benchmarks.measure import Lap, clocked, interleaved, times
from benchmarks.rows import Row, Section, compared
from benchmarks.worlds import Engine, dense, federation, same_order, world_of

PEERS, IMAGES, BATCH, RATE = 16, 3500, 50, 0.1
TARGET = 1.3


def measure(quick: bool) -> Section:
    """Measure 9 pairs of one round and one evaluation each; quick: 3 pairs."""
    world = world_of(federation(f"blocks:{IMAGES}", peers=PEERS, batch=BATCH, lr=RATE))
    with Engine(world, "full-averaging", workers=2) as engine, floor_of(engine) as floor:
        interleaved(engine.lap, lambda: floor_lap(floor), 1)  # touches memory for the first time
        ours, theirs = interleaved(engine.lap, lambda: floor_lap(floor), 3 if quick else 9)
        rows = _rows(ours, theirs)
        apart = float((engine.x_Pn - floor.x_Pn).norm() / floor.x_Pn.norm())
        scores = fmean(score for score, _ in engine.evaluate()), fmean(floor.evaluate())
    return Section(
        f"The common job: {PEERS} peers x {IMAGES:,} Fashion-MNIST images, 784-300-100-10, batches of {BATCH}",
        f"A round is one pass and one averaging of all parameters on a 4-regular graph. After {len(ours) + 1} rounds "
        f"fedpeer has accuracy {scores[0]:.4f}, the floor {scores[1]:.4f}; parameters differ by {apart:.1e}, relative.",
        rows,
    )


def _rows(ours: list[Lap], theirs: list[Lap]) -> list[Row]:
    phases = {"a round": "round", "training": "training", "averaging": "averaging", "evaluation": "evaluation"}
    rows = [
        compared(name, "CPU s", times(ours, phase), times(theirs, phase), TARGET if phase == "round" else None)
        for name, phase in phases.items()
    ]
    by_the_clock = times(ours, "round", clock="wall"), times(theirs, "round", clock="wall")
    return [*rows, compared("a round, by the clock", "s", *by_the_clock)]


def floor_of(engine: Engine) -> TwoProcesses:
    """Return the floor for the engine's job: the same start, the same mixing matrix, the same order of examples."""
    dataset, start = engine.world.dataset, engine.x_Pn.clone()
    assert dataset.test_N is not None
    x, y, test = torch.from_numpy(dataset.x), torch.from_numpy(dataset.y), torch.from_numpy(dataset.test_N)
    held_PS = torch.stack([torch.from_numpy(share.train_M) for share in engine.world.split.shares])
    memory = Memory((start, torch.zeros_like(start)), x[~test], y[~test], held_PS, x[test], y[test], dense(engine))
    learning, order = engine.world.federation.learning, partial(same_order, held_PS.shape[1])
    return TwoProcesses(memory, order, batch=learning.batch_size, lr=learning.optimizer.settings["lr"])


def floor_lap(floor: TwoProcesses) -> Lap:
    training, averaging = clocked(floor.train, floor.pids), clocked(floor.average, floor.pids)
    evaluation = clocked(floor.evaluate, floor.pids)
    return {"round": training + averaging, "training": training, "averaging": averaging, "evaluation": evaluation}
