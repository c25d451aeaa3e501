"""Centralised training of a linear model on all examples by MOCHA's local solver: the baseline for MOCHA's tasks.

MOCHA's own rounds converge to this model too (`mocha,omega=global`), but with steps so small that it is still far off
after hundreds of rounds: with one model for T nodes, the nodes' changes add up T times. Here the solver goes through
the examples of all nodes in sequence, and a round is some passes.

The objective is T times the mean hinge loss of all examples, plus lam/2 |w|^2. It is that of `omega=global`, except
that each example has the same weight, not each task.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedpeer.algorithms.mocha.dual import DualTask, gap_of, loss_of
from fedpeer.algorithms.mocha.linear import check_linear
from fedpeer.algorithms.mocha.losses import HINGE
from fedpeer.algorithms.mocha.relations import require
from fedpeer.algorithms.mocha.sdca import reshuffled, solve
from fedpeer.sims.engine import RoundTimes
from fedpeer.sims.vector.pool import Stopped
from fedpeer.sims.vector.pooled import PooledEngine
from fedpeer.sims.vector.tasks import training_context
from fedpeer.sims.vector.workspace import Job, Workspace


class PooledLinearEngine(PooledEngine):
    """One linear model with one seed, trained by MOCHA's local solver."""

    _weighted = False

    def __init__(
        self,
        job: Job,
        workspace: Workspace,
        start_n: Tensor,
        lam: float,
        passes: float,
        *,
        stop: threading.Event | None = None,
    ) -> None:
        """
        Args:
            lam: weight of the regulariser, > 0.
            passes: passes over all examples in a round, > 0.

        Raises:
            AlgorithmError: the network or the loss is not that of a linear model, or a number is out of its bounds.
        """
        super().__init__(job, workspace, start_n, stop=stop)
        check_linear(training_context(job, self._stepper, workspace), "global with lam", squared=False)
        require("lam", lam, lam > 0, "a number above 0")
        require("passes", passes, passes > 0, "a number above 0")
        x_SF = self._x_TF.flatten(1).to("cpu", torch.float64)
        if job.layout.n > x_SF.shape[1]:  # the bias is the weight of a feature that is always 1
            x_SF = functional.pad(x_SF, (0, 1), value=1.0)
        labels_S = 2 * workspace.train.y_T.reshape(-1).to("cpu", torch.float64) - 1
        self._task = DualTask(x_SF.contiguous(), labels_S, len(job.peers) / len(labels_S))
        self._lam, self._passes = lam, passes
        self._alpha_S = torch.zeros_like(labels_S)

    @property
    def _w_F(self) -> Tensor:
        return self._task.v_F(self._alpha_S) / self._lam

    def step(self) -> RoundTimes:
        if self._stop.is_set():
            raise Stopped
        number, began, examples = self.round + 1, time.perf_counter(), len(self._alpha_S)
        steps = max(1, int(self._passes * examples))
        order_H = reshuffled(examples, steps, self._job.draws.numpy("order", "", number))
        self._alpha_S, _ = solve(HINGE, self._task, self._alpha_S, self._w_F, 1 / self._lam, order_H)
        self._x_n, self.round = self._w_F.to(self._x_n), number
        return RoundTimes(time.perf_counter() - began, 0.0)

    def statistics(self) -> dict[str, list[float]]:
        """Return the duality gap and the primal objective, each divided equally among the peers."""
        w_F, peers = self._w_F, len(self._job.peers)
        primal = loss_of(HINGE, self._task, w_F) + self._lam / 2 * float(w_F.square().sum())
        gap = gap_of(HINGE, self._task, self._alpha_S, w_F)
        return {"gap": [gap / peers] * peers, "primal": [primal / peers] * peers}

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"x": self._x_n, "alpha": self._alpha_S}, {"round": self.round}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self._x_n, self._alpha_S = tensors["x"].to(self._job.device, copy=True), tensors["alpha"].clone()
        self.round = state["round"]
