"""Objectives, gap, subproblem and theta against autograd, weak duality and the bound of the paper's lemma."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.algorithms.mocha import dual, sdca
from fedpeer.algorithms.mocha.losses import HINGE, LOGISTIC, DualLoss
from tests.algorithms.mocha.problem_factory import LOSSES, covariance, feasible, normal, problem_of
from tests.reference import mocha as reference

SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_the_gap_is_primal_plus_dual_and_never_negative(loss: DualLoss, seed: int) -> None:
    draws = np.random.default_rng(seed)
    problem = problem_of(loss, draws)
    state = feasible(problem, draws)
    found = reference.gap(problem, state.alphas, state.v_TF)
    total = reference.primal(problem, state.v_TF) + reference.dual(problem, state.alphas)
    assert found == pytest.approx(total, rel=1e-9)
    assert found >= 0
    anywhere = reference.primal_of_w(problem, normal(draws, 3, 4))
    assert anywhere >= -reference.dual(problem, state.alphas)


def test_w_is_the_gradient_of_the_conjugate_regulariser_and_m_its_hessian() -> None:
    draws = np.random.default_rng(1)
    coupling_TT, v_TF = covariance(draws, 3), normal(draws, 3, 2).requires_grad_()
    (gradient_TF,) = torch.autograd.grad(reference.conjugate_regulariser(v_TF, coupling_TT), v_TF)
    torch.testing.assert_close(gradient_TF, dual.w_of(v_TF.detach(), coupling_TT))


def test_a_regulariser_and_its_conjugate_meet_at_w_of_alpha() -> None:
    draws = np.random.default_rng(2)
    coupling_TT, v_BTF = covariance(draws, 3), normal(draws, 5, 3, 2)
    w_BTF = dual.w_of(v_BTF, coupling_TT)
    both_B = reference.regulariser(w_BTF, coupling_TT) + reference.conjugate_regulariser(v_BTF, coupling_TT)
    torch.testing.assert_close(both_B, (w_BTF * v_BTF).sum((-2, -1)))


def test_w_from_duals_and_any_w_have_the_same_primal() -> None:
    draws = np.random.default_rng(3)
    problem = problem_of(LOGISTIC, draws)
    state = feasible(problem, draws)
    w_TF = dual.w_of(state.v_TF, problem.coupling_TT)
    assert reference.primal(problem, state.v_TF) == pytest.approx(reference.primal_of_w(problem, w_TF), rel=1e-12)


@pytest.mark.slow
@given(seed=SEEDS, whole=st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_subproblems_together_bound_the_dual_from_above(seed: int, whole: bool) -> None:
    """Lemma: sum_t G_t(delta) >= D(alpha + delta), with equality at delta = 0, for one sigma' and for one per task."""
    draws = np.random.default_rng(seed)
    problem = problem_of(HINGE, draws)
    now, new = feasible(problem, draws), feasible(problem, draws)
    sigma_T = dual.sigma_prime(problem.coupling_TT).expand(3) if whole else dual.sigma_primes(problem.coupling_TT)
    curvature_T = (sigma_T * problem.coupling_TT.diagonal()).tolist()
    w_TF = dual.w_of(now.v_TF, problem.coupling_TT)
    constant = reference.conjugate_regulariser(now.v_TF, problem.coupling_TT).item() / 3

    def together(alphas: tuple[torch.Tensor, ...]) -> float:
        rows = zip(problem.tasks, now.alphas, alphas, w_TF, curvature_T, strict=True)
        return sum(dual.subproblem(HINGE, *row, constant) for row in rows)

    assert together(now.alphas) == pytest.approx(reference.dual(problem, now.alphas), rel=1e-9, abs=1e-9)
    assert together(new.alphas) >= reference.dual(problem, new.alphas) - 1e-9


def test_sigma_prime_is_one_for_unrelated_tasks_and_their_number_for_equal_ones() -> None:
    assert dual.sigma_primes(torch.diag(torch.tensor([1.0, 5.0]))).tolist() == [1.0, 1.0]
    assert dual.sigma_prime(torch.ones(4, 4)).item() == 4.0
    assert dual.sigma_primes(torch.tensor([[2.0, -1.0], [-1.0, 4.0]])).tolist() == [1.5, 1.25]


def test_theta_is_zero_at_the_optimum_and_one_for_a_dropped_node() -> None:
    assert dual.theta(-3.0, 1.0, -3.0) == 0.0
    assert dual.theta(1.0, 1.0, -3.0) == 1.0
    assert dual.theta(0.0, 1.0, -3.0) == 0.75
    assert dual.theta(-3.0, -3.0, -3.0) == 0.0


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_bound_of_theta_is_above_theta_and_comes_down_to_it(loss: DualLoss) -> None:
    draws = np.random.default_rng(4)
    problem = problem_of(loss, draws, (12,))
    (task,), (alpha_S,) = problem.tasks, feasible(problem, draws).alphas
    w_F, curvature = normal(draws, 4), 0.7

    def after(steps: int) -> tuple[float, float]:
        new_S, v_F = sdca.solve(loss, task, alpha_S, w_F, curvature, sdca.cyclic(np.arange(12), steps))
        value = dual.subproblem(loss, task, alpha_S, new_S, w_F, curvature)
        return value, dual.gap_of(loss, task, new_S, w_F + curvature * v_F)

    (start, _), (optimum, last) = after(0), after(24_000)
    assert last < 1e-9
    bounds = []
    for steps in (1, 6, 12, 48, 480):
        value, gap = after(steps)
        bounds.append(dual.theta_bound(value, start, gap))
        assert dual.theta(value, start, optimum) <= bounds[-1] + 1e-9
    assert bounds[-1] < 1e-2 < bounds[0] <= 1
