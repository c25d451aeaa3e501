"""Jobs of the trainer's thread: local steps, the end of a round, and evaluations, whose model is saved."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedpeer.learning import models
from fedpeer.peer.runtime.prepared import Prepared
from fedpeer.peer.runtime.status import Status, Timed
from fedpeer.peer.state.events import (
    AggregateUpdates,
    Evaluate,
    FinishRound,
    Train,
    TrainClient,
    Work,
    Worked,
)


class JobRunner:
    """A peer's trainer, and the folder of its last evaluated model."""

    def __init__(self, prepared: Prepared, folder: Path, status: Status, unsaved: Callable[[str], None]) -> None:
        """`unsaved` is called in the trainer's thread with the reason if a model was not saved; the last one stays."""
        outfit = prepared.outfit
        self._trainer = prepared.trainer
        self._layout = outfit.assembly.layout
        self._card = models.Card.of(outfit.assembly, outfit.dataset, {prepared.file.id: outfit.held})
        self._folder, self._status, self._unsaved = folder, status, unsaved

    def work(self, job: Work) -> Worked:
        """Do one job and record its duration."""
        began = time.perf_counter()
        done = self._done(job)
        self._status.took(_TIMED[type(job)], time.perf_counter() - began)
        return done

    def _done(self, job: Work) -> Worked:
        done = self._trainer.work(job)
        if isinstance(job, Evaluate):
            try:
                models.save(self._folder, self._card, job.x_n, self._layout)
            except OSError as problem:
                self._unsaved(f"the model of round {job.round} was not saved: {problem.strerror}")
        return done


_TIMED: dict[type[Work], Timed] = {
    Train: "train",
    Evaluate: "evaluate",
    TrainClient: "train",
    AggregateUpdates: "close",
    FinishRound: "settle",
}
