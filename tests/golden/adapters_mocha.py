"""Adapters of MOCHA's golden cases, from their inputs to fedpeer's own functions and back, like `adapters`.

The cases have W and V as (features, tasks) and examples as columns; fedpeer has one row per task and per example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpeer.algorithms.mocha import comparators, dual, omega, sdca
from fedpeer.algorithms.mocha.dual import DualTask
from fedpeer.algorithms.mocha.losses import HINGE
from fedpeer.algorithms.mocha.sdca import Order
from tests.reference import mocha as reference
from tests.reference.mocha import DualProblem, State

Case = dict[str, Any]

#: Limits for minimising subproblems and problems; the looser tolerance of the cases is met long before.
PASSES, ROUNDS_MAX, GAP = 20_000, 20_000, 1e-14


def _tensor(nested: Any) -> Tensor:
    return torch.tensor(nested, dtype=torch.float64)


def _columns(w_TF: Tensor) -> list[Any]:
    return list(w_TF.mT.tolist())


def _problem(
    inputs: Case, make: Callable[[Tensor, Tensor], DualTask], coupling_TT: Tensor
) -> tuple[DualProblem, State]:
    tasks = tuple(make(_tensor(x).mT, _tensor(y)) for x, y in zip(inputs["X"], inputs["Y"], strict=True))
    alphas = tuple(_tensor(alpha) for alpha in inputs["alpha"])
    return DualProblem(HINGE, tasks, coupling_TT), State(alphas, reference.v_of(tasks, alphas))


def _in_order(problem: DualProblem, steps: Sequence[int] | None = None, passes: int = 1) -> list[Order]:
    points = [len(task.y_S) for task in problem.tasks]
    taken = steps or [passes * count for count in points]
    return [sdca.cyclic(np.arange(count), each) for count, each in zip(points, taken, strict=True)]


def _optimum(problem: DualProblem, state: State) -> tuple[State, Case]:
    draws = np.random.default_rng(0)
    best = reference.minimise(problem, state, gap_wanted=GAP, rounds_max=ROUNDS_MAX, passes=1, draws=draws)
    w_TF = dual.w_of(best.v_TF, problem.coupling_TT)
    return best, {"W": _columns(w_TF), "primal": reference.primal(problem, best.v_TF)}


def _subproblems(problem: DualProblem, state: State, orders: Sequence[Order]) -> tuple[list[float], list[list[float]]]:
    """Return G_t of every task after steps in the given order, and delta alpha."""
    sigma_T = dual.sigma_prime(problem.coupling_TT).expand(len(problem.tasks))
    after = reference.round_of(problem, state, sigma_T, orders)
    constant = reference.conjugate_regulariser(state.v_TF, problem.coupling_TT).item() / len(problem.tasks)
    curvature_T = (sigma_T * problem.coupling_TT.diagonal()).tolist()
    w_TF = dual.w_of(state.v_TF, problem.coupling_TT)
    rows = zip(problem.tasks, state.alphas, after.alphas, w_TF, curvature_T, strict=True)
    values = [dual.subproblem(HINGE, *row, constant) for row in rows]
    return values, [(new - old).tolist() for new, old in zip(after.alphas, state.alphas, strict=True)]


def _coordinates(problem: DualProblem, state: State, inputs: Case) -> Case:
    """Return the values for single coordinates that both conventions require."""
    at, index = inputs["coordinate"]["task"], inputs["coordinate"]["index"]
    sigma, w_TF = dual.sigma_prime(problem.coupling_TT), dual.w_of(state.v_TF, problem.coupling_TT)
    curvature_T = (sigma * problem.coupling_TT.diagonal()).tolist()
    rows = zip(problem.tasks, state.alphas, w_TF, curvature_T, strict=True)
    alone = [comparators.each_alone(HINGE, *row) for row in rows]
    task, alpha, new = problem.tasks[at], state.alphas[at][index].item(), alone[at][index].item()
    step_S = torch.zeros_like(task.y_S).index_fill(0, torch.tensor(index), new - alpha)
    return {
        "each_coordinate_alone_alpha_new": [alone_S.tolist() for alone_S in alone],
        "coordinate_update": {
            "alpha_new": new,
            "delta": new - alpha,
            "b_old": (task.y_S[index] * alpha).item(),
            "b_new": (task.y_S[index] * new).item(),
            "margin_y_wx": (task.y_S * (task.x_SF @ w_TF[at]))[index].item(),
            "denominator": (task.weight * curvature_T[at] * task.square_S[index]).item(),
            "delta_w_t_local": (problem.coupling_TT[at, at] * task.v_F(step_S)).tolist(),
        },
    }


def paper_convention(inputs: Case) -> Case:
    """Compute case 06a."""
    a_TT = omega.penalty(_tensor(inputs["Omega"]), inputs["lambda1"], inputs["lambda2"])
    problem, state = _problem(inputs, DualTask.summed, omega.coupling_of_penalty(a_TT))
    coupling_TT = problem.coupling_TT
    sigma = dual.sigma_prime(coupling_TT)
    found = {"A": a_TT.tolist(), "M": coupling_TT.tolist(), "sigma_prime": sigma.item(), "V": _columns(state.v_TF)}
    found |= {"W_of_alpha": _columns(dual.w_of(state.v_TF, coupling_TT)), **_coordinates(problem, state, inputs)}
    found |= {
        "primal_at_W_of_alpha": reference.primal(problem, state.v_TF),
        "dual_at_alpha": reference.dual(problem, state.alphas),
    }
    found["duality_gap"] = reference.gap(problem, state.alphas, state.v_TF)
    start, _ = _subproblems(problem, state, _in_order(problem, passes=0))
    best, _ = _subproblems(problem, state, _in_order(problem, passes=PASSES))
    found |= {"subproblem_value_at_0": start, "subproblem_optimum": best}
    for name, steps in (("one", None), ("half", inputs["half_pass_steps"])):
        reached, found[f"{name}_pass_delta"] = _subproblems(problem, state, _in_order(problem, steps))
        found[f"theta_{name}_pass"] = [dual.theta(*row) for row in zip(reached, start, best, strict=True)]
    return found | _rounds(problem, state, sigma.expand(len(problem.tasks)), inputs["dropped_round_steps"])


def _rounds(problem: DualProblem, state: State, sigma_T: Tensor, dropped_steps: list[int]) -> Case:
    whole = reference.round_of(problem, state, sigma_T, _in_order(problem))
    dropped = reference.round_of(problem, state, sigma_T, _in_order(problem, dropped_steps))
    best, optimum = _optimum(problem, state)
    return {
        "dual_after_one_pass_all_tasks": reference.dual(problem, whole.alphas),
        "W_after_one_pass": _columns(dual.w_of(whole.v_TF, problem.coupling_TT)),
        "dropped_round": {
            "alpha": [alpha_S.tolist() for alpha_S in dropped.alphas],
            "dual": reference.dual(problem, dropped.alphas),
            "W": _columns(dual.w_of(dropped.v_TF, problem.coupling_TT)),
        },
        "optimum": {**optimum, "dual": reference.dual(problem, best.alphas)},
    }


def trace_constrained(inputs: Case) -> Case:
    """Compute case 06b; its dual is maximised, so the sign is flipped."""
    sigma_TT = _tensor(inputs["Sigma"])
    problem, state = _problem(inputs, DualTask.averaged, omega.coupling_of_covariance(sigma_TT, inputs["lam"] / 2))
    best, optimum = _optimum(problem, state)
    w_TF = _tensor(inputs["W_for_sigma_update"]).mT
    updated_TT = omega.trace_constrained(w_TF, floor=0.0)
    return _coordinates(problem, state, inputs) | {
        "Omega": reference.precision_of(sigma_TT).tolist(),
        "rho": dual.sigma_prime(problem.coupling_TT).item(),
        "rho_if_Sigma_is_identity_over_m": dual.sigma_prime(omega.trace_constrained(0 * w_TF)).item(),
        "V": _columns(state.v_TF),
        "W_of_alpha": _columns(dual.w_of(state.v_TF, problem.coupling_TT)),
        "primal": reference.primal(problem, state.v_TF),
        "dual": -reference.dual(problem, state.alphas),
        "optimum": {**optimum, "dual": -reference.dual(problem, best.alphas)},
        "sigma_update": {
            "Sigma": updated_TT.tolist(),
            "Omega": reference.precision_of(updated_TT).tolist(),
            "value": reference.regulariser(w_TF, omega.coupling_of_covariance(updated_TT, 1.0)).item(),
            "rho": dual.sigma_prime(updated_TT).item(),
        },
    }


def omega_updates(inputs: Case) -> Case:
    """Compute case 06c."""
    w_TF = _tensor(inputs["W"]).mT
    found = omega.clustered(w_TF, inputs["eta"], inputs["k"])
    mean = omega.mean_regularised(inputs["m"]).tolist()
    return {
        "mean_regularised": mean,
        "elementwise_square": mean,
        "clustered": {
            "singular_values_ascending": found.singular_T.tolist(),
            "q_ascending": found.q_T.tolist(),
            "Q": found.q_TT.tolist(),
            "value": reference.regulariser(w_TF, omega.coupling_of_covariance(found.covariance_TT, 1.0)).item(),
            "Omega": reference.precision_of(found.covariance_TT).tolist(),
        },
    }


ADAPTERS: dict[str, Callable[[Case], Case]] = {
    "06a_mocha_paper_convention": paper_convention,
    "06b_mocha_trace_constrained": trace_constrained,
    "06c_mocha_omega_updates": omega_updates,
}
