"""The relations of tasks are the minimisers that they should be: closed forms, other candidates, optimality."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedpeer.algorithms.mocha import omega
from tests.algorithms.mocha.problem_factory import covariance, normal
from tests.reference import mocha as reference
from tests.reference.mocha import regulariser

SEEDS = st.integers(0, 2**32 - 1)


def cost(w_TF: Tensor, sigma_TT: Tensor) -> float:
    """Return tr(W^T Sigma^-1 W)."""
    fitted_TF: Tensor = torch.linalg.solve(sigma_TT, w_TF)
    return (w_TF * fitted_TF).sum().item()


@pytest.mark.slow
@given(seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_no_other_covariance_of_trace_one_fits_better(seed: int) -> None:
    draws = np.random.default_rng(seed)
    w_TF = normal(draws, 3, 5)
    sigma_TT = omega.trace_constrained(w_TF, floor=0.0)
    assert sigma_TT.trace().item() == pytest.approx(1)
    assert cost(w_TF, sigma_TT) == pytest.approx(torch.linalg.svdvals(w_TF).sum().item() ** 2, rel=1e-9)
    assert cost(w_TF, covariance(draws, 3)) >= cost(w_TF, sigma_TT)


@pytest.mark.parametrize("w_TF", [torch.zeros(4, 2), torch.ones(4, 2), torch.randn(4, 2)], ids=["zero", "one", "two"])
def test_a_w_of_few_directions_leaves_a_covariance_that_can_be_used(w_TF: Tensor) -> None:
    sigma_TT = omega.trace_constrained(w_TF.double(), floor=1e-3)
    assert sigma_TT.trace().item() == pytest.approx(1)
    assert torch.linalg.eigvalsh(sigma_TT).min().item() > 1e-3 / 4 * 0.999
    if not w_TF.any():
        torch.testing.assert_close(sigma_TT, torch.eye(4, dtype=torch.float64) / 4)


def test_mean_regularised_is_the_distance_to_the_mean_model() -> None:
    w_TF = normal(np.random.default_rng(1), 5, 3)
    found = (w_TF * (omega.mean_regularised(5) @ w_TF)).sum()
    torch.testing.assert_close(found, (w_TF - w_TF.mean(0)).square().sum())


@pytest.mark.slow
@given(seed=SEEDS, eta=st.floats(0.01, 3), clusters=st.floats(0.1, 4))
@settings(max_examples=60, deadline=None)
def test_no_other_clustering_fits_better(seed: int, eta: float, clusters: float) -> None:
    draws = np.random.default_rng(seed)
    w_TF = normal(draws, 4, 6)
    found = omega.clustered(w_TF, eta, clusters)
    assert found.q_T.sum().item() == pytest.approx(clusters, rel=1e-9)
    assert ((found.q_T >= 0) & (found.q_T <= 1)).all()
    torch.testing.assert_close(torch.linalg.eigvalsh(found.q_TT), found.q_T.sort().values, atol=1e-9, rtol=0)
    # Another clustering: as many clusters, more even or with other directions, in a random basis or in this one.
    basis_TT = torch.linalg.qr(normal(draws, 4, 4)).Q if draws.random() < 0.5 else torch.linalg.eigh(found.q_TT)[1]
    even_T = torch.full_like(found.q_T, clusters / 4)
    other_T = found.q_T[torch.from_numpy(draws.permutation(4))].lerp(even_T, draws.random())
    other_TT = (basis_TT * other_T) @ basis_TT.T + eta * torch.eye(4, dtype=torch.float64)
    assert cost(w_TF, found.covariance_TT) <= cost(w_TF, other_TT) * (1 + 1e-9)


def test_clusters_beyond_the_directions_of_w_are_shared_by_the_others() -> None:
    found = omega.clustered(torch.tensor([[3.0], [0.0], [0.0]], dtype=torch.float64), 0.5, 2)
    torch.testing.assert_close(found.q_TT, torch.diag(torch.tensor([1.0, 0.5, 0.5], dtype=torch.float64)))
    nothing = omega.clustered(torch.zeros(4, 2, dtype=torch.float64), 0.5, 3)
    torch.testing.assert_close(nothing.q_T, torch.full((4,), 0.75, dtype=torch.float64))
    everything = omega.clustered(torch.ones(4, 2, dtype=torch.float64), 0.5, 4)
    torch.testing.assert_close(everything.q_T, torch.ones(4, dtype=torch.float64))


def test_many_at_once_are_each_alone() -> None:
    w_BTF = normal(np.random.default_rng(2), 3, 4, 2)
    traced_BTT, clustered = omega.trace_constrained(w_BTF), omega.clustered(w_BTF, 0.3, 2)
    for at, w_TF in enumerate(w_BTF):
        torch.testing.assert_close(traced_BTT[at], omega.trace_constrained(w_TF))
        torch.testing.assert_close(clustered.covariance_TT[at], omega.clustered(w_TF, 0.3, 2).covariance_TT)


@pytest.mark.parametrize("lambda2", [0.0, 0.7])
def test_both_ways_to_the_coupling_are_half_the_inverse_of_the_penalty(lambda2: float) -> None:
    draws = np.random.default_rng(3)
    sigma_TT, w_TF = covariance(draws, 3), normal(draws, 3, 4)
    a_TT = omega.penalty(reference.precision_of(sigma_TT), 0.3, lambda2)
    coupling_TT = omega.coupling_of_penalty(a_TT)
    torch.testing.assert_close(omega.coupling_of_covariance(sigma_TT, 0.3, lambda2), coupling_TT)
    torch.testing.assert_close(regulariser(w_TF, coupling_TT), (w_TF * (a_TT @ w_TF)).sum())


def test_a_singular_covariance_has_a_coupling() -> None:
    sigma_TT = torch.ones(2, 2, dtype=torch.float64) / 2
    torch.testing.assert_close(omega.coupling_of_covariance(sigma_TT, 0.5), sigma_TT)


@pytest.mark.slow
@given(
    seed=SEEDS, lambda2=st.floats(0.1, 3), scale=st.sampled_from([1e-4, 1.0, 1e3]), features=st.sampled_from([2, 30])
)
@settings(max_examples=12, deadline=None)
def test_a_sparse_precision_is_optimal(seed: int, lambda2: float, scale: float, features: int) -> None:
    """The subgradient of tr(S Omega) - log|Omega| + rho |Omega|_1 contains 0: S - Sigma + rho sign(Omega)."""
    draws = np.random.default_rng(seed)
    w_TF = normal(draws, 5, 5) @ normal(draws, 5, features) * scale
    lambda2 = lambda2 * scale**2 * features
    found = omega.sparse_precision(w_TF, 1.0, lambda2)
    found_TT = found.omega_TT
    assert 0 <= found.excess <= 1e-6 * features
    rho = lambda2 / features
    slope_TT = (w_TF @ w_TF.T / features - torch.linalg.inv(found_TT)) / rho
    used = found_TT != 0
    torch.testing.assert_close(slope_TT[used], -found_TT[used].sign(), atol=1e-4, rtol=0)
    assert slope_TT.abs().max() <= 1 + 1e-4


def test_a_strong_penalty_leaves_no_relation_and_w_zero_neither() -> None:
    w_TF = normal(np.random.default_rng(4), 4, 9)
    wanted_T = 1 / (w_TF.square().sum(1) / 9 + 1e3 / 9)
    torch.testing.assert_close(omega.sparse_precision(w_TF, 1.0, 1e3).omega_TT, torch.diag(wanted_T))
    at_zero_TT = omega.sparse_precision(0 * w_TF, 2.0, 9.0).omega_TT
    torch.testing.assert_close(at_zero_TT, torch.diag(torch.full((4,), 2.0).double()))


@pytest.mark.slow
@given(seed=SEEDS, steps=st.sampled_from([1, 3, 10, 30, 100]), weak=st.sampled_from([1e-3, 1e-2, 0.3]))
@settings(max_examples=10, deadline=None)
def test_too_few_steps_leave_a_precision_that_says_how_good_it_is(seed: int, steps: int, weak: float) -> None:
    w_TF = normal(np.random.default_rng(seed), 6, 8)

    def objective(omega_TT: Tensor) -> float:
        fit = (w_TF * (omega_TT @ w_TF)).sum() - 8 * torch.logdet(omega_TT)
        return (0.5 * fit + weak * omega_TT.abs().sum()).item()

    best = omega.sparse_precision(w_TF, 0.5, weak)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(omega, "LASSO_STEPS_MAX", steps)
        found = omega.sparse_precision(w_TF, 0.5, weak)
    assert torch.linalg.cholesky_ex(found.omega_TT).info == 0
    above = objective(found.omega_TT) - objective(best.omega_TT)
    assert above <= found.excess + 1e-9
    assert found.excess < 4 * 6 * 25, "it says something: less than the objective's own size"
