"""D-PSGD and DFedAvgM as their papers write them, in numpy, beside the algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.contract import Algorithm
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.dfedavgm import DFedAvgM
from fedpeer.algorithms.dpsgd import DPsgd
from fedpeer.algorithms.leaves import take_rows
from fedpeer.algorithms.local_training import FullAveraging
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.algorithms.training_context import TrainingContext
from tests.algorithms.client_factory import mlp

PEERS, FEATURES, STEPS, SIZE, LR, THETA = 5, 3, 4, 6, 0.05, 0.8
MODULE = nn.Linear(FEATURES, 1, bias=False, dtype=torch.float64)
KEYS = tuple(range(PEERS))
Vector = NDArray[np.float64]
Made = Algorithm[Any, Any, Any]


def context(**settings: float) -> TrainingContext:
    return TrainingContext.of(MODULE, LOSSES["mean-squared-error"], OptimizerChoice("SGD", {"lr": LR, **settings}))


@cache
def work(round: int) -> Batches:
    """Return the batches of all peers in one round; each peer has its own plane."""
    draws = np.random.default_rng(round)
    x_NF = draws.normal(size=(40, FEATURES))
    index = draws.integers(40, size=(PEERS, STEPS, SIZE))
    w_PF = 3 * np.random.default_rng(9).normal(size=(PEERS, FEATURES))
    y = np.einsum("psmf,pf->psm", x_NF[index], w_PF)[..., None]
    return Batches(torch.from_numpy(x_NF), torch.from_numpy(index), torch.from_numpy(y))


def slope(x_Pn: Vector, round: int, step: int) -> Vector:
    """Return the gradients (P, n) of each peer's mean squared error on one batch, by hand."""
    x_PMF, y_PM = work(round).inputs(step).numpy(), work(round).targets(step).numpy()[..., 0]
    return np.asarray(2 / SIZE * np.einsum("pm,pmf->pf", np.einsum("pmf,pf->pm", x_PMF, x_Pn) - y_PM, x_PMF))


def mixing() -> Vector:
    """Return the matrix (P, P) of a ring in which a peer keeps a third."""
    return np.asarray(sum(np.roll(np.eye(PEERS), shift, 1) for shift in (-1, 0, 1)) / 3)


def played(algorithm: Made, rounds: int) -> list[Tensor]:
    """Return what all peers send (P, n) in each round of training and mixing, from 0."""
    start_Pn, matrix = torch.zeros(PEERS, FEATURES, dtype=torch.float64), torch.from_numpy(mixing())
    client, received = algorithm.start_client(start_Pn, torch.ones(PEERS)), algorithm.start_averaged(start_Pn)
    found = []
    for round in range(rounds):
        client, sent = algorithm.train(client, received, work(round), KEYS)
        received = ServerModel(matrix @ sent.model_n)
        found.append(sent.model_n)
    return found


@pytest.mark.slow
def test_d_psgd_is_algorithm_1_of_its_paper() -> None:
    """x+ = W x - lr g(x): the gradient at the model before the averaging, with which x begins again."""
    x_Pn, matrix = np.zeros((PEERS, FEATURES)), mixing()
    for round, sent_Pn in enumerate(played(DPsgd(context()), 12)):
        mean_Pn = np.mean([slope(x_Pn, round, step) for step in range(STEPS)], 0)
        x_Pn = matrix @ x_Pn - LR * mean_Pn
        np.testing.assert_allclose(sent_Pn.numpy(), x_Pn, rtol=0, atol=1e-12)


def test_full_averaging_of_single_steps_takes_the_gradient_after_the_averaging() -> None:
    x_Pn, matrix, single = np.zeros((PEERS, FEATURES)), mixing(), work(0).taking([0])
    algorithm = FullAveraging(context())
    start_Pn = torch.from_numpy(x_Pn)
    client, received = algorithm.start_client(start_Pn, torch.ones(PEERS)), ServerModel(start_Pn)
    for _ in range(3):
        client, sent = algorithm.train(client, received, single, KEYS)
        received = ServerModel(torch.from_numpy(matrix) @ sent.model_n)
        x_Pn = matrix @ (x_Pn - LR * slope(x_Pn, 0, 0))
        np.testing.assert_allclose(received.model_n.numpy(), x_Pn, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_dfedavgm_is_algorithm_1_of_its_paper() -> None:
    """Each step is y+ = y - lr g(y) + theta (y - y-), and each round begins with y = y- = x."""
    x_Pn, matrix = np.zeros((PEERS, FEATURES)), mixing()
    for round, sent_Pn in enumerate(played(DFedAvgM(context(momentum=THETA)), 6)):
        y_Pn, before_Pn = x_Pn, x_Pn
        for step in range(STEPS):
            y_Pn, before_Pn = y_Pn - LR * slope(y_Pn, round, step) + THETA * (y_Pn - before_Pn), y_Pn
        np.testing.assert_allclose(sent_Pn.numpy(), y_Pn, rtol=0, atol=1e-12)
        x_Pn = matrix @ y_Pn


@pytest.mark.slow
def test_dfedavgm_is_full_averaging_that_drops_the_momentum() -> None:
    momentum = context(momentum=THETA)
    kept, dropped = (FullAveraging(replace(momentum, optimizer_state=each)) for each in ("keep", "reset"))
    ours, same, other = (played(each, 3)[-1] for each in (DFedAvgM(momentum), dropped, kept))
    assert torch.equal(ours, same)
    assert float((ours - other).norm()) > 1e-2


@pytest.mark.parametrize("make", [DPsgd, lambda each: DFedAvgM(replace(each, optimizer_state="keep"))])
def test_a_peer_alone_is_a_row_of_the_block(make: Callable[[TrainingContext], Made]) -> None:
    algorithm, x_Pn = make(context()), torch.rand(PEERS, FEATURES, dtype=torch.float64)
    client, received = algorithm.start_client(x_Pn, torch.ones(PEERS)), ServerModel(x_Pn.roll(1, 0))
    _, together = algorithm.train(client, received, work(0), KEYS)
    for p in range(PEERS):
        _, alone = algorithm.train(take_rows(client, p), take_rows(received, p), work(0).peer(p), (p,))
        torch.testing.assert_close(together.model_n[p], alone.model_n)


def test_what_does_not_fit_is_said() -> None:
    loss, adam = LOSSES["cross-entropy"], OptimizerChoice("Adam", {"lr": 0.1})
    normal = nn.Sequential(mlp(), nn.BatchNorm1d(3))
    with pytest.raises(AlgorithmError, match="running statistics"):
        DPsgd(TrainingContext.of(normal, loss, OptimizerChoice("SGD", {"lr": 0.1})))
    with pytest.raises(AlgorithmError, match="plain gradient steps"):
        DPsgd(TrainingContext.of(mlp(), loss, adam))
    with pytest.raises(AlgorithmError, match=r"SGD with momentum, but learning\.optimizer is Adam"):
        DFedAvgM(TrainingContext.of(mlp(), loss, adam))
