"""The local solver and its rounds against slow twins and other libraries' solvers, and laws for all budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from torch import Tensor

from fedpeer.algorithms.mocha import dual, omega, sdca
from fedpeer.algorithms.mocha.dual import DualTask
from fedpeer.algorithms.mocha.losses import HINGE, LOGISTIC, SQUARED, DualLoss, coordinate, smoothed_hinge
from fedpeer.algorithms.mocha.sdca import cyclic, solve
from tests.algorithms.mocha.problem_factory import LOSSES, feasible, normal, problem_of, tasks_of
from tests.reference import mocha as reference
from tests.reference.mocha import DualProblem, State, minimise, round_of

SEEDS = st.integers(0, 2**32 - 1)


def slowly(
    loss: DualLoss, task: DualTask, alpha_S: Tensor, w_F: Tensor, curvature: float, order: Sequence[int]
) -> Tensor:
    """Solve by the definition: compute everything again from the dual variables before each step."""
    now_S = alpha_S.clone()
    for i in order:
        r_F = w_F + curvature * task.weight * ((now_S - alpha_S)[:, None] * task.x_SF).sum(0)
        score, square = (task.x_SF[i] * r_F).sum().item(), (task.x_SF[i] ** 2).sum().item()
        label, scaled = task.y_S[i].item(), curvature * task.weight * square
        now_S[i] = coordinate(loss.code, loss.smoothing, now_S[i].item(), label, score, scaled)
    return now_S


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("ratio", [0, 2], ids=["by-features", "by-gram"])
def test_both_ways_to_take_the_steps_are_the_definition(
    loss: DualLoss, ratio: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdca, "EXAMPLES_BY_GRAM", ratio)
    draws = np.random.default_rng(5)
    (task,) = tasks_of(draws, (8,), 4, mean=True)
    alpha_S, w_F = task.y_S * torch.from_numpy(draws.random(8)), normal(draws, 4)
    order_H = cyclic(draws.permutation(8), 21)
    untouched_S, untouched_F = alpha_S.clone(), w_F.clone()
    new_S, delta_v_F = solve(loss, task, alpha_S, w_F, 0.8, order_H)
    torch.testing.assert_close(new_S, slowly(loss, task, alpha_S, w_F, 0.8, order_H.tolist()), atol=1e-11, rtol=0)
    torch.testing.assert_close(delta_v_F, (new_S - alpha_S) @ task.x_SF / 8)
    assert torch.equal(alpha_S, untouched_S)
    assert torch.equal(w_F, untouched_F)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_gap_closes_to_a_millionth_under_a_fixed_omega(loss: DualLoss) -> None:
    """The coupling is the paper's, which draws tasks to their mean."""
    draws = np.random.default_rng(6)
    coupling_TT = omega.coupling_of_penalty(omega.penalty(omega.mean_regularised(4), 2.0, 0.5))
    problem = DualProblem(loss, tasks_of(draws, (12, 6, 9, 15), 5), coupling_TT)
    state = optimum(problem, 1e-6)
    assert 0 <= reference.gap(problem, state.alphas, state.v_TF) <= 1e-6
    assert reference.primal(problem, state.v_TF) == pytest.approx(-reference.dual(problem, state.alphas), abs=1e-6)


def optimum(problem: DualProblem, gap_wanted: float = 1e-10) -> State:
    draws = np.random.default_rng(0)
    start = State.zero(problem.tasks)
    return minimise(problem, start, gap_wanted=gap_wanted, rounds_max=5000, passes=5, draws=draws)


def best_w(problem: DualProblem) -> Tensor:
    return dual.w_of(optimum(problem, 1e-11).v_TF, problem.coupling_TT)


def test_squared_losses_of_related_tasks_have_the_closed_solution() -> None:
    """The solution obeys one linear system in all T F weights: c_t X_t^T (X_t w_t - y_t) + (M^-1 W)_t = 0."""
    draws = np.random.default_rng(7)
    problem = problem_of(SQUARED, draws)
    inverse_TT = torch.linalg.inv(problem.coupling_TT)
    normal_nn = torch.kron(inverse_TT.contiguous(), torch.eye(4, dtype=torch.float64))
    for t, task in enumerate(problem.tasks):
        normal_nn[4 * t : 4 * t + 4, 4 * t : 4 * t + 4] += task.x_SF.T @ task.x_SF
    right_n = torch.cat([task.x_SF.T @ task.y_S for task in problem.tasks])
    torch.testing.assert_close(best_w(problem).ravel(), torch.linalg.solve(normal_nn, right_n), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 3])
def test_unrelated_tasks_are_what_others_solve_one_by_one(tasks: int) -> None:
    """With Omega = I, each task is a support vector machine or a logistic regression with |w|^2 / 2 / C."""
    draws = np.random.default_rng(8)
    made = tasks_of(draws, (30,) * tasks, 3)
    coupling_TT = omega.coupling_of_penalty(omega.penalty(torch.eye(tasks, dtype=torch.float64), 0.3, 0.2))
    machine = LinearSVC(loss="hinge", dual=True, C=1.0, fit_intercept=False, tol=1e-9, max_iter=1_000_000)
    regression = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=10_000)
    for loss, other in ((HINGE, machine), (LOGISTIC, regression)):
        found_TF = best_w(DualProblem(loss, made, coupling_TT))
        for task, w_F in zip(made, found_TF, strict=True):
            wanted_F = torch.from_numpy(other.fit(task.x_SF.numpy(), task.y_S.numpy()).coef_[0])
            torch.testing.assert_close(w_F, wanted_F, atol=2e-5, rtol=0)


