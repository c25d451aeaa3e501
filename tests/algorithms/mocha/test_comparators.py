"""CoCoA, minibatch SDCA and minibatch SGD: the defining properties of each, and the time that their rounds cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.algorithms.mocha import comparators, dual
from fedpeer.algorithms.mocha.losses import HINGE, LOGISTIC, SQUARED, DualLoss
from fedpeer.algorithms.mocha.sdca import cyclic, solve
from tests.algorithms.mocha.problem_factory import LOSSES, feasible, normal, problem_of
from tests.reference import mocha as reference
from tests.reference.mocha import State, minimise

SEEDS = st.integers(0, 2**32 - 1)


def test_the_time_of_a_round_is_that_of_the_papers_model() -> None:
    steps = [10, 30, 20]
    assert comparators.time_of("mocha", "wifi", steps) == 8 * 60 + 10
    assert comparators.time_of("minibatch-sdca", "lte", steps) == 6 * 60 + 100
    assert comparators.time_of("minibatch-sgd", "3g", steps) == 4 * 60 + 1000
    assert comparators.time_of("cocoa", "3g", np.array(steps)) == 8 * 3 * 30 + 1000


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_every_node_of_cocoa_reaches_the_theta_that_is_asked_for(loss: DualLoss) -> None:
    draws = np.random.default_rng(1)
    problem = problem_of(loss, draws, (20, 4, 35))
    state, sigma_T = feasible(problem, draws), dual.sigma_primes(problem.coupling_TT)
    orders = [draws.permutation(len(task.y_S)) for task in problem.tasks]
    after, steps = reference.cocoa_round(problem, state, sigma_T, orders, 0.5)
    torch.testing.assert_close(after.v_TF, reference.v_of(problem.tasks, after.alphas))
    assert all(0 < taken < comparators.STEPS_MAX and taken % 5 == 0 for taken in steps)
    w_TF, curvature_T = dual.w_of(state.v_TF, problem.coupling_TT), sigma_T * problem.coupling_TT.diagonal()
    for t, (task, alpha_S) in enumerate(zip(problem.tasks, state.alphas, strict=True)):
        node = (loss, task, alpha_S)
        local = (w_TF[t], curvature_T[t].item())
        best_S, _ = solve(*node, *local, cyclic(orders[t], 10_000))
        reached, start, best = (dual.subproblem(*node, new_S, *local) for new_S in (after.alphas[t], alpha_S, best_S))
        assert dual.theta(reached, start, best) <= 0.5
        at_once_S, _ = solve(*node, *local, cyclic(orders[t], steps[t]))
        torch.testing.assert_close(after.alphas[t], at_once_S, atol=1e-9, rtol=0)


@pytest.mark.slow
def test_a_theta_out_of_reach_ends_after_the_most_steps() -> None:
    problem = problem_of(LOGISTIC, np.random.default_rng(2))
    state, sigma_T = State.zero(problem.tasks), dual.sigma_primes(problem.coupling_TT)
    orders = [np.arange(len(task.y_S)) for task in problem.tasks]
    _, steps = reference.cocoa_round(problem, state, sigma_T, orders, -1.0)
    assert steps == [comparators.STEPS_MAX] * 3


@pytest.mark.slow
@given(seed=SEEDS, loss=st.sampled_from(LOSSES))
@settings(max_examples=40, deadline=None)
def test_minibatch_sdca_with_beta_one_never_raises_the_dual(seed: int, loss: DualLoss) -> None:
    """No single step raises it, so by convexity neither does the mean of the steps."""
    draws = np.random.default_rng(seed)
    problem = problem_of(loss, draws)
    state = feasible(problem, draws)
    batches = [draws.permutation(len(task.y_S))[:size] for task, size in zip(problem.tasks, (3, 5, 0), strict=True)]
    after = reference.minibatch_sdca_round(problem, state, batches, 1.0)
    assert reference.dual(problem, after.alphas) <= reference.dual(problem, state.alphas) + 1e-12
    torch.testing.assert_close(after.v_TF, reference.v_of(problem.tasks, after.alphas))
    assert torch.equal(after.alphas[2], state.alphas[2])


def test_one_example_alone_with_beta_one_is_one_exact_step() -> None:
    problem = problem_of(HINGE, np.random.default_rng(3))
    state, nobody = feasible(problem, np.random.default_rng(4)), np.array([], np.int64)
    after = reference.minibatch_sdca_round(problem, state, [nobody, np.array([2]), nobody], 1.0)
    w_F = dual.w_of(state.v_TF, problem.coupling_TT)[1]
    coupling = problem.coupling_TT[1, 1].item()
    wanted_S, _ = solve(HINGE, problem.tasks[1], state.alphas[1], w_F, coupling, np.array([2]))
    torch.testing.assert_close(after.alphas[1], wanted_S)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_whole_batch_of_sgd_is_a_step_down_the_gradient(loss: DualLoss) -> None:
    draws = np.random.default_rng(5)
    problem = problem_of(loss, draws)
    w_TF = normal(draws, 3, 4).requires_grad_()
    losses = [
        task.weight * loss.value(task.x_SF @ w_F, task.y_S).sum() for task, w_F in zip(problem.tasks, w_TF, strict=True)
    ]
    objective = torch.stack(losses).sum() + reference.regulariser(w_TF, problem.coupling_TT)
    (gradient_TF,) = torch.autograd.grad(objective, w_TF)
    batches = [np.arange(len(task.y_S)) for task in problem.tasks]
    after_TF = reference.minibatch_sgd_round(problem, w_TF.detach(), batches, 0.1)
    torch.testing.assert_close(after_TF, w_TF.detach() - 0.1 * gradient_TF)


def test_batches_of_sgd_estimate_that_gradient_without_bias() -> None:
    """The mean over all batches of one example equals the whole batch; an empty batch leaves the regulariser."""
    problem = problem_of(SQUARED, np.random.default_rng(6), (4, 4, 4))
    w_TF = normal(np.random.default_rng(7), 3, 4)
    singles = [reference.minibatch_sgd_round(problem, w_TF, [np.array([i])] * 3, 0.1) for i in range(4)]
    whole_TF = reference.minibatch_sgd_round(problem, w_TF, [np.arange(4)] * 3, 0.1)
    torch.testing.assert_close(torch.stack(singles).mean(0), whole_TF)
    empty_TF = reference.minibatch_sgd_round(problem, w_TF, [np.array([], np.int64)] * 3, 0.1)
    torch.testing.assert_close(empty_TF, w_TF - 0.1 * torch.linalg.solve(problem.coupling_TT, w_TF))


@pytest.mark.soak  # `test_comparator_rounds.py` tests it on the algorithms, whose rounds equal these
def test_all_of_them_come_to_the_same_optimum() -> None:
    draws = np.random.default_rng(8)
    problem = problem_of(SQUARED, draws, lam=4.0)
    best = minimise(problem, State.zero(problem.tasks), gap_wanted=1e-12, rounds_max=2000, passes=2, draws=draws)
    wanted = reference.primal(problem, best.v_TF)
    whole = [np.arange(len(task.y_S)) for task in problem.tasks]
    cocoa = sdca = State.zero(problem.tasks)
    w_TF = torch.zeros(3, 4, dtype=torch.float64)
    for h in range(1, 401):
        cocoa, _ = reference.cocoa_round(problem, cocoa, dual.sigma_primes(problem.coupling_TT), whole, 0.5)
        sdca = reference.minibatch_sdca_round(problem, sdca, whole, 4.0)
        w_TF = reference.minibatch_sgd_round(problem, w_TF, whole, 0.2 / (h + 20))
    assert reference.primal(problem, cocoa.v_TF) == pytest.approx(wanted, rel=1e-6)
    assert reference.primal(problem, sdca.v_TF) == pytest.approx(wanted, rel=1e-3)
    assert reference.primal_of_w(problem, w_TF) == pytest.approx(wanted, rel=1e-2)
