"""NoLoCo as its paper writes it, with pairs as matrices, beside the algorithm; the bound on gamma, played."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.leaves import combined, take_rows
from fedpeer.algorithms.local_training import FullAveraging, TrainingState
from fedpeer.algorithms.noloco import NoLoCo, SlowWeights
from fedpeer.algorithms.outer_optimizers import OuterOptimizer
from fedpeer.algorithms.outer_steps import OuterRule, OuterRules, OuterSteps
from fedpeer.algorithms.servers.models import ServerModel
from tests.algorithms.test_gossip_methods import FEATURES, KEYS, LR, PEERS, STEPS, Made, Vector, context, slope, work

ALPHA, BETA, GAMMA = 0.5, 0.7, 1.1


def pairs(count: int, draws: np.random.Generator) -> Vector:
    """Return the matrix (P, P) of random pairs, in which both have one half; with an odd number one is alone."""
    order, matrix = draws.permutation(count), np.eye(count)
    for a, b in zip(order[: count // 2], order[count // 2 :], strict=False):
        matrix[[a, a, b, b], [a, b, a, b]] = 0.5
    return matrix


def played(algorithm: Made, rounds: int) -> list[tuple[Tensor, Tensor | None]]:
    """Return what all peers send (P, n), and the models that they derive after it, in each round from 0."""
    start_Pn, draws = torch.zeros(PEERS, FEATURES, dtype=torch.float64), np.random.default_rng(5)
    client, received = algorithm.start_client(start_Pn, torch.ones(PEERS)), algorithm.start_averaged(start_Pn)
    found = []
    for round in range(rounds):
        client, sent = algorithm.train(client, received, replace(work(round), round=round + 1), KEYS)
        received = ServerModel(torch.from_numpy(pairs(PEERS, draws)) @ sent.model_n)
        found.append((sent.model_n, algorithm.derived_model(client, received)))
    return found


def trained(phi_Pn: Vector, round: int) -> Vector:
    """Return the fast weights (P, n) after a round's steps from phi."""
    theta_Pn = phi_Pn
    for step in range(STEPS):
        theta_Pn = theta_Pn - LR * slope(theta_Pn, round, step)
    return theta_Pn


@pytest.mark.slow
def test_rounds_are_the_papers_with_two_averages() -> None:
    """The paper averages phi and Delta; the mean over the peers takes the outer step of the mean."""
    phi_Pn, delta_Pn = np.zeros((2, PEERS, FEATURES))
    mean_n, moved_n, draws = np.zeros(FEATURES), np.zeros(FEATURES), np.random.default_rng(5)
    algorithm = NoLoCo(context(), outer_lr=BETA, momentum=ALPHA, gamma=GAMMA)
    for round, (_, model_Pn) in enumerate(played(algorithm, 12)):
        outer_Pn, matrix = trained(phi_Pn, round) - phi_Pn, pairs(PEERS, draws)
        delta_Pn = ALPHA * delta_Pn + BETA * matrix @ outer_Pn - GAMMA * (phi_Pn - matrix @ phi_Pn)
        phi_Pn = phi_Pn + delta_Pn
        assert model_Pn is not None
        np.testing.assert_allclose(model_Pn.numpy(), phi_Pn, rtol=0, atol=1e-12)
        moved_n = ALPHA * moved_n + BETA * outer_Pn.mean(0)
        mean_n = mean_n + moved_n
        np.testing.assert_allclose(phi_Pn.mean(0), mean_n, rtol=0, atol=1e-12)
    assert np.abs(phi_Pn - mean_n).max() > 1e-2, "the peers differ"


@pytest.mark.slow
def test_with_gamma_as_beta_they_are_outer_steps_of_sgd() -> None:
    rules = OuterRules(
        (OuterRule(OuterOptimizer(BETA, ALPHA, nesterov=False), 1),),
        torch.zeros(1, FEATURES, dtype=torch.int8),
        torch.zeros(1, dtype=torch.int64),
    ).alone(0)
    ours = played(NoLoCo(context(), outer_lr=BETA, momentum=ALPHA), 6)
    outer = played(OuterSteps(FullAveraging(context()), rules), 6)
    for (sent_Pn, _), (same_Pn, _) in zip(ours, outer, strict=True):
        torch.testing.assert_close(sent_Pn, same_Pn, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "gamma", "dies_out"), [(0.5, 1.4, True), (0.5, 1.7, False), (0.0, 1.8, True)])
def test_without_training_differences_die_out_below_the_bound(alpha: float, gamma: float, dies_out: bool) -> None:
    """The bound is 2 (1 - alpha^2): 1.5 and 2 here. Peers that do not train send their slow weights."""
    peers, draws = 200, np.random.default_rng(1)
    algorithm = NoLoCo(context(), outer_lr=0.7, momentum=alpha, gamma=gamma)
    slow_Pn = torch.from_numpy(draws.normal(size=(peers, 20)))
    nothing = TrainingState(torch.zeros(peers, 0), torch.zeros(peers, dtype=torch.bool))
    client = SlowWeights(nothing, slow_Pn, torch.zeros_like(slow_Pn))
    for _ in range(150):
        averaged = ServerModel(torch.from_numpy(pairs(peers, draws)) @ client.slow_n)
        after_Pn = algorithm.derived_model(client, averaged)
        client = SlowWeights(nothing, after_Pn, after_Pn - client.slow_n)
    spread = float((client.slow_n - client.slow_n.mean(0)).norm() / (slow_Pn - slow_Pn.mean(0)).norm())
    assert spread < 0.1 if dies_out else spread > 10
    torch.testing.assert_close(client.slow_n.mean(0), slow_Pn.mean(0))


def test_a_peer_alone_is_a_row_of_the_block() -> None:
    algorithm, x_Pn = NoLoCo(context(momentum=0.9), gamma=GAMMA), torch.rand(PEERS, FEATURES, dtype=torch.float64)
    client, received = algorithm.start_client(x_Pn, torch.ones(PEERS)), ServerModel(x_Pn.roll(1, 0))
    after, together = algorithm.train(client, received, work(0), KEYS)
    derived_Pn = algorithm.derived_model(after, together)
    for p in range(PEERS):
        own, alone = algorithm.train(take_rows(client, p), take_rows(received, p), work(0).peer(p), (p,))
        torch.testing.assert_close(combined(together)[p], combined(alone))
        torch.testing.assert_close(derived_Pn[p], algorithm.derived_model(own, alone))


def test_what_does_not_fit_is_said() -> None:
    for settings, text in (
        ({"outer_lr": 0.0}, "outer_lr = 0: write a number above 0"),
        ({"gamma": -1.0}, "gamma = -1: write a number above 0"),
        ({"momentum": 1.0}, "momentum = 1: write 0 up to less than 1"),
    ):
        with pytest.raises(AlgorithmError, match=text):
            NoLoCo(context(), **settings)
