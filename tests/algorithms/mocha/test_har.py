"""The 30 tasks of UCI HAR, sitting against the rest: the size for which MOCHA's speed is required."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch

from fedpeer.algorithms.servers.mocha import Mocha
from fedpeer.data.sensors import har
from tests.algorithms.mocha.playing import Play, Tasks


@pytest.mark.soak
@pytest.mark.skipif("FEDPEER_DATA" not in os.environ, reason="FEDPEER_DATA names no folder with the official files")
def test_a_relative_gap_of_a_thousandth_within_a_minute_before_and_after_the_relations_are_learned() -> None:
    """Each part runs sixty rounds of eight passes through the class; CPU seconds are measured, to ignore other work."""
    dataset, draws = har(positive="sitting"), np.random.default_rng(0)
    assert dataset.user_N is not None
    xs, ys = [], []
    for user in range(30):
        mine = draws.permutation(np.flatnonzero(dataset.user_N == user))
        mine = mine[: int(0.75 * len(mine))]
        xs.append(torch.from_numpy(dataset.x[mine]))
        ys.append(torch.from_numpy(dataset.y[mine]))
    tasks = Tasks(tuple(xs), tuple(ys))
    play = Play(Mocha(tasks.context, lam=0.01, passes=8, inner=60), tasks)
    play.one()  # compiles
    for last in (60, 119):
        began = time.process_time()
        while play.round < last:
            play.one()
        # The statistics of a round describe its beginning; the sixtieth round ends with new relations.
        assert play.statistic("gap").sum() <= 1e-3 * play.statistic("primal").sum()
        assert time.process_time() - began < 60