@pytest.mark.slow
def test_a_general_minimiser_finds_no_lower_primal() -> None:
    draws = np.random.default_rng(9)
    problem = problem_of(smoothed_hinge(0.5), draws, (10, 6), 3)
    found = minimize(
        lambda w: reference.primal_of_w(problem, torch.from_numpy(w).reshape(2, 3)),
        np.zeros(6),
        method="BFGS",
        tol=1e-9,
    )
    assert reference.primal(problem, optimum(problem).v_TF) == pytest.approx(found.fun, rel=1e-7)


@pytest.mark.slow
@given(seed=SEEDS, loss=st.sampled_from(LOSSES), whole=st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_dual_never_rises_whatever_the_budgets_and_whoever_is_dropped(
    seed: int, loss: DualLoss, whole: bool
) -> None:
    draws = np.random.default_rng(seed)
    problem = problem_of(loss, draws)
    state = feasible(problem, draws)
    sigma_T = dual.sigma_prime(problem.coupling_TT).expand(3) if whole else dual.sigma_primes(problem.coupling_TT)
    points_T = np.array([len(task.y_S) for task in problem.tasks])
    for _ in range(5):
        steps_T = sdca.budgets(points_T, (0.0, 2.0), np.full(3, 0.3), draws)
        orders = [cyclic(draws.permutation(n), steps) for n, steps in zip(points_T, steps_T, strict=True)]
        after = round_of(problem, state, sigma_T, orders)
        assert reference.dual(problem, after.alphas) <= reference.dual(problem, state.alphas) + 1e-9
        torch.testing.assert_close(after.v_TF, reference.v_of(problem.tasks, after.alphas))
        for t in np.flatnonzero(steps_T == 0):
            assert torch.equal(after.alphas[t], state.alphas[t])
        state = after


def after_rounds(problem: DualProblem, dropping_T: list[float], rounds: int) -> Tensor:
    draws, state = np.random.default_rng(10), State.zero(problem.tasks)
    points_T = np.array([len(task.y_S) for task in problem.tasks])
    for _ in range(rounds):
        steps_T = sdca.budgets(points_T, (0.1, 1.0), np.array(dropping_T), draws)
        orders = [cyclic(draws.permutation(n), steps) for n, steps in zip(points_T, steps_T, strict=True)]
        state = round_of(problem, state, dual.sigma_primes(problem.coupling_TT), orders)
    return dual.w_of(state.v_TF, problem.coupling_TT)


@pytest.mark.slow
def test_nodes_that_drop_now_and_then_change_nothing_in_the_end_and_one_that_never_answers_does() -> None:
    """Assumption 2 of the paper is p_max < 1."""
    problem = problem_of(SQUARED, np.random.default_rng(11))
    wanted_TF = best_w(problem)
    torch.testing.assert_close(after_rounds(problem, [0.9, 0.5, 0.0], 1500), wanted_TF, atol=1e-4, rtol=0)
    assert (after_rounds(problem, [1.0, 0.0, 0.0], 600) - wanted_TF).abs().max() > 0.05


def test_a_new_relation_of_the_tasks_lowers_the_joint_objective_every_time() -> None:
    """W is optimised under a fixed Sigma, then Sigma under that W; the new Sigma then gives another W."""
    draws, lam = np.random.default_rng(12), 0.5
    problem = replace(problem_of(HINGE, draws), coupling_TT=torch.eye(3, dtype=torch.float64) / 3 / lam)
    state, before = State.zero(problem.tasks), np.inf
    for _ in range(4):
        state = minimise(problem, state, gap_wanted=1e-8, rounds_max=3000, passes=5, draws=draws)
        now = reference.primal(problem, state.v_TF)
        assert now < before
        before = now
        sigma_TT = omega.trace_constrained(dual.w_of(state.v_TF, problem.coupling_TT), floor=1e-9)
        problem = replace(problem, coupling_TT=omega.coupling_of_covariance(sigma_TT, lam / 2))
        # The dual variables stay and W changes: the gap is still the sum of primal and dual.
        total = reference.primal(problem, state.v_TF) + reference.dual(problem, state.alphas)
        assert total == pytest.approx(reference.gap(problem, state.alphas, state.v_TF), rel=1e-6)


def test_budgets_are_a_fraction_of_the_points_and_at_least_one_step() -> None:
    points_T, never = np.array([3, 100, 1]), np.zeros(3)
    draws = np.random.default_rng(13)
    assert sdca.budgets(points_T, (0.5, 0.5), never, draws).tolist() == [1, 50, 1]
    assert sdca.budgets(points_T, (1.0, 1.0), np.array([1.0, 0.0, 1.0]), draws).tolist() == [0, 100, 0]
    drawn_RT = np.stack([sdca.budgets(points_T, (0.1, 1.0), np.full(3, 0.25), draws) for _ in range(2000)])
    assert set(drawn_RT[:, 0]) == {0, 1, 2}
    assert np.abs((drawn_RT == 0).mean(0) - 0.25).max() < 0.04
    assert 10 <= drawn_RT[drawn_RT[:, 1] > 0, 1].min() < 12 < 98 < drawn_RT[:, 1].max() <= 100


def test_an_order_goes_round_its_permutation() -> None:
    assert cyclic(np.array([2, 0, 1]), 7).tolist() == [2, 0, 1, 2, 0, 1, 2]
    assert cyclic(np.array([2, 0, 1]), 0).tolist() == []
