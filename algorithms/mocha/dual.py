"""The tasks of MOCHA's W step, their parts of the primal objective and of the gap, the subproblem, sigma' and theta.

Plain functions of tasks, dual variables alpha_t (S,) with the sign of their labels, V and W (T, F) and the coupling M
(T, T), all float64; the conventions are in the package's docstring. The dual is minimised, as in the paper: at the
optimum P(W) = -D(alpha). Nothing here changes its arguments; the steps are in `sdca`.

Source: Smith et al., Federated multi-task learning, NIPS 2017: problem (1), dual (3), subproblem (4), theta (definition
1), sigma' (lemma 9). M is the Hessian of R*, 1/2 A^-1 in the paper's setting: w(alpha) = grad R*(X alpha) needs the
half.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedpeer.algorithms.mocha.losses import DualLoss


@dataclass(frozen=True, eq=False)
class DualTask:
    """The examples of one node.

    x_SF     (S, F) float64, S >= 1 examples
    y_S      (S,) float64 labels: -1 or 1, or numbers for the squared loss
    weight   c_t, weight of each example's loss: 1 (`summed`) or 1 / S (`averaged`)
    """

    x_SF: Tensor
    y_S: Tensor
    weight: float

    def __post_init__(self) -> None:
        assert self.x_SF.dtype == self.y_S.dtype == torch.float64, "the duality gap needs float64"
        assert self.y_S.shape == self.x_SF.shape[:1], "one label for each example"

    @staticmethod
    def summed(x_SF: Tensor, y_S: Tensor) -> DualTask:
        """Return the task in the paper's convention: P sums the losses."""
        return DualTask(x_SF.contiguous(), y_S, 1.0)

    @staticmethod
    def averaged(x_SF: Tensor, y_S: Tensor) -> DualTask:
        """Return the task in the program's convention: P sums the tasks' mean losses."""
        return DualTask(x_SF.contiguous(), y_S, 1.0 / len(y_S))

    @cached_property
    def square_S(self) -> Tensor:
        """Squared norms of the examples, (S,)."""
        return self.x_SF.square().sum(-1)

    @cached_property
    def gram_SS(self) -> Tensor:
        """Inner products of the examples, (S, S): S^2 numbers beside the S F of the examples."""
        return self.x_SF @ self.x_SF.mT

    def v_F(self, alpha_S: Tensor) -> Tensor:
        """Return v_t = c_t X_t alpha_t, (F,): all that other tasks need of this task's dual variables."""
        return (alpha_S @ self.x_SF) * self.weight


def w_of(v_TF: Tensor, coupling_TT: Tensor) -> Tensor:
    """Return W(alpha) = grad R*(V) = M V, (..., T, F)."""
    return coupling_TT @ v_TF


def loss_of(loss: DualLoss, task: DualTask, w_F: Tensor) -> float:
    """Return one task's part of the primal objective without the regulariser."""
    return task.weight * loss.value(task.x_SF @ w_F, task.y_S).sum().item()


def gap_of(loss: DualLoss, task: DualTask, alpha_S: Tensor, w_F: Tensor) -> float:
    """Return one task's part of the duality gap, >= 0, which the task's node can compute alone.

    P + D = sum_t c_t sum_i loss(z_ti) + loss*(-alpha_ti) + alpha_ti z_ti, since R(W) + R*(V) = <V, W>: its terms are
    never negative (Fenchel, Young), so no digits are lost as the gap closes. With r = w_t + sigma' M_tt delta_v in the
    place of w_t it is the gap of the local subproblem.
    """
    score_S = task.x_SF @ w_F
    terms_S = loss.value(score_S, task.y_S) + loss.conjugate(alpha_S, task.y_S) + alpha_S * score_S
    return task.weight * terms_S.sum().item()


def sigma_primes(coupling_TT: Tensor) -> Tensor:
    """Return sigma'_t = sum_t' |M_tt'| / M_tt for each task, (..., T) >= 1.

    By diagonal dominance sum_t sigma'_t M_tt |delta v_t|^2 >= tr(delta V^T M delta V), so that all tasks may take their
    whole steps at once (aggregation 1).
    """
    return coupling_TT.abs().sum(-1) / coupling_TT.diagonal(dim1=-2, dim2=-1)


def sigma_prime(coupling_TT: Tensor) -> Tensor:
    """Return the paper's single sigma' for all tasks, (...): the largest of `sigma_primes`, 1 for unrelated tasks."""
    return sigma_primes(coupling_TT).amax(-1)


def subproblem(
    loss: DualLoss,
    task: DualTask,
    alpha_S: Tensor,
    new_alpha_S: Tensor,
    w_F: Tensor,
    curvature: float,
    constant: float = 0.0,
) -> float:
    """Return the subproblem's objective G_t, to be minimised over new_alpha = alpha + delta alpha.

    Args:
        curvature: sigma' M_tt.
        constant: with R*(V) / T, the sum over tasks of G_t is the dual itself at alpha, and an upper bound of the dual
            at new alphas; nothing else depends on it.
    """
    delta_v_F = task.v_F(new_alpha_S - alpha_S)
    quadratic = w_F @ delta_v_F + curvature / 2 * delta_v_F.square().sum()
    return _conjugates(loss, task, new_alpha_S) + quadratic.item() + constant


def theta(reached: float, start: float, optimum: float) -> float:
    """Return (G(delta) - G*) / (G(0) - G*): 0 for an exact solution, 1 for no progress.

    It is also 0 if the start is the optimum.
    """
    return (reached - optimum) / (start - optimum) if start > optimum else 0.0


def theta_bound(reached: float, start: float, local_gap: float) -> float:
    """Return an upper bound of `theta` that needs no G*.

    theta grows with G(delta) - G*, which is at most the local gap.
    """
    return theta(reached, start, reached - local_gap)


def _conjugates(loss: DualLoss, task: DualTask, alpha_S: Tensor) -> float:
    return task.weight * loss.conjugate(alpha_S, task.y_S).sum().item()
