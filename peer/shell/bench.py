"""What the trainer's thread does: a round of local steps, or an evaluation, whose model is kept for whoever uses it."""

from __future__ import annotations

import time
from pathlib import Path

from fedpeer.peer import models
from fedpeer.peer.core.events import Evaluate, Evaluated, Train, Trained
from fedpeer.peer.shell.prepared import Prepared
from fedpeer.peer.shell.status import Status


class Bench:
    """A peer's learner, and the folder in which its last evaluated model stands."""

    def __init__(self, prepared: Prepared, folder: Path, status: Status) -> None:
        outfit = prepared.outfit
        self._learner, self._layout = outfit.learner, outfit.assembly.layout
        self._card = models.Card.of(outfit.assembly, outfit.dataset, {prepared.file.id: outfit.held})
        self._folder, self._status = folder, status

    def work(self, job: Train | Evaluate) -> Trained | Evaluated:
        """Do one job."""
        began = time.perf_counter()
        if isinstance(job, Train):
            x_n, s_k = self._learner.train(job.round, job.x_n, job.s_k, job.fresh)
            self._status.took("train", time.perf_counter() - began)
            return Trained(job.round, x_n, s_k)
        score, loss = self._learner.evaluate(job.x_n)
        models.save(self._folder, self._card, job.x_n, self._layout)
        self._status.took("evaluate", time.perf_counter() - began)
        return Evaluated(job.round, score, loss)
