"""Cost of a peer with more peers: 16 to 1,024 peers with 200 images each, and the memory of the largest number.

The data set is repeated until every peer has its own images, so that memory is as with real data.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.measure import Lap, interleaved, peak_memory, times
from benchmarks.rows import Row, Section, compared
from benchmarks.worlds import Engine, fashion_mnist, federation, world_of
from fedpeer.data.dataset import Dataset
from fedpeer.sims.world import World

FEW, MANY = 16, (64, 256, 1024)
IMAGES = TEST_IMAGES = 200
TARGET = 1.25
GIB_TARGET = 6.0
#: Rounds of the few peers in one lap: a single round ends before the clocks have settled.
ROUNDS_OF_FEW = 8


def measure(quick: bool) -> Section:
    """Measure each number of peers, alternating with 16 peers; quick: without 1,024."""
    many = MANY[:-1] if quick else MANY
    memory = _memory(many[-1])  # first: what this process has freed after other rows would count
    rows = [row for peers in many for row in _beside_few(peers, 3 if quick else 7)]
    return Section(
        f"Growth: {IMAGES} images and 4 steps of 50 a peer and round, one exchange on a 4-regular graph",
        f"CPU time a peer and round; the floor is fedpeer itself with {FEW} peers. Evaluation is on {TEST_IMAGES} "
        "images a peer. Memory: all processes, pages that they share counted once, from the making of the data on.",
        [*rows, memory],
    )


def _beside_few(peers: int, pairs: int) -> list[Row]:
    with (
        Engine(_world(FEW), "full-averaging", workers=2) as few,
        Engine(_world(peers), "full-averaging", workers=2) as many,
    ):

        def lap_of_few() -> Lap:
            laps = [few.lap() for _ in range(ROUNDS_OF_FEW)]
            return {phase: sum((lap[phase] for lap in laps[1:]), laps[0][phase]) for phase in laps[0]}

        interleaved(many.lap, lap_of_few, 1)  # touches memory for the first time
        ours, floor = interleaved(many.lap, lap_of_few, pairs)
    return [
        compared(
            f"{peers:,} peers: {phase}", "CPU ms a peer", times(ours, phase, per=peers * 1e-3),
            times(floor, phase, per=FEW * ROUNDS_OF_FEW * 1e-3), TARGET,
        )
        for phase in ("training", "averaging", "evaluation")
    ]  # fmt: skip


def _memory(peers: int) -> Row:
    with peak_memory() as seen:
        with Engine(_world(peers), "full-averaging", workers=2) as engine:
            engine.lap()
        return Row(name=f"{peers:,} peers: memory", unit="GiB", ours=seen() / 2**30, target=GIB_TARGET)


def _world(peers: int) -> World:
    split = f"blocks:{IMAGES},test={TEST_IMAGES}"
    return world_of(federation(split, peers=peers), _enough(fashion_mnist(), peers * IMAGES))


def _enough(dataset: Dataset, wanted: int) -> Dataset:
    """Return `wanted` training images, repeated from the first where they end, and then the test images."""
    assert dataset.test_N is not None
    rows = np.concatenate([np.arange(wanted) % np.count_nonzero(~dataset.test_N), np.flatnonzero(dataset.test_N)])
    return replace(dataset, x=dataset.x[rows], y=dataset.y[rows], test_N=np.arange(len(rows)) >= wanted)
