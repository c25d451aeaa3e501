"""The losses of the dual problem: value, slope, convex conjugate, and the exact minimisation over one dual variable.

A loss is a function of a score z = w x and a label y: -1 or 1 for the three classification losses, any number for the
squared loss. Its dual variable alpha carries the sign of the label, so that b = y alpha lies in [0, 1] for
classification. `coordinate` is compiled, because it is the innermost operation of the local solver; everything else
takes any leading dimensions. This module knows neither data nor regulariser.

Sources: Shalev-Shwartz, Zhang, Stochastic dual coordinate ascent methods for regularized loss minimization, JMLR 2013
(section 3 smoothed hinge, section 6.2 updates); Yu, Huang, Lin, Dual coordinate descent methods for logistic regression
and maximum entropy models, Machine Learning 2011 (the safeguarded Newton step).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional

_HINGE, _LOGISTIC, _SQUARED = 0, 1, 2

#: Most steps of the safeguarded Newton search. Near the solution each step doubles the number of right digits,
#: elsewhere it halves the bracket: 100 halvings reduce the widest bracket that matters, 1e14, to the last bit.
_NEWTON_STEPS_MAX = 100


@dataclass(frozen=True)
class DualLoss:
    """One loss; each function maps (..., S) and (..., S) to (..., S).

    value(z_S, y_S)           the loss itself
    slope(z_S, y_S)           a subgradient of it in z
    conjugate(alpha_S, y_S)   the loss's conjugate at -alpha; infinite where alpha is infeasible
    smoothing                 gamma of the smoothed hinge, in units of the margin; 0 elsewhere
    code                      for `coordinate`
    """

    name: str
    value: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    conjugate: Callable[[Tensor, Tensor], Tensor]
    code: int
    smoothing: float = 0.0


def smoothed_hinge(smoothing: float) -> DualLoss:
    """Return the hinge with its corner rounded over a width of `smoothing` >= 0 below the margin 1; 0 is the hinge.

    It is max(0, 1 - yz) - smoothing / 2, but quadratic where the margin is missed by less than `smoothing`. The
    conjugate at -alpha is -b + smoothing b^2 / 2 with b = y alpha in [0, 1]; the loss is (1 / smoothing)-smooth.
    """
    assert smoothing >= 0, "a width"

    def value(z_S: Tensor, y_S: Tensor) -> Tensor:
        missed_S = (1 - y_S * z_S).clamp(min=0)
        corner_S = missed_S.square() / (2 * smoothing) if smoothing else missed_S
        return torch.where(missed_S >= smoothing, missed_S - smoothing / 2, corner_S)

    def slope(z_S: Tensor, y_S: Tensor) -> Tensor:
        missed_S = (1 - y_S * z_S).clamp(min=0)
        return -y_S * torch.where(missed_S >= smoothing, (missed_S > 0).to(z_S.dtype), missed_S / smoothing)

    def conjugate(alpha_S: Tensor, y_S: Tensor) -> Tensor:
        b_S = y_S * alpha_S
        return torch.where((b_S < 0) | (b_S > 1), torch.inf, -b_S + smoothing / 2 * b_S.square())

    return DualLoss("smoothed-hinge" if smoothing else "hinge", value, slope, conjugate, _HINGE, smoothing)


def _logistic_conjugate(alpha_S: Tensor, y_S: Tensor) -> Tensor:
    b_S = y_S * alpha_S
    entropy_S = torch.special.entr(b_S.clamp(0, 1)) + torch.special.entr(1 - b_S.clamp(0, 1))
    return torch.where((b_S < 0) | (b_S > 1), torch.inf, -entropy_S)


HINGE = smoothed_hinge(0.0)
#: log(1 + exp(-yz)), with the conjugate b log b + (1 - b) log(1 - b).
LOGISTIC = DualLoss(
    "logistic",
    lambda z_S, y_S: functional.softplus(-y_S * z_S),
    lambda z_S, y_S: -y_S * torch.sigmoid(-y_S * z_S),
    _logistic_conjugate,
    _LOGISTIC,
)
#: (z - y)^2 / 2 for any number y, with the conjugate alpha^2 / 2 - alpha y.
SQUARED = DualLoss(
    "squared",
    lambda z_S, y_S: (z_S - y_S).square() / 2,
    lambda z_S, y_S: z_S - y_S,
    lambda alpha_S, y_S: alpha_S.square() / 2 - alpha_S * y_S,
    _SQUARED,
)


@njit(cache=True, nogil=True)
def coordinate(code, smoothing, alpha, y, score, curvature):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Return the a that minimises conjugate(-a) + (a - alpha) score + curvature (a - alpha)^2 / 2, exactly.

    Args:
        code, smoothing: of the `DualLoss`.
        score: x r, with the solver's present r.
        curvature: sigma' M_tt c_t |x|^2 >= 0.

    An example without features has curvature and score 0 and moves no weight; its best a is y for the hinge.
    """
    if code == _SQUARED:
        return alpha + (y - alpha - score) / (1.0 + curvature)
    b, margin = y * alpha, y * score
    if code == _HINGE:
        if curvature + smoothing == 0.0:
            return y if margin < 1.0 else 0.0
        return y * min(1.0, max(0.0, b + (1.0 - margin - smoothing * b) / (curvature + smoothing)))
    # Logistic, with b = sigmoid(u): u + margin + curvature (sigmoid(u) - b) is increasing with slope >= 1, and changes
    # its sign between `low` and `high`.
    low, high = -margin - curvature * (1.0 - b), -margin + curvature * b
    u = 0.5 * (low + high)
    for _ in range(_NEWTON_STEPS_MAX):
        s = 1.0 / (1.0 + np.exp(-u))
        excess = u + margin + curvature * (s - b)
        if excess > 0.0:
            high = u
        else:
            low = u
        step = excess / (1.0 + curvature * s * (1.0 - s))
        if abs(step) <= 1e-15 * (1.0 + abs(u)):
            break
        u -= step
        if not low < u < high:
            u = 0.5 * (low + high)
    return y / (1.0 + np.exp(-u))
