"""Small problems for the tests of MOCHA: random tasks of different sizes, related by a random covariance."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedpeer.algorithms.mocha.dual import DualTask
from fedpeer.algorithms.mocha.losses import HINGE, LOGISTIC, SQUARED, DualLoss, smoothed_hinge
from fedpeer.algorithms.mocha.omega import coupling_of_covariance
from tests.reference.mocha import DualProblem, State

LOSSES = [HINGE, smoothed_hinge(0.5), LOGISTIC, SQUARED]


def normal(draws: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(draws.standard_normal(shape))


def tasks_of(
    draws: np.random.Generator, sizes: tuple[int, ...], features: int, *, mean: bool = False
) -> tuple[DualTask, ...]:
    """Return tasks with labels of -1 and 1 by a noisy plane, different for each task."""
    make = DualTask.averaged if mean else DualTask.summed
    tasks = []
    for size in sizes:
        x_SF = normal(draws, size, features)
        score_S = x_SF @ normal(draws, features) + normal(draws, size)
        tasks.append(make(x_SF, torch.where(score_S > 0, 1.0, -1.0).to(torch.float64)))
    return tuple(tasks)


def covariance(draws: np.random.Generator, tasks: int) -> Tensor:
    """Return a random positive definite matrix of trace one."""
    root_TT = normal(draws, tasks, tasks)
    sigma_TT = root_TT @ root_TT.T + 0.1 * torch.eye(tasks, dtype=torch.float64)
    return sigma_TT / sigma_TT.trace()


def problem_of(
    loss: DualLoss, draws: np.random.Generator, sizes: tuple[int, ...] = (9, 5, 7), features: int = 4, lam: float = 1.0
) -> DualProblem:
    coupling_TT = coupling_of_covariance(covariance(draws, len(sizes)), lam / 2)
    return DualProblem(loss, tasks_of(draws, sizes, features), coupling_TT)


def feasible(problem: DualProblem, draws: np.random.Generator) -> State:
    """Return random dual variables between the bounds, and their V."""
    alphas = tuple(task.y_S * torch.from_numpy(draws.random(len(task.y_S))) for task in problem.tasks)
    v_TF = torch.stack([task.v_F(alpha_S) for task, alpha_S in zip(problem.tasks, alphas, strict=True)])
    return State(alphas, v_TF)
