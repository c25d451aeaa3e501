"""Rounds of MOCHA and its comparators with all tasks in one place; its objectives and the gap between them.

Source: Smith et al., Federated multi-task learning, NIPS 2017, section 5 and its released program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpeer.algorithms.mocha.comparators import batch_slope, cocoa_turn, minibatch_sdca_turn
from fedpeer.algorithms.mocha.dual import DualTask, gap_of, loss_of, sigma_primes, w_of
from fedpeer.algorithms.mocha.losses import DualLoss
from fedpeer.algorithms.mocha.sdca import Order, reshuffled, solve


@dataclass(frozen=True, eq=False)
class DualProblem:
    """The W step: T tasks under a fixed coupling M, (T, T), symmetric and positive definite."""

    loss: DualLoss
    tasks: tuple[DualTask, ...]
    coupling_TT: Tensor

    def __post_init__(self) -> None:
        assert self.coupling_TT.shape == (len(self.tasks), len(self.tasks)), "one row and column for each task"


def conjugate_regulariser(v_TF: Tensor, coupling_TT: Tensor) -> Tensor:
    """Return R*(V) = 1/2 tr(V^T M V), (...), which equals R(W(alpha)) and needs no inverse."""
    return (v_TF * w_of(v_TF, coupling_TT)).sum((-2, -1)) / 2


def regulariser(w_TF: Tensor, coupling_TT: Tensor) -> Tensor:
    """Return R(W) = 1/2 tr(W^T M^-1 W), (...), by one linear solve, for a W that does not come from dual variables."""
    slope_TF: Tensor = torch.linalg.solve(coupling_TT, w_TF)
    return (w_TF * slope_TF).sum((-2, -1)) / 2


def primal(problem: DualProblem, v_TF: Tensor) -> float:
    """Return P(W(alpha))."""
    w_TF = w_of(v_TF, problem.coupling_TT)
    losses = (loss_of(problem.loss, task, w_F) for task, w_F in zip(problem.tasks, w_TF, strict=True))
    return sum(losses) + conjugate_regulariser(v_TF, problem.coupling_TT).item()


def dual(problem: DualProblem, alphas: Sequence[Tensor]) -> float:
    """Return D(alpha), which is minimised; infinite for an infeasible alpha."""
    conjugates = (
        task.weight * problem.loss.conjugate(alpha_S, task.y_S).sum().item()
        for task, alpha_S in zip(problem.tasks, alphas, strict=True)
    )
    return sum(conjugates) + conjugate_regulariser(v_of(problem.tasks, alphas), problem.coupling_TT).item()


def v_of(tasks: Sequence[DualTask], alphas: Sequence[Tensor]) -> Tensor:
    """Return V, (T, F), of all dual variables."""
    return torch.stack([task.v_F(alpha_S) for task, alpha_S in zip(tasks, alphas, strict=True)])


def gap(problem: DualProblem, alphas: Sequence[Tensor], v_TF: Tensor) -> float:
    """Return the duality gap P(W(alpha)) + D(alpha) >= 0, for the V of alpha."""
    w_TF = w_of(v_TF, problem.coupling_TT)
    return sum(gap_of(problem.loss, *each) for each in zip(problem.tasks, alphas, w_TF, strict=True))


@dataclass(frozen=True, eq=False)
class State:
    """The state of the W step: alphas, (S_t,) for each task, and their V (T, F)."""

    alphas: tuple[Tensor, ...]
    v_TF: Tensor

    @staticmethod
    def zero(tasks: Sequence[DualTask]) -> State:
        """Return alpha = 0, V = 0, which is feasible for every loss."""
        alphas = tuple(torch.zeros_like(task.y_S) for task in tasks)
        return State(alphas, torch.zeros(len(tasks), tasks[0].x_SF.shape[1], dtype=torch.float64))


def cocoa_round(
    problem: DualProblem, state: State, sigma_T: Tensor, permutations: Sequence[Order], theta: float
) -> tuple[State, list[int]]:
    """Run one round of CoCoA: (the state after it, each node's steps). Arguments as `round_of`."""
    w_TF = w_of(state.v_TF, problem.coupling_TT)
    curvature_T = (sigma_T * problem.coupling_TT.diagonal()).tolist()
    turns = [
        cocoa_turn(problem.loss, *turn, theta)
        for turn in zip(problem.tasks, state.alphas, w_TF, curvature_T, permutations, strict=True)
    ]
    alphas, deltas_F, steps = zip(*turns, strict=True)
    return State(alphas, state.v_TF + torch.stack(deltas_F)), list(steps)


def minibatch_sdca_round(problem: DualProblem, state: State, batches: Sequence[Order], beta: float) -> State:
    """Run one round of minibatch SDCA: every example at the stale W, and beta / |all batches| of the change.

    batches: different examples of each task. beta: 1 is always safe, up to the size of all batches for examples that
    are unrelated to one another.
    """
    part = beta / sum(len(batch) for batch in batches)
    w_TF, coupling_T = w_of(state.v_TF, problem.coupling_TT), problem.coupling_TT.diagonal().tolist()
    rows = zip(problem.tasks, state.alphas, w_TF, coupling_T, batches, strict=True)
    alphas, deltas_F = zip(*(minibatch_sdca_turn(problem.loss, *row, part) for row in rows), strict=True)
    return State(alphas, state.v_TF + torch.stack(deltas_F))


def minibatch_sgd_round(problem: DualProblem, w_TF: Tensor, batches: Sequence[Order], step: float) -> Tensor:
    """Return W after a step of minibatch SGD on P: W - step (subgradient of the losses on the batches + M^-1 W).

    step: beta / h in round h, as for strongly convex objectives. The regulariser counts in full, lambda included.
    An empty batch has no information about its task's losses.
    """
    of_regulariser_TF: Tensor = torch.linalg.solve(problem.coupling_TT, w_TF)
    rows = zip(problem.tasks, w_TF, batches, strict=True)
    of_losses_TF = torch.stack([batch_slope(problem.loss, *row) for row in rows])
    return w_TF - step * (of_regulariser_TF + of_losses_TF)


def minimise(
    problem: DualProblem, start: State, *, gap_wanted: float, rounds_max: int, passes: int, draws: np.random.Generator
) -> State:
    """Run rounds of some passes over fresh permutations until the duality gap is at most `gap_wanted`.

    It is for all tasks in one place: a local model (one task, or M diagonal), a global one (all data as one task), a
    reference. After `rounds_max` rounds it returns the state so far.
    """
    sigma_T, state = sigma_primes(problem.coupling_TT), start
    for _ in range(rounds_max):
        if gap(problem, state.alphas, state.v_TF) <= gap_wanted:
            break
        orders = [reshuffled(len(task.y_S), passes * len(task.y_S), draws) for task in problem.tasks]
        state = round_of(problem, state, sigma_T, orders)
    return state


def precision_of(sigma_TT: Tensor) -> Tensor:
    """Return Omega = Sigma^-1, (..., T, T), for a report or a picture. No update needs it."""
    return torch.cholesky_inverse(torch.linalg.cholesky(sigma_TT))


def primal_of_w(problem: DualProblem, w_TF: Tensor) -> float:
    """Return P(W) for any W."""
    losses = (loss_of(problem.loss, task, w_F) for task, w_F in zip(problem.tasks, w_TF, strict=True))
    return sum(losses) + regulariser(w_TF, problem.coupling_TT).item()


def round_of(problem: DualProblem, state: State, sigma_T: Tensor, orders: Sequence[Order]) -> State:
    """Return the state after all nodes' turns from the same W and the reduce step V + delta V.

    Algorithm 1, lines 5-10.

    Args:
        sigma_T: (T,) sigma' for each task, `sigma_primes` or the paper's single `sigma_prime` for all.
        orders: one for each task.
    """
    w_TF = w_of(state.v_TF, problem.coupling_TT)
    curvature_T = (sigma_T * problem.coupling_TT.diagonal()).tolist()
    turns = [
        solve(problem.loss, *turn) for turn in zip(problem.tasks, state.alphas, w_TF, curvature_T, orders, strict=True)
    ]
    return State(tuple(alpha_S for alpha_S, _ in turns), state.v_TF + torch.stack([v_F for _, v_F in turns]))
