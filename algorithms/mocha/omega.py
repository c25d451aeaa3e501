"""The relations of tasks from their weights W (T, F): updates of Omega, or of its inverse Sigma, and the coupling.

Each relation has the form that needs no inverse: the trace-constrained and the clustered relation are a covariance
Sigma, the mean-regularised and the sparse relation a precision Omega. Either form gives the coupling M (see the
package's docstring), and the W step needs nothing else. An update depends on W alone, never on data, and is made at the
server.

Sources: Smith et al., Federated multi-task learning, NIPS 2017, appendix B; Zhang, Yeung, A convex formulation for
learning task relationships in multi-task learning, UAI 2010 (trace-constrained); Jacob, Bach, Vert, Clustered
multi-task learning, NIPS 2008, and Zhou, Chen, Ye, Clustered multi-task learning via alternating structure
optimization, NIPS 2011 (clustered); Goncalves et al., Multi-task sparse structure learning, CIKM 2014, and Friedman,
Hastie, Tibshirani, Sparse inverse covariance estimation with the graphical lasso, Biostatistics 2008, and Boyd et al.,
Distributed optimization via the alternating direction method of multipliers, 2011, section 6.5 (sparse precision).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

#: Most steps of the graphical lasso, and the relative distance of its two halves at which it stops. Thirty tasks take
#: 100 to 1300 steps, about a second, down to a penalty of a hundredth of the variance; a far weaker one takes them all.
LASSO_STEPS_MAX, LASSO_TOLERANCE = 2000, 1e-10
#: Fractions that are tried of the step to the best Sigma of the dual.
_DUAL_PARTS = (1.0, 0.999, 0.99, 0.9, 0.5, 0.0)


def penalty(omega_TT: Tensor, lambda1: float, lambda2: float) -> Tensor:
    """Return A = lambda1 Omega + lambda2 I, (..., T, T), of R(W) = lambda1 tr(W^T Omega W) + lambda2 |W|^2."""
    return lambda1 * omega_TT + lambda2 * torch.eye(omega_TT.shape[-1], dtype=omega_TT.dtype)


def coupling_of_penalty(a_TT: Tensor) -> Tensor:
    """Return M = 1/2 A^-1, the Hessian of R* where R(W) = tr(W^T A W).

    Raises:
        torch.linalg.LinAlgError: A is not positive definite; a singular Omega needs lambda2 > 0.
    """
    return torch.cholesky_inverse(torch.linalg.cholesky(a_TT)) / 2


def coupling_of_covariance(sigma_TT: Tensor, lambda1: float, lambda2: float = 0.0) -> Tensor:
    """Return M = 1/2 Sigma (lambda1 I + lambda2 Sigma)^-1, the M of the same R(W) with Omega = Sigma^-1.

    It exists for a singular Sigma as well. The program's (lambda / 2) tr(W^T Omega W) is lambda1 = lambda / 2, lambda2
    = 0: M = Sigma / lambda.
    """
    eye_TT = torch.eye(sigma_TT.shape[-1], dtype=sigma_TT.dtype)
    half_TT: Tensor = torch.linalg.solve(lambda1 * eye_TT + lambda2 * sigma_TT, sigma_TT) / 2
    return (half_TT + half_TT.mT) / 2  # symmetric to the last bit, whatever the solve rounded


def trace_constrained(w_TF: Tensor, floor: float = 1e-3) -> Tensor:
    """Return Sigma = (W W^T)^1/2 / tr(.), which minimises tr(W^T Sigma^-1 W) under tr Sigma = 1, (..., T, T).

    Args:
        floor: the part of Sigma that is I / T instead, in [0, 1]. It keeps Sigma positive definite, and the tasks'
            models independent, where W has few directions, or none yet: W = 0 gives I / T, where the method starts.
    """
    vectors_TK, singular_K, _ = torch.linalg.svd(w_TF, full_matrices=False)
    tasks = w_TF.shape[-2]
    eye_TT = torch.eye(tasks, dtype=w_TF.dtype) / tasks
    trace = singular_K.sum(-1)[..., None, None]
    root_TT = (vectors_TK * singular_K[..., None, :]) @ vectors_TK.mT
    learned_TT = torch.where(trace > 0, root_TT / trace, eye_TT)
    return (1 - floor) * learned_TT + floor * eye_TT


def mean_regularised(tasks: int) -> Tensor:
    """Return Omega = (I - 11^T / T)^2, (T, T): every model is drawn to the mean of all.

    It is a projector, so lambda2 must be > 0.
    """
    centred_TT = torch.eye(tasks, dtype=torch.float64) - 1 / tasks
    return centred_TT @ centred_TT


@dataclass(frozen=True, eq=False)
class Clustering:
    """The relaxed assignment of tasks to clusters.

    singular_T   (..., T) singular values of W, ascending; Q has the eigenvectors that belong to them
    q_T          (..., T) eigenvalues of Q in [0, 1], which sum to the number of clusters
    q_TT         (..., T, T) Q itself
    eta          > 0, the eta of the covariance eta I + Q
    """

    singular_T: Tensor
    q_T: Tensor
    q_TT: Tensor
    eta: float

    @property
    def covariance_TT(self) -> Tensor:
        """Sigma = eta I + Q, (..., T, T); Omega is its inverse."""
        return self.eta * torch.eye(self.q_TT.shape[-1], dtype=self.q_TT.dtype) + self.q_TT


def clustered(w_TF: Tensor, eta: float, clusters: float) -> Clustering:
    """Return the Q that minimises tr(W^T (eta I + Q)^-1 W) over 0 <= Q <= I, tr Q = clusters.

    Q shares its eigenvectors with W W^T, and q_i = clip(c s_i - eta, 0, 1) with s_i the singular values of W. Their sum
    grows piecewise linearly with c, so that c is found exactly between two corners and not by bisection.
    """
    tasks, features = w_TF.shape[-2:]
    assert eta > 0, "a positive ridge"
    assert 0 < clusters <= tasks, "at least part of a cluster, and not more than there are tasks"
    # Zero features add nothing to W W^T and make the vectors a basis of all T dimensions.
    padded_TF = functional.pad(w_TF, (0, max(0, tasks - features)))
    vectors_TT, descending_T, _ = torch.linalg.svd(padded_TF, full_matrices=False)
    vectors_TT, singular_T = vectors_TT.flip(-1), descending_T.flip(-1)
    # Directions in which W is zero are interchangeable: with equally small values they share the rest of the sum.
    least = 1e-12 * singular_T[..., -1:].clamp(min=1e-290)
    s_T = singular_T.maximum(least)
    corner_C = torch.cat([eta / s_T, (1 + eta) / s_T], -1).sort(-1).values
    total_C = (corner_C[..., :, None] * s_T[..., None, :] - eta).clamp(0, 1).sum(-1)
    after = (total_C < clusters).sum(-1, keepdim=True).clamp(max=2 * tasks - 1)
    (c0, c1), (t0, t1) = ((at_C.gather(-1, after - 1), at_C.gather(-1, after)) for at_C in (corner_C, total_C))
    c = c0 + (clusters - t0) / (t1 - t0) * (c1 - c0)
    q_T = (c * s_T - eta).clamp(0, 1)
    return Clustering(singular_T, q_T, (vectors_TT * q_T[..., None, :]) @ vectors_TT.mT, eta)


@dataclass(frozen=True, eq=False)
class Precision:
    """A precision Omega and how good it is.

    omega_TT   (T, T)
    excess     bound on its objective minus the minimum, >= 0, in the objective's units
    """

    omega_TT: Tensor
    excess: float


def sparse_precision(w_TF: Tensor, lambda1: float, lambda2: float) -> Precision:
    """Return the Omega (T, T) that minimises lambda1 (tr(W^T Omega W) - F log|Omega|) + lambda2 sum |Omega_tt'|.

    Tasks t and t' with Omega_tt' = 0 are independent given all others. The diagonal is penalised too (lambda2 > 0), so
    that fewer features than tasks, and W = 0, are no special cases. It takes at most `LASSO_STEPS_MAX` steps; if these
    are too few, Omega is positive definite all the same, and `excess` says how good it is.
    """
    assert lambda1 > 0, "a weight of the likelihood"
    assert lambda2 > 0, "without it there may be no minimum"
    tasks, features = w_TF.shape
    eye_TT = torch.eye(tasks, dtype=w_TF.dtype)
    alpha = lambda2 / (lambda1 * features)
    # A diagonal of Omega is positive, so its penalty is linear, and part of the covariance.
    covariance_TT = w_TF @ w_TF.mT / features + alpha * eye_TT
    scale = covariance_TT.diagonal().mean().item()
    found = _graphical_lasso(covariance_TT / scale, alpha / scale * (1 - eye_TT))
    return Precision(found.omega_TT / scale, lambda1 * features * found.excess)


def _graphical_lasso(covariance_TT: Tensor, alpha_TT: Tensor) -> Precision:
    """Return the Omega that minimises tr(S Omega) - log|Omega| + sum alpha |Omega|, for an S of mean variance 1.

    The method is alternating directions: `pull` draws X, smooth and positive definite, and Z, sparse, to one another.
    """
    z_TT, u_TT, pull = torch.eye(len(covariance_TT), dtype=covariance_TT.dtype), torch.zeros_like(covariance_TT), 1.0
    for done in range(LASSO_STEPS_MAX):
        value_T, vectors_TT = torch.linalg.eigh(pull * (z_TT - u_TT) - covariance_TT)
        root_T = (value_T + (value_T.square() + 4 * pull).sqrt()) / (2 * pull)
        x_TT, before_TT = (vectors_TT * root_T) @ vectors_TT.mT, z_TT
        sum_TT = x_TT + u_TT
        z_TT = sum_TT.sign() * (sum_TT.abs() - alpha_TT / pull).clamp(min=0)
        u_TT = sum_TT - z_TT
        apart, moved = (x_TT - z_TT).norm(), pull * (z_TT - before_TT).norm()
        if apart <= LASSO_TOLERANCE * x_TT.norm() and moved <= LASSO_TOLERANCE * (pull * u_TT).norm():
            break
        # The pull that balances the two is adapted in the first half of the steps only: later it would disturb
        # convergence.
        if done % 10 == 0 and done < LASSO_STEPS_MAX // 2 and not moved / 10 <= apart <= moved * 10:
            factor = 2.0 if apart > moved else 0.5
            pull, u_TT = pull * factor, u_TT / factor
    # Z has the zeros; if the steps ended before it became positive definite, X is.
    omega_TT = z_TT if torch.linalg.cholesky_ex(z_TT).info == 0 else x_TT
    reached = (covariance_TT * omega_TT).sum() - torch.logdet(omega_TT) + (alpha_TT * omega_TT.abs()).sum()
    return Precision(omega_TT, max(0.0, reached.item() - _least(covariance_TT, pull * u_TT)))


def _least(covariance_TT: Tensor, within_TT: Tensor) -> float:
    """Return a bound below the minimum of the graphical lasso: the dual, log|Sigma| + T, where |Sigma - S| <= alpha.

    `within_TT` satisfies this bound alpha. S plus all of it is the best such Sigma at the end, but need not be positive
    definite before. S plus a part of it is positive definite, since S is.
    """
    determinants = (_log_determinant(covariance_TT + part * within_TT) for part in _DUAL_PARTS)
    return max(determinants) + len(covariance_TT)


def _log_determinant(sigma_TT: Tensor) -> float:
    """Return log|Sigma|, or minus infinity where Sigma is not positive definite."""
    lower_TT, info = torch.linalg.cholesky_ex(sigma_TT)
    return 2 * lower_TT.diagonal().log().sum().item() if info == 0 else -torch.inf
