"""MOCHA's golden cases turn red when one function that their adapters call has a wrong sign, factor, order or index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpeer.algorithms.mocha import dual, losses, omega, sdca
from fedpeer.algorithms.mocha.dual import DualTask
from fedpeer.algorithms.mocha.sdca import Order
from tests.golden.adapters_mocha import ADAPTERS
from tests.golden.mutating import assert_red, name_of, needs_golden
from tests.reference import mocha as reference
from tests.reference.mocha import DualProblem, State

ROOM, WHOLE = "fedpeer.algorithms.mocha", "tests.reference.mocha"
PAPER, TRACE, OTHERS = ADAPTERS
#: The functions as they were before any mutation.
W_OF, ROUND, SOLVE, SIGMAS, THETA = dual.w_of, reference.round_of, sdca.solve, dual.sigma_primes, dual.theta
SUBPROBLEM, TRACED, CLUSTERED, MEAN = dual.subproblem, omega.trace_constrained, omega.clustered, omega.mean_regularised
PENALTY, COUPLING, COVARIANCE = omega.penalty, omega.coupling_of_penalty, omega.coupling_of_covariance


def without_the_half(a_TT: Tensor) -> Tensor:
    """Use the slides' M = A^-1, also for w(alpha)."""
    return 2 * COUPLING(a_TT)


def lambdas_exchanged(omega_TT: Tensor, lambda1: float, lambda2: float) -> Tensor:
    return PENALTY(omega_TT, lambda2, lambda1)


def tasks_unrelated(v_TF: Tensor, coupling_TT: Tensor) -> Tensor:
    return W_OF(v_TF, torch.diag(coupling_TT.diagonal()))


def sigma_prime_of_the_others(coupling_TT: Tensor) -> Tensor:
    """Leave out a task's own entry."""
    return SIGMAS(coupling_TT).amax(-1) - 1


def sums_where_means_belong(x_SF: Tensor, y_S: Tensor) -> DualTask:
    return DualTask.summed(x_SF, y_S)


def backwards(loss: Any, task: DualTask, alpha_S: Tensor, w_F: Tensor, curvature: float, order_H: Order) -> Any:
    return SOLVE(loss, task, alpha_S, w_F, curvature, order_H[::-1].copy())


def from_the_next(problem: DualProblem, state: State, sigma_T: Tensor, orders: Sequence[Order]) -> State:
    """Add the changes that the nodes send to the rows of other nodes."""
    after = ROUND(problem, state, sigma_T, orders)
    return replace(after, v_TF=state.v_TF + (after.v_TF - state.v_TF).roll(1, 0))


def delta_v_subtracted(problem: DualProblem, state: State, sigma_T: Tensor, orders: Sequence[Order]) -> State:
    after = ROUND(problem, state, sigma_T, orders)
    return replace(after, v_TF=2 * state.v_TF - after.v_TF)


def conjugate_of_minus(alpha_S: Tensor, y_S: Tensor) -> Tensor:
    """Lose the sign of -alpha."""
    return y_S * alpha_S


def no_step_beside(loss: Any, task: DualTask, alpha_S: Tensor, w_F: Tensor, curvature: float) -> Tensor:
    return alpha_S


def no_constant(*arguments: Any) -> float:
    return SUBPROBLEM(*arguments[:-1])


def theta_of_what_was_gained(reached: float, start: float, optimum: float) -> float:
    return 1 - THETA(reached, start, optimum)


def of_the_squares(w_TF: Tensor, floor: float = 0.0) -> Tensor:
    """Use W W^T where its root belongs."""
    return (w_TF @ w_TF.mT) / (w_TF @ w_TF.mT).trace() if w_TF.any() else TRACED(w_TF)


def elementwise(tasks: int) -> Tensor:
    return MEAN(tasks).square()


def one_cluster_more(w_TF: Tensor, eta: float, clusters: float) -> omega.Clustering:
    return CLUSTERED(w_TF, eta, clusters + 1)


def eta_twice(w_TF: Tensor, eta: float, clusters: float) -> omega.Clustering:
    return replace(CLUSTERED(w_TF, eta, clusters), eta=2 * eta)


def inverted(sigma_TT: Tensor, lambda1: float, lambda2: float = 0.0) -> Tensor:
    """Use Omega where Sigma belongs."""
    return COVARIANCE(reference.precision_of(sigma_TT), lambda1, lambda2)


MUTATIONS: list[tuple[str, str, Callable[..., Any]]] = [
    (PAPER, f"{ROOM}.omega.coupling_of_penalty", without_the_half),
    (PAPER, f"{ROOM}.omega.penalty", lambdas_exchanged),
    (PAPER, f"{ROOM}.dual.theta", theta_of_what_was_gained),
    (PAPER, f"{ROOM}.dual.subproblem", no_constant),
    (PAPER, f"{WHOLE}.solve", backwards),
    (PAPER, f"{WHOLE}.round_of", from_the_next),
    (PAPER, f"{WHOLE}.round_of", delta_v_subtracted),
    (TRACE, f"{ROOM}.dual.DualTask.averaged", sums_where_means_belong),
    (TRACE, f"{ROOM}.omega.coupling_of_covariance", inverted),
    (TRACE, f"{ROOM}.omega.trace_constrained", of_the_squares),
    *(
        (stem, *rest)
        for stem in (PAPER, TRACE)
        for rest in (
            (f"{ROOM}.dual.w_of", tasks_unrelated),
            (f"{ROOM}.dual.sigma_prime", sigma_prime_of_the_others),
            (f"{ROOM}.comparators.each_alone", no_step_beside),
        )
    ),
    (OTHERS, f"{ROOM}.omega.mean_regularised", elementwise),
    (OTHERS, f"{ROOM}.omega.clustered", one_cluster_more),
    (OTHERS, f"{ROOM}.omega.clustered", eta_twice),
    (OTHERS, f"{ROOM}.omega.coupling_of_covariance", inverted),
]


@needs_golden
@pytest.mark.parametrize(("stem", "target", "mutant"), MUTATIONS, ids=name_of)
def test_one_mistake_turns_the_case_red(
    stem: str, target: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a mistake in the steps the optimum may never be reached, so the number of rounds is limited.
    monkeypatch.setattr("tests.golden.adapters_mocha.ROUNDS_MAX", 200)
    monkeypatch.setattr(target, mutant)
    assert_red(stem)


@needs_golden
@pytest.mark.parametrize("stem", [PAPER, TRACE])
def test_the_conjugate_at_plus_alpha_turns_it_red(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.golden.adapters_mocha.ROUNDS_MAX", 200)
    monkeypatch.setattr("tests.golden.adapters_mocha.HINGE", replace(losses.HINGE, conjugate=conjugate_of_minus))
    assert_red(stem)


def test_every_adapter_has_a_mutation() -> None:
    assert {stem for stem, _, _ in MUTATIONS} == set(ADAPTERS)
