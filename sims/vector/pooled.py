"""All examples in one place: one model trained on what all peers hold, as each of them sees it.

No federation can do that; it is what learning together is compared with. A round is as many updates as those of all
peers together, over the examples of all of them shuffled as one. The model is scored on each peer's test part.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms import evaluation
from fedpeer.algorithms.batches import Batches, round_order
from fedpeer.algorithms.local_training import LocalTraining, TrainingState
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.sims.vector.engine import RoundTimes
from fedpeer.sims.vector.pool import Stopped
from fedpeer.sims.vector.tasks import workbench
from fedpeer.sims.vector.workspace import Job, Workspace

#: Updates between two looks at whether to stop.
_UPDATES_AT_ONCE = 256


class PooledEngine:
    """One model of one seed, in the leading process: its updates follow one from the other."""

    def __init__(self, job: Job, workspace: Workspace, start_n: Tensor, *, stop: threading.Event | None = None) -> None:
        """
        Args:
            workspace: its examples; nothing else of it is used.
            start_n: (n,) initial parameters.
        """
        self._job, self._workspace, self._stop = job, workspace, stop or threading.Event()
        self._stepper = job.stepper()
        self._training = LocalTraining(
            replace(workbench(job, self._stepper, workspace), optimizer_state=job.learning.optimizer_state)
        )
        self._x_n = start_n.to(job.device)
        self._state = self._training.start_client(self._x_n, torch.zeros((), dtype=torch.int64, device=job.device))
        self._x_TF = _seen(workspace)
        self.weights: dict[str, NDArray[Any]] = {}
        self.round = 0  # rounds finished

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def x_Pn(self) -> Tensor:
        """The one model, as each peer has it."""
        return self._x_n.expand(len(self._job.peers), -1)

    @property
    def traffic(self) -> tuple[list[int], list[int]]:
        """Nothing is sent but the examples themselves, before it begins."""
        return [0] * len(self._job.peers), [0] * len(self._job.peers)

    def step(self) -> RoundTimes:
        """One round.

        Raises:
            Stopped: if asked to stop meanwhile; the state is then that before the round.
        """
        number, began = self.round + 1, time.perf_counter()
        examples, steps, batch = len(self._x_TF), sum(self._job.steps_P), max(self._job.batch_P)
        order = round_order(examples, number, steps, min(batch, examples), self._job.draws, "")
        x_n, state = self._x_n, self._state
        for first in range(0, steps, _UPDATES_AT_ONCE):
            if self._stop.is_set():
                raise Stopped
            places = torch.from_numpy(order[first : first + _UPDATES_AT_ONCE]).to(self._x_n.device)
            batches = Batches(self._x_TF, places, self._workspace.train.y_T[places])
            # Whatever is dropped out is drawn anew in each piece.
            key = self._job.draws.key(f"dropout {first}", "", number)
            state, sent = self._training.train(state, ServerModel(x_n), batches, [key])
            x_n = sent.model_n
        self._x_n, self._state, self.round = x_n, state, number
        return RoundTimes(time.perf_counter() - began, 0.0)

    def evaluate(self, *, validation: bool = False) -> list[tuple[float, float]]:
        """(score, loss) of the model on each peer's test part, or on what was kept back."""
        found = []
        for peer, scale in enumerate(self._job.score_scale_P):
            part, view = self._workspace.scored(peer, validation=validation), self._workspace.seen_by([peer])
            seen = view and view.of(0)
            found.append(evaluation.evaluate(self._stepper, self._job.criterion, self._x_n, part, seen, scale))
        return found

    def evaluate_server(self, *, validation: bool = False) -> None:
        """There is one model, and no server."""

    def statistics(self) -> dict[str, list[float]]:
        return {}

    @property
    def relations_PP(self) -> None:
        """Nobody asks how tasks are related."""

    def disagreement(self) -> dict[str, float]:
        return {}

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to go on: tensors, and a small JSON-able state."""
        return {"x": self._x_n, "s": self._state.optimizer_k}, {"round": self.round, "fresh": not self._state.trained}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from a snapshot, to the very numbers of an uninterrupted run."""
        self._x_n = tensors["x"].to(self._job.device, copy=True)
        trained = self._state.trained.new_tensor(not state["fresh"])
        self._state = TrainingState(tensors["s"].to(self._job.device, copy=True), trained)
        self.round = state["round"]


def _seen(workspace: Workspace) -> Tensor:
    """(T, *F) the training inputs of all peers, one after the other, each as its peer sees it."""
    rows, first_P1 = workspace.train.index_T, workspace.train.first_P1
    x_TF = torch.index_select(workspace.x_NF, 0, rows)
    for peer, (first, last) in enumerate(np.stack([first_P1[:-1], first_P1[1:]], axis=1).tolist()):
        view = workspace.seen_by([peer])
        if view is not None:
            x_TF[first:last] = view.of(0)(x_TF[first:last], x_TF.dim() - 1)
    return x_TF
