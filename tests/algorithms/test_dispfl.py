"""DisPFL as its paper writes it, weight by weight, beside the algorithm; its masks, and their densities."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.dispfl import DisPfl, SparseModel, kernel_densities
from fedpeer.algorithms.leaves import combined, divided, take_rows
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.training_context import TrainingContext
from tests.algorithms.client_factory import mlp

PEERS, EXAMPLES, FEATURES, HIDDEN, STEPS, SIZE, LR, ROUNDS = 5, 12, 4, 3, 3, 4, 0.05, 8
BASE, HEAD = FEATURES * HIDDEN, HIDDEN
#: Two linear layers; the bias of the second is a tensor of one dimension, which stays whole.
MODULE = nn.Sequential(
    nn.Linear(FEATURES, HIDDEN, bias=False, dtype=torch.float64), nn.Linear(HIDDEN, 1, dtype=torch.float64)
)
KEYS = tuple(range(PEERS))
Vector = NDArray[np.float64]


def context(rounds: int = ROUNDS) -> TrainingContext:
    made = TrainingContext.of(MODULE, LOSSES["mean-squared-error"], OptimizerChoice("SGD", {"lr": LR}))
    return replace(made, rounds=rounds)


@cache
def work(round: int) -> Batches:
    draws = torch.Generator().manual_seed(round)
    x_NF = torch.randn(PEERS * EXAMPLES, FEATURES, generator=draws, dtype=torch.float64)
    index = torch.randint(0, len(x_NF), (PEERS, STEPS, SIZE), generator=draws)
    y = torch.randn(PEERS, STEPS, SIZE, 1, generator=draws, dtype=torch.float64)
    return Batches(x_NF, index, y, round=round + 1)


def slope(x_n: Vector, round: int, peer: int, step: int) -> Vector:
    """Return the gradient (n,) of mean((v . U x + b - y)^2), by hand."""
    one = work(round).peer(peer)
    x_MF, y_M = one.inputs(step).numpy(), one.targets(step).numpy()[:, 0]
    base_HF, head_H, bias = x_n[:BASE].reshape(HIDDEN, FEATURES), x_n[BASE : BASE + HEAD], x_n[-1]
    apart_M = 2 / SIZE * (x_MF @ base_HF.T @ head_H + bias - y_M)
    of_base_HF = np.outer(head_H, apart_M @ x_MF)
    return np.concatenate([of_base_HF.ravel(), apart_M @ (x_MF @ base_HF.T), [apart_M.sum()]])


def exchanged(mask_n: Vector, x_n: Vector, slope_n: Vector, rate: float) -> Vector:
    """Return the mask after pruning and growing, one weight after the other."""
    mask_n = mask_n.copy()
    for places in (range(BASE), range(BASE, BASE + HEAD)):
        kept = [place for place in places if mask_n[place]]
        count = math.ceil(rate * len(kept))
        for place in sorted(kept, key=lambda place: abs(x_n[place]))[:count]:
            mask_n[place] = 0
        out = [place for place in places if not mask_n[place]]
        for place in sorted(out, key=lambda place: -abs(slope_n[place]))[:count]:
            mask_n[place] = 1
    return mask_n


def mixing() -> Vector:
    """Return the matrix (P, P) of a ring in which a peer keeps a third."""
    return np.asarray(sum(np.roll(np.eye(PEERS), shift, 1) for shift in (-1, 0, 1)) / 3)


def start_n() -> Vector:
    return np.random.default_rng(1).normal(size=BASE + HEAD + 1)


@pytest.mark.slow
@pytest.mark.parametrize("prune", [0.5, 0.0])
def test_rounds_are_algorithms_1_and_2_of_the_paper(prune: float) -> None:
    algorithm, matrix, neighbors = DisPfl(context(), density=0.4, prune=prune), mixing(), mixing() > 0
    begun_Pn = torch.from_numpy(start_n()).expand(PEERS, -1)
    client, received = algorithm.start_client(begun_Pn, torch.ones(PEERS)), algorithm.start_averaged(begun_Pn)
    changed = 0
    for round in range(ROUNDS):
        before = client.mask_n.numpy().astype(float)
        client, sent = algorithm.train(client, received, work(round), KEYS)
        mask_Pn = sent.mask_n.numpy()
        if round == 0:  # masks are drawn: 4 of 12 weights, 2 of 3, and the bias
            assert (before == 1).all()
            assert (mask_Pn[:, :-1].sum(-1) == 6).all()
            assert (mask_Pn[:, -1] == 1).all()
            assert len(np.unique(mask_Pn, axis=0)) == PEERS
            x_Pn = np.tile(start_n(), (PEERS, 1))
        else:
            np.testing.assert_array_equal(mask_Pn, before)
        x_Pn = x_Pn * mask_Pn
        rate = prune / 2 * (1 + math.cos(math.pi * round / ROUNDS))
        for p in range(PEERS):
            for step in range(STEPS):
                x_Pn[p] = x_Pn[p] - LR * mask_Pn[p] * slope(x_Pn[p], round, p, step)
            wanted_n = exchanged(mask_Pn[p], x_Pn[p], slope(x_Pn[p], round, p, STEPS - 1), rate)
            np.testing.assert_array_equal(client.mask_n[p].numpy(), wanted_n)
        changed += int((client.mask_n.numpy() != mask_Pn).sum())
        np.testing.assert_allclose(sent.kept_n.numpy(), x_Pn, rtol=0, atol=1e-12)
        averaged_Pn = np.zeros_like(x_Pn)
        for p in range(PEERS):
            for place in range(x_Pn.shape[1]):
                having = [q for q in range(PEERS) if neighbors[p, q] and mask_Pn[q, place]]
                averaged_Pn[p, place] = np.mean([x_Pn[q, place] for q in having]) if having else 0
        received = divided(algorithm.start_averaged(begun_Pn[0]), torch.from_numpy(matrix) @ combined(sent))
        x_Pn = averaged_Pn
        derived_Pn = algorithm.derived_model(client, received).numpy()
        np.testing.assert_allclose(derived_Pn, x_Pn * client.mask_n.numpy(), rtol=0, atol=1e-12)
    assert (changed > 0) == (prune > 0)
    assert (client.mask_n.numpy().sum(-1) == 7).all(), "as many weights as in the beginning"


def test_what_nobody_has_is_0_and_rounding_is_nobody() -> None:
    model = SparseModel(torch.tensor([0.3, 0.1, 1e-8, 0.0]), torch.tensor([1.0, 1 / 3, 3e-7, 0.0]))
    torch.testing.assert_close(model.mean_n, torch.tensor([0.3, 0.3, 0.0, 0.0]))


@pytest.mark.slow
def test_whole_masks_are_full_averaging() -> None:
    algorithm = DisPfl(context(), density=1.0)
    begun_Pn = torch.from_numpy(start_n()).expand(PEERS, -1)
    client, received = algorithm.start_client(begun_Pn, torch.ones(PEERS)), algorithm.start_averaged(begun_Pn)
    x_Pn = np.tile(start_n(), (PEERS, 1))
    for round in range(3):
        client, sent = algorithm.train(client, received, work(round), KEYS)
        for p in range(PEERS):
            for step in range(STEPS):
                x_Pn[p] = x_Pn[p] - LR * slope(x_Pn[p], round, p, step)
        x_Pn = mixing() @ x_Pn
        received = divided(algorithm.start_averaged(begun_Pn[0]), torch.from_numpy(mixing()) @ combined(sent))
        np.testing.assert_allclose(algorithm.derived_model(client, received).numpy(), x_Pn, rtol=0, atol=1e-12)


def test_densities_are_in_proportion_to_sum_over_product_and_at_most_1() -> None:
    """505 of 1,010 weights stay: the 10 of the small layer whole, 495 of the 1,000 of the other."""
    assert kernel_densities([(10, 100), (10, 1)], 0.5) == pytest.approx([0.495, 1.0])
    first, second = kernel_densities([(20, 30), (30, 40)], 0.2)
    assert first / second == pytest.approx((50 / 600) / (70 / 1200))
    assert 600 * first + 1200 * second == pytest.approx(0.2 * 1800)
    assert kernel_densities([(3, 4), (8, 4, 5, 5)], 1.0) == pytest.approx([1.0, 1.0])


@pytest.mark.slow
def test_a_peer_alone_is_a_row_of_the_block() -> None:
    """This also holds where only some peers of the block have drawn their masks."""
    algorithm = DisPfl(context(), density=0.4)
    x_Pn = torch.rand(PEERS, BASE + HEAD + 1, dtype=torch.float64)
    client, received = algorithm.start_client(x_Pn, torch.ones(PEERS)), algorithm.start_averaged(x_Pn)
    client, _ = algorithm.train(client, received, work(0), KEYS)
    client = replace(client, drawn=torch.arange(PEERS) % 2 == 0)
    after, together = algorithm.train(client, received, work(1), KEYS)
    for p in range(PEERS):
        own, alone = algorithm.train(take_rows(client, p), take_rows(received, p), work(1).peer(p), (p,))
        torch.testing.assert_close(combined(together)[p], combined(alone))
        assert torch.equal(after.mask_n[p], own.mask_n)


def test_what_does_not_fit_is_said() -> None:
    loss = LOSSES["cross-entropy"]
    with pytest.raises(AlgorithmError, match="running statistics"):
        DisPfl(TrainingContext.of(nn.Sequential(mlp(), nn.BatchNorm1d(3)), loss, OptimizerChoice("SGD", {"lr": 0.1})))
    with pytest.raises(AlgorithmError, match="plain gradient steps"):
        DisPfl(TrainingContext.of(mlp(), loss, OptimizerChoice("Adam", {"lr": 0.1})))
    with pytest.raises(AlgorithmError, match="density = 0: write a number above 0"):
        DisPfl(context(), density=0.0)
    with pytest.raises(AlgorithmError, match="prune = 1: write 0 up to less than 1"):
        DisPfl(context(), prune=1.0)
