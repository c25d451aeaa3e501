"""Centralised training: one model trained on the examples of all peers, as each peer sees them.

No federation can do this; it is the baseline for learning together. A round has as many steps as all peers together
take, over all examples shuffled as one set. The model is scored on each peer's test part.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpeer.algorithms import evaluation
from fedpeer.algorithms.batches import Batches, round_order
from fedpeer.algorithms.class_weights import balanced
from fedpeer.algorithms.local_training import LocalTraining, TrainingState
from fedpeer.algorithms.precision import unrounded
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.sims.engine import Engine, RoundTimes
from fedpeer.sims.vector.pool import Stopped
from fedpeer.sims.vector.tasks import training_context
from fedpeer.sims.vector.workspace import Job, Workspace

#: Steps between two checks for a stop.
_UPDATES_AT_ONCE = 256


class PooledEngine(Engine):
    """One model with one seed, trained in the leading process since its steps cannot run in parallel."""

    _weighted = True  # whether classes have weights in training

    def __init__(self, job: Job, workspace: Workspace, start_n: Tensor, *, stop: threading.Event | None = None) -> None:
        """
        Args:
            workspace: only its examples are used.
            start_n: (n,) initial parameters.
        """
        self._job, self._workspace, self._stop = job, workspace, stop or threading.Event()
        self._stepper = job.stepper()
        self._training = LocalTraining(training_context(job, self._stepper, workspace))
        self._x_n = start_n.to(job.device)
        self._fresh = self._training.start_client(self._x_n, torch.zeros((), dtype=torch.int64, device=job.device))
        self._state = self._fresh
        self._x_TF = _seen(workspace)
        self._class_weight = _class_weight(job, workspace)

    @property
    def x_Pn(self) -> Tensor:
        """The model, repeated for each peer."""
        return self._x_n.expand(len(self._job.peers), -1)

    @property
    def traffic(self) -> tuple[list[int], list[int]]:
        """Zero: nothing is sent but the examples, before training starts."""
        return [0] * len(self._job.peers), [0] * len(self._job.peers)

    def step(self) -> RoundTimes:
        number, began = self.round + 1, time.perf_counter()
        examples, steps, batch = len(self._x_TF), sum(self._job.steps_P), max(self._job.batch_P)
        order = round_order(examples, number, steps, min(batch, examples), self._job.draws, "")
        # A round is trained in pieces, so the state is reset here and not by each of them.
        x_n, state = self._x_n, self._fresh if self._job.learning.optimizer_state == "reset" else self._state
        for first in range(0, steps, _UPDATES_AT_ONCE):
            if self._stop.is_set():
                raise Stopped
            places = torch.from_numpy(order[first : first + _UPDATES_AT_ONCE]).to(self._x_n.device)
            y = self._workspace.train.y_T[places]
            batches = Batches(self._x_TF, places, y, class_weight=self._class_weight)
            # Each piece draws its dropout masks from a key of its own.
            key = self._job.draws.key(f"dropout {first}", "", number)
            with unrounded(self._job.device):
                state, sent = self._training.train(state, ServerModel(x_n), batches, [key])
            x_n = sent.model_n
        self._x_n, self._state, self.round = x_n, state, number
        return RoundTimes(time.perf_counter() - began, 0.0)

    def evaluate(self, *, validation: bool = False) -> list[tuple[float, float]]:
        """Return (score, loss) of the model on each peer's test or validation part."""
        found = []
        for peer, scale in enumerate(self._job.score_scale_P):
            part = self._workspace.scored(peer, validation=validation, weighted=self._weighted)
            view = self._workspace.seen_by([peer])
            seen = view and view.of(0)
            with unrounded(self._job.device):
                found.append(evaluation.evaluate(self._stepper, self._job.criterion, self._x_n, part, seen, scale))
        return found

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"x": self._x_n, "s": self._state.optimizer_k}, {"round": self.round, "fresh": not self._state.trained}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self._x_n = tensors["x"].to(self._job.device, copy=True)
        trained = self._state.trained.new_tensor(not state["fresh"])
        self._state = TrainingState(tensors["s"].to(self._job.device, copy=True), trained)
        self.round = state["round"]


def _class_weight(job: Job, workspace: Workspace) -> Tensor | None:
    """Return the weight of each class in the loss, (C,); balanced weights are those of all examples together."""
    weight_PC = workspace.class_weight_PC
    if weight_PC is None:
        return None
    by_rule = isinstance(job.learning.class_weights, str)
    return balanced(workspace.train.y_T, weight_PC.shape[1]) if by_rule else weight_PC[0]


def _seen(workspace: Workspace) -> Tensor:
    """Return the training inputs of all peers, (T, *F), one peer after the other, each as its peer sees it."""
    rows, first_P1 = workspace.train.index_T, workspace.train.first_P1
    x_TF = torch.index_select(workspace.x_NF, 0, rows)
    for peer, (first, last) in enumerate(np.stack([first_P1[:-1], first_P1[1:]], axis=1).tolist()):
        view = workspace.seen_by([peer])
        if view is not None:
            x_TF[first:last] = view.of(0)(x_TF[first:last], x_TF.dim() - 1)
    return x_TF
