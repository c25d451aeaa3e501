"""Gradient tracking against its recursion in closed form, its conservation law, and the end point of plain gossip."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches, Examples
from fedpeer.algorithms.contract import Algorithm
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.gradient_tracking import GradientTracking, Tracked
from fedpeer.algorithms.leaves import combined, divided, take_rows
from fedpeer.algorithms.local_training import FullAveraging
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.training_context import TrainingContext
from tests.algorithms.client_factory import mlp

PEERS, EXAMPLES, FEATURES, RATE = 6, 20, 3, 0.01
MODULE = nn.Sequential(nn.Linear(FEATURES, 1))
BENCH = TrainingContext.of(MODULE, LOSSES["mean-squared-error"], OptimizerChoice("SGD", {"lr": RATE}), way="stack")
KEYS = tuple(range(PEERS))


def ring() -> NDArray[np.float64]:
    """Return the matrix (P, P) in which each peer keeps a third and sends a third to each of its two neighbors."""
    return np.asarray(sum(np.roll(np.eye(PEERS), shift, 1) for shift in (-1, 0, 1)) / 3)


def data() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return examples (P, M, F + 1), with a 1 for the bias, and targets (P, M); each peer has its own plane."""
    draws = np.random.default_rng(0)
    x_PMF = draws.normal(size=(PEERS, EXAMPLES, FEATURES)) + draws.normal(size=(PEERS, 1, FEATURES))
    w_PF = 3 * draws.normal(size=(PEERS, FEATURES))
    x_PMF = np.concatenate([x_PMF, np.ones((PEERS, EXAMPLES, 1))], -1)
    return x_PMF, np.einsum("pmf,pf->pm", x_PMF[..., :-1], w_PF)


X, Y = data()


@cache
def work() -> Batches:
    """Return the batches of a round of all peers: all examples of each peer, in two batches."""
    x_NF = torch.from_numpy(X[..., :-1].reshape(-1, FEATURES))
    index = torch.arange(PEERS * EXAMPLES).reshape(PEERS, 2, -1)
    y = torch.from_numpy(Y).reshape(PEERS, 2, -1, 1)
    return Batches(x_NF, index, y, whole=tuple(Examples(x_NF, index[p].flatten(), y[p]) for p in range(PEERS)))


def gradients(x_Pn: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the gradients (P, n) of each peer's mean squared error, computed by hand."""
    apart_PM = np.einsum("pmf,pf->pm", X, x_Pn) - Y
    return np.asarray(2 / EXAMPLES * np.einsum("pm,pmf->pf", apart_PM, X))


def optimum() -> NDArray[np.float64]:
    """Return the parameters (n,) that minimise the sum of all peers' losses."""
    return np.asarray(np.linalg.lstsq(X.reshape(-1, FEATURES + 1), Y.ravel(), rcond=None)[0])


def played(algorithm: Algorithm[Any, Any, Any], rounds: int) -> list[tuple[Tensor, Any]]:
    """Return all peers' averaged values (P, N) and kept states after each round of training and mixing."""
    start_Pn = torch.zeros(PEERS, FEATURES + 1, dtype=torch.float64)
    client = algorithm.start_client(start_Pn, torch.full((PEERS,), EXAMPLES))
    averaged, found = algorithm.start_averaged(start_Pn), []
    template, matrix = algorithm.start_averaged(start_Pn[0]), torch.from_numpy(ring())
    for _ in range(rounds):
        client, sent = algorithm.train(client, averaged, work(), KEYS)
        averaged = divided(template, matrix @ combined(sent))
        found.append((combined(averaged), client))
    return found


def test_rounds_are_the_recursion_and_keep_the_sum() -> None:
    """The recursion is x+ = W x - lr y, y+ = W y + g+ - g, from (x, 0, 0)."""
    matrix = ring()
    x_Pn, y_Pn, g_Pn = np.zeros((3, PEERS, FEATURES + 1))
    for averaged_PN, kept in played(GradientTracking(BENCH), 40):
        x_Pn = matrix @ x_Pn - RATE * y_Pn
        after_Pn = gradients(x_Pn)
        y_Pn, g_Pn = matrix @ y_Pn + after_Pn - g_Pn, after_Pn
        wanted_PN = np.hstack([matrix @ x_Pn, matrix @ y_Pn])
        np.testing.assert_allclose(averaged_PN.numpy(), wanted_PN, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(kept.gradient_n.numpy(), g_Pn, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(averaged_PN[:, FEATURES + 1 :].sum(0).numpy(), g_Pn.sum(0), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_it_comes_to_the_minimum_where_plain_gossip_does_not() -> None:
    best_n = optimum()

    def apart(algorithm: Algorithm[Any, Any, Any], rounds: int) -> float:
        averaged_PN, _ = played(algorithm, rounds)[-1]
        return float(np.abs(averaged_PN[:, : FEATURES + 1].numpy() - best_n).max())

    assert apart(GradientTracking(BENCH), 1500) < 1e-7
    assert apart(FullAveraging(BENCH), 500) > 0.1


def test_a_peer_alone_is_a_row_of_the_block() -> None:
    algorithm, block, start_Pn = GradientTracking(BENCH), work(), torch.rand(PEERS, FEATURES + 1, dtype=torch.float64)
    client = algorithm.start_client(start_Pn, torch.ones(PEERS))
    received = Tracked(start_Pn, start_Pn.roll(1, 0))
    _, sent = algorithm.train(client, received, block, KEYS)
    for p in range(PEERS):
        _, own = algorithm.train(take_rows(client, p), take_rows(received, p), block.peer(p), (p,))
        torch.testing.assert_close(combined(own), combined(sent)[p])


def test_what_does_not_fit_is_said() -> None:
    module = nn.Sequential(mlp(), nn.BatchNorm1d(3))
    with pytest.raises(AlgorithmError, match="running statistics"):
        GradientTracking(TrainingContext.of(module, LOSSES["cross-entropy"], OptimizerChoice("SGD", {"lr": 0.1})))
    with pytest.raises(AlgorithmError, match="plain gradient steps"):
        GradientTracking(TrainingContext.of(MODULE, LOSSES["mean-squared-error"], OptimizerChoice("Adam", {"lr": 0.1})))
