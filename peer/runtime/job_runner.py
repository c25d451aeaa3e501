"""What the trainer's thread does: local steps, the end of a round, or an evaluation, whose model is kept for use."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

from fedpeer.learning import models
from fedpeer.peer.consensus.means import mean_result
from fedpeer.peer.runtime.prepared import Prepared
from fedpeer.peer.runtime.status import Status, Timed
from fedpeer.peer.state.events import (
    AggregateUpdates,
    Evaluate,
    Evaluated,
    FinishRound,
    Train,
    TrainClient,
    Trained,
    Work,
    Worked,
)


class JobRunner:
    """A peer's learner, its work under an algorithm with a server, and the folder of its last evaluated model."""

    def __init__(self, prepared: Prepared, folder: Path, status: Status, unsaved: Callable[[str], None]) -> None:
        """`unsaved` hears, in the trainer's thread, why a model is not kept; the one before is."""
        outfit = prepared.outfit
        self._learner, self._pupil = prepared.keeper or outfit.learner, prepared.pupil
        self._layout = outfit.assembly.layout
        self._card = models.Card.of(outfit.assembly, outfit.dataset, {prepared.file.id: outfit.held})
        self._folder, self._status, self._unsaved = folder, status, unsaved

    def work(self, job: Work) -> Worked:
        """Do one job."""
        began = time.perf_counter()
        done, what = self._done(job)
        self._status.took(what, time.perf_counter() - began)
        return done

    def _done(self, job: Work) -> tuple[Worked, Timed]:
        match job:
            case Train():
                x_n, s_k = self._learner.train(job.number, job.x_n, job.s_k, job.fresh)
                return Trained(job.round, x_n, s_k), "train"
            case Evaluate():
                server = None if job.server_n is None else self._learner.evaluate(job.server_n)
                score, loss = self._learner.evaluate(job.x_n)
                try:
                    models.save(self._folder, self._card, job.x_n, self._layout)
                except OSError as problem:
                    self._unsaved(f"the model of round {job.round} is not kept for use: {problem.strerror}")
                return Evaluated(job.round, score, loss, server), "evaluate"
            case AggregateUpdates() if self._pupil is None:
                return mean_result(job), _TIMED[AggregateUpdates]
            case TrainClient() | AggregateUpdates() | FinishRound():
                assert self._pupil is not None, "only an algorithm with a server asks for this"
                return self._pupil.work(job), _TIMED[type(job)]
            case _:
                assert_never(job)


_TIMED: dict[type[Work], Timed] = {TrainClient: "train", AggregateUpdates: "close", FinishRound: "settle"}
