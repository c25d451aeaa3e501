"""The methods that MOCHA is compared with on the W step, and the time that a round of each takes.

CoCoA makes every node reach the same theta, however long it takes. The minibatch methods compute everything at the W
with which the round began and scale the sum down, because steps at an old W do not add up. All take their orders of
examples as arguments, like `sdca`; minibatch SGD is primal, and its W does not come from dual variables.

Source: Smith et al., Federated multi-task learning, NIPS 2017, section 5 and its released program: flops of a step,
cost of communication, scaling beta. Jaggi et al., Communication-efficient distributed dual coordinate ascent, NIPS
2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.mocha.dual import DualTask, gap_of, subproblem, theta_bound
from fedpeer.algorithms.mocha.losses import DualLoss, coordinate
from fedpeer.algorithms.mocha.sdca import Order, cyclic, solve

_Method = Literal["mocha", "cocoa", "minibatch-sdca", "minibatch-sgd"]
_Network = Literal["wifi", "lte", "3g"]

METHODS: tuple[_Method, ...] = get_args(_Method)
NETWORKS: tuple[_Network, ...] = get_args(_Network)

#: Operations of one step on one example, in units of F flops: 8 where the step moves the local model and dual variable.
_STEP_COST: dict[_Method, int] = {"mocha": 8, "cocoa": 8, "minibatch-sdca": 6, "minibatch-sgd": 4}
#: One round of communication, in the same unit: the slower the network, the more local computation pays.
_ROUND_COST: dict[_Network, int] = {"wifi": 10, "lte": 100, "3g": 1000}
#: Speed of a phone, which turns the units into seconds.
_FLOPS_PER_SECOND = 1e9
#: Least steps between CoCoA's checks of its local gap, and its most steps, both as in the program. A check costs more
#: than the steps, so later checks are further apart: by a tenth of the steps taken.
STEPS_BETWEEN_LOOKS, LOOKS_APART, STEPS_MAX = 5, 10, 1000


def time_of(method: _Method, network: _Network, steps_T: Sequence[int] | NDArray[np.int64]) -> int:
    """Return the time of one round in units of F flops, as in the papers' figures.

    It is the sum of all nodes' steps, and one communication; in CoCoA every node takes as many steps as the slowest
    node.
    """
    steps = len(steps_T) * max(steps_T) if method == "cocoa" else sum(steps_T)
    return int(_STEP_COST[method] * steps + _ROUND_COST[network])


def seconds_of(
    method: _Method,
    network: _Network,
    steps_RT: NDArray[np.int64],
    features: int,
    flops_per_second: float = _FLOPS_PER_SECOND,
) -> NDArray[np.float64]:
    """Return the estimated time from the start to the end of each round, (R,) in seconds.

    A round sends F numbers each way, and the model counts one of them as 10, 100 or 1000 operations.

    Args:
        steps_RT: (R, T) steps of each node in each round.
        features: F.
        flops_per_second: speed of a node.
    """
    units_R = [time_of(method, network, steps_T) for steps_T in steps_RT]
    return np.cumsum(np.array(units_R, np.float64)) * (features / flops_per_second)


def cocoa_turn(
    loss: DualLoss, task: DualTask, alpha_S: Tensor, w_F: Tensor, curvature: float, permutation_S: Order, theta: float
) -> tuple[Tensor, Tensor, int]:
    """Return a node's turn, which ends when its theta is known to be at most `theta`: (new alpha_S, delta_v_F, steps).

    The optimum is not known, so the local duality gap certifies it (`dual.theta_bound`). At most `STEPS_MAX` steps.
    """
    order_H = cyclic(permutation_S, STEPS_MAX)
    start = subproblem(loss, task, alpha_S, alpha_S, w_F, curvature)
    now_S, delta_v_F, taken = alpha_S, torch.zeros_like(w_F), 0
    while taken < STEPS_MAX:
        steps_H = order_H[taken : taken + max(STEPS_BETWEEN_LOOKS, taken // LOOKS_APART)]
        now_S, more_v_F = solve(loss, task, now_S, w_F + curvature * delta_v_F, curvature, steps_H, once=True)
        delta_v_F, taken = delta_v_F + more_v_F, taken + len(steps_H)
        local_gap = gap_of(loss, task, now_S, w_F + curvature * delta_v_F)
        if theta_bound(subproblem(loss, task, alpha_S, now_S, w_F, curvature), start, local_gap) <= theta:
            break
    return now_S, delta_v_F, taken


def each_alone(loss: DualLoss, task: DualTask, alpha_S: Tensor, w_F: Tensor, curvature: float) -> Tensor:
    """Return every example's alpha after an exact coordinate step of that example alone, (S,), all at the same w_F."""
    score_S, curvature_S = task.x_SF @ w_F, task.weight * curvature * task.square_S
    of_S = (each_S.numpy() for each_S in (alpha_S, task.y_S, score_S, curvature_S))
    return torch.from_numpy(_each_alone(loss.code, loss.smoothing, *of_S))


@njit(cache=True, nogil=True)
def _each_alone(code, smoothing, alpha, y, score, curvature):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    new = np.empty_like(alpha)
    for i in range(len(alpha)):
        new[i] = coordinate(code, smoothing, alpha[i], y[i], score[i], curvature[i])
    return new


def minibatch_sdca_turn(
    loss: DualLoss, task: DualTask, alpha_S: Tensor, w_F: Tensor, coupling: float, batch: Order, part: float
) -> tuple[Tensor, Tensor]:
    """Return a node's turn, (new alpha_S, delta_v_F).

    Args:
        part: fraction of each example's own change that is taken, in (0, 1].
    """
    assert 0 < part <= 1, "beta is at most the number of examples"
    to_S = alpha_S.clone()
    to_S[batch] = each_alone(loss, task, alpha_S, w_F, coupling)[batch]
    new_S = alpha_S.lerp(to_S, part)
    return new_S, task.v_F(new_S - alpha_S)


def batch_slope(loss: DualLoss, task: DualTask, w_F: Tensor, batch: Order) -> Tensor:
    """Return an unbiased estimate of a subgradient of the task's losses, (F,), from a batch; 0 from an empty one."""
    x_BF, y_B = task.x_SF[batch], task.y_S[batch]
    scaled = task.weight * len(task.y_S) / max(1, len(batch))
    return scaled * (loss.slope(x_BF @ w_F, y_B) @ x_BF)
