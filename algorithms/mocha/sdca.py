"""MOCHA's local solver, stochastic dual coordinate ascent, and the budgets of its nodes.

A node knows its own task and dual variables, w_t, and its curvature sigma' M_tt. It goes through its examples in a
given order, minimises the subproblem over one dual variable at a time, and sends delta v_t (F numbers). The length of
the order is the node's budget, and theta is the accuracy that the node reaches with it; a dropped node has an empty
order. The loop is compiled by numba. W is never stored: it follows from V and the present coupling, so a new coupling
changes it at once.

Source: Smith et al., Federated multi-task learning, NIPS 2017, algorithm 1; Shalev-Shwartz, Zhang, JMLR 2013.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.mocha.dual import DualTask
from fedpeer.algorithms.mocha.losses import DualLoss, coordinate

Order = NDArray[np.int64]

#: A task with at most this many times as many examples as features is solved with its Gram matrix: with it a step that
#: changes something costs S, and without it 2 F. Above this bound the matrix would also be larger than twice the data.
EXAMPLES_BY_GRAM = 2
#: A matrix that serves a single turn saves time if the turn has at least this many passes for each example.
_PASSES_BY_GRAM = 1 / 8


def solve(
    loss: DualLoss,
    task: DualTask,
    alpha_S: Tensor,
    w_F: Tensor,
    curvature: float,
    order_H: Order,
    *,
    once: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return one node's turn, (new alpha_S, delta_v_F), which never makes the subproblem worse.

    Args:
        curvature: sigma' M_tt > 0.
        order_H: (H,) indices of examples, one exact coordinate step each.
        once: whether the task, with its Gram matrix, is discarded after this turn.

    The arguments are not changed.
    """
    assert len(order_H) == 0 or 0 <= order_H.min() <= order_H.max() < len(alpha_S), "indices of the task's examples"
    new_alpha_S, scale = alpha_S.clone(), task.weight * curvature
    pays = not once or len(order_H) >= _PASSES_BY_GRAM * len(task.y_S) ** 2
    if pays and len(task.y_S) <= EXAMPLES_BY_GRAM * task.x_SF.shape[1]:
        of_S = (each.numpy() for each in (task.gram_SS, task.y_S, new_alpha_S, task.x_SF @ w_F))
        _by_gram(loss.code, loss.smoothing, scale, order_H, *of_S)
    else:
        of_SF = (each.numpy() for each in (task.x_SF, task.square_S, task.y_S, new_alpha_S, w_F.clone()))
        _by_features(loss.code, loss.smoothing, scale, order_H, *of_SF)
    return new_alpha_S, task.v_F(new_alpha_S - alpha_S)


@njit(cache=True, fastmath={"reassoc", "contract", "nsz"}, boundscheck=False, nogil=True)
def _by_gram(code, smoothing, scale, order, gram, y, alpha, score):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Take the steps in place on alpha (S,) and the scores x r (S,); a step that changes nothing costs nothing."""
    for i in order:
        new = coordinate(code, smoothing, alpha[i], y[i], score[i], scale * gram[i, i])
        step = scale * (new - alpha[i])
        if step != 0.0:
            for j in range(len(score)):
                score[j] += step * gram[i, j]
        alpha[i] = new


@njit(cache=True, fastmath={"reassoc", "contract", "nsz"}, boundscheck=False, nogil=True)
def _by_features(code, smoothing, scale, order, x, square, y, alpha, r):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Take the steps in place on alpha (S,) and r = w_t + sigma' M_tt delta_v (F,); scale = c_t sigma' M_tt."""
    features = x.shape[1]
    for i in order:
        row = x[i]
        score = 0.0
        for f in range(features):
            score += row[f] * r[f]
        new = coordinate(code, smoothing, alpha[i], y[i], score, scale * square[i])
        step = scale * (new - alpha[i])
        if step != 0.0:
            for f in range(features):
                r[f] += step * row[f]
        alpha[i] = new


def cyclic(permutation_S: Order, steps: int) -> Order:
    """Return an order of this many steps, cyclic through a permutation of the examples."""
    return np.resize(permutation_S, steps)


def reshuffled(examples: int, steps: int, draws: np.random.Generator) -> Order:
    """Return an order of this many steps: passes over fresh permutations of the examples, the last pass cut short."""
    passes = [draws.permutation(examples) for _ in range(-(-steps // examples))]
    return np.concatenate([np.empty(0, np.int64), *passes])[:steps]


def budgets(
    points_T: NDArray[np.int64],
    fractions: tuple[float, float],
    dropping_T: NDArray[np.float64],
    draws: np.random.Generator,
) -> NDArray[np.int64]:
    """Return the number of steps that each node takes in this round, (T,).

    It is a fraction, drawn from U(low, high), of the node's points, at least one step, or 0 for a dropped node.

    Args:
        points_T: (T,) each node's own number of examples (the program), or the smallest number for all nodes (the
            paper).
        fractions: (low, high): (0.1, 1) for systems that differ much, (0.9, 1) for systems that differ little, two
            equal numbers for equal systems.
        dropping_T: (T,) probability that the node sends nothing, with 0 steps. With 1 for some node the method
            converges to a wrong point.
    """
    steps_T = np.maximum(1, (draws.uniform(*fractions, len(points_T)) * points_T).astype(np.int64))
    return np.where(draws.random(len(points_T)) < dropping_T, 0, steps_T)
