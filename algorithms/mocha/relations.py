"""The relations of the tasks as one setting: the first coupling, and the next one from the weights.

The objective is  sum of losses + lam/2 tr(W^T Omega W) + ridge |W|^2.  Each name has its own Omega, learned or not, and
only the coupling M (T, T) of Omega is used (`omega`). Two names are baselines: `local`, where no task knows of another,
and `global`, where one model serves all tasks: the limit of an ever stronger pull of the models to their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.mocha import omega

RelationKind: TypeAlias = Literal[
    "trace-constrained", "mean-regularised", "clustered", "sparse-precision", "fixed", "local", "global"
]
_LEARNED: tuple[RelationKind, ...] = ("trace-constrained", "clustered", "sparse-precision")


@dataclass(frozen=True, kw_only=True)
class Relations:
    """One choice of relations with its numbers.

    kind       `trace-constrained`: Omega^-1 is any covariance of trace 1; `clustered`: it is eta I + Q, tasks in
               clusters; `sparse-precision`: graphical lasso; `mean-regularised`: all models are drawn to their mean;
               `fixed`: the covariance I / T, unless the owner of the coupling replaces it; `local`: Omega = I;
               `global`: one model for all tasks, |w|^2 counted once
    tasks      T, number of tasks
    lam        weight of tr(W^T Omega W) / 2, > 0
    ridge      weight of |W|^2, >= 0; > 0 with `mean-regularised`, 0 with `global`; default 0
    floor      with `trace-constrained`, part of the covariance that is I / T, in [0, 1]; default 1e-3
    clusters   with `clustered`, number of clusters, in (0, T]; default 2
    eta        with `clustered`, ridge of the covariance, > 0; default 0.1
    sparsity   with `sparse-precision`, weight of sum |Omega_tt'| beside lam/2 (tr(W^T Omega W) - F log|Omega|), > 0;
               default 0.01

    Raises:
        AlgorithmError: a number is out of its bounds; the message says which values are allowed.
    """

    kind: RelationKind
    tasks: int
    lam: float
    ridge: float = 0.0
    floor: float = 1e-3
    clusters: float = 2.0
    eta: float = 0.1
    sparsity: float = 0.01

    def __post_init__(self) -> None:
        require("lam", self.lam, self.lam > 0, "a number above 0")
        require("ridge", self.ridge, self.ridge >= 0, "0 or more")
        require("floor", self.floor, 0 <= self.floor <= 1, "a number from 0 to 1")
        require("eta", self.eta, self.eta > 0, "a number above 0")
        require("sparsity", self.sparsity, self.sparsity > 0, "a number above 0")
        if self.kind == "clustered":
            most = f"a number above 0 and up to {self.tasks}, the number of clients"
            require("clusters", self.clusters, 0 < self.clusters <= self.tasks, most)
        if self.kind == "mean-regularised" and self.ridge == 0:
            raise AlgorithmError(
                "omega = mean-regularised does not regularise the mean of all models; write ridge=... above 0 too"
            )
        if self.kind == "global" and self.ridge:
            raise AlgorithmError("omega = global has a single weight of regularisation; write lam=... alone")

    @property
    def learned(self) -> bool:
        """True if the coupling follows from the weights."""
        return self.kind in _LEARNED

    def start(self) -> Tensor:
        """Return the first coupling, (T, T) float64: the one of W = 0, or with the graphical lasso of Omega = I."""
        eye_TT = torch.eye(self.tasks, dtype=torch.float64)
        match self.kind:
            case "trace-constrained" | "fixed":
                return self._of_covariance(eye_TT / self.tasks)
            case "clustered":
                return self._of_covariance((self.eta + self.clusters / self.tasks) * eye_TT)
            case "mean-regularised":
                return self._of_precision(omega.mean_regularised(self.tasks))
            case "sparse-precision" | "local":
                return self._of_precision(eye_TT)
            case "global":
                return torch.ones_like(eye_TT) / self.lam

    def after(self, w_TF: Tensor) -> tuple[Tensor, float]:
        """Return the coupling (T, T) that follows from the weights (T, F), where it is learned, and its excess.

        The joint objective is at most `excess` above its minimum over the relations; 0 where that has a closed form.
        """
        match self.kind:
            case "trace-constrained":
                return self._of_covariance(omega.trace_constrained(w_TF, self.floor)), 0.0
            case "clustered":
                return self._of_covariance(omega.clustered(w_TF, self.eta, self.clusters).covariance_TT), 0.0
            case "sparse-precision":
                found = omega.sparse_precision(w_TF, self.lam / 2, self.sparsity)
                return self._of_precision(found.omega_TT), found.excess
            case _:
                raise AssertionError(f"{self.kind} is not learned")

    def _of_covariance(self, sigma_TT: Tensor) -> Tensor:
        return omega.coupling_of_covariance(sigma_TT, self.lam / 2, self.ridge)

    def _of_precision(self, omega_TT: Tensor) -> Tensor:
        return omega.coupling_of_penalty(omega.penalty(omega_TT, self.lam / 2, self.ridge))


def correlations(coupling_TT: Tensor) -> Tensor:
    """Return M_tt' / sqrt(M_tt M_t't'), (T, T) in [-1, 1]: the penalty treats M as the covariance of the weights."""
    deviation_T = coupling_TT.diagonal().sqrt()
    return (coupling_TT / torch.outer(deviation_T, deviation_T)).clamp(-1, 1).fill_diagonal_(1)


def require(name: str, value: object, holds: bool, wanted: str) -> None:
    """Raise an AlgorithmError if the condition on a setting does not hold; `wanted` says which values are allowed."""
    if not holds:
        raise AlgorithmError(f"{name} = {value}: write {wanted}")
