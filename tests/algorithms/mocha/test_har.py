"""The 30 tasks of UCI HAR, sitting against the rest: the size on which MOCHA's speed is asked for."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from fedpeer.algorithms.mocha import dual, omega
from fedpeer.algorithms.mocha.dual import Problem, Task
from fedpeer.algorithms.mocha.losses import HINGE
from fedpeer.algorithms.mocha.sdca import State, minimise
from fedpeer.data.sensors import har


@pytest.mark.soak
@pytest.mark.skipif("FEDPEER_DATA" not in os.environ, reason="FEDPEER_DATA names no folder with the official files")
def test_a_relative_gap_of_a_thousandth_in_sixty_rounds_before_and_after_the_relations_are_learned() -> None:
    dataset, draws, lam = har(), np.random.default_rng(0), 0.01
    assert dataset.user_N is not None
    sitting_N = np.where(dataset.y == dataset.classes.index("SITTING"), 1.0, -1.0)
    tasks = []
    for user in range(30):
        mine = draws.permutation(np.flatnonzero(dataset.user_N == user))
        mine = mine[: int(0.75 * len(mine))]
        x_SF = torch.from_numpy(dataset.x[mine].astype(np.float64))
        tasks.append(Task.averaged(x_SF, torch.from_numpy(sitting_N[mine])))
    sigma_TT, state = torch.eye(30, dtype=torch.float64) / 30, State.zero(tasks)
    for rounds in (20, 60):
        problem = Problem(HINGE, tuple(tasks), omega.coupling_of_covariance(sigma_TT, lam / 2))
        state = minimise(problem, state, gap_wanted=0.0, rounds_max=rounds, passes=8, draws=draws)
        assert dual.gap(problem, state.alphas, state.v_TF) <= 1e-3 * dual.primal(problem, state.v_TF)
        sigma_TT = omega.trace_constrained(dual.w_of(state.v_TF, problem.coupling_TT))
