"""Jobs of the trainer's thread: local steps, the end of a round, and evaluations, whose model is saved.

If examples are held out for validation, the model that is best on them is kept beside the last one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from fedpeer.algorithms.answer_metrics import answer_scores
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.data.dataset import DataError
from fedpeer.learning import models
from fedpeer.learning.holdings import Outfit
from fedpeer.learning.outer import takes_outer_steps
from fedpeer.peer.node.trainer import LocalTrainer
from fedpeer.peer.runtime.prepared import Prepared, trainer_of
from fedpeer.peer.runtime.status import Status, TimedWork
from fedpeer.peer.state.events import (
    AggregateUpdates,
    Evaluate,
    Evaluated,
    FinishRound,
    Train,
    TrainClient,
    Work,
    Worked,
)
from fedpeer.peer.wire.roster import Roster
from fedpeer.slicing.flat import trainable_copy
from fedpeer.slicing.models import SlicingError


class JobRunner:
    """A peer's trainer, and the folder of its last evaluated model."""

    def __init__(
        self,
        prepared: Prepared,
        folder: Path,
        status: Status,
        warn: Callable[[str, str], None],
        inform: Callable[[str, str], None] = lambda what, text: None,
        turn: AbstractContextManager[None] | None = None,
        roster: Callable[[], Roster] | None = None,
    ) -> None:
        """
        Args:
            warn: called in the trainer's thread with the code and the text of a warning: a model was not saved, and the
                last one stays; a user's own metric failed; or changed data cannot be used.
            inform: called likewise with other news: changed data are used.
            turn: within which it trains and evaluates (`turns.py`).
            roster: returns the present roster; None: that of the start.
        """
        self._turn = turn or nullcontext()
        self._roster, self._under = roster or (lambda: prepared.roster), prepared.roster
        self._prepared, self._metrics = prepared, prepared.metrics
        self._module, self._layout = prepared.outfit.assembly.module, prepared.outfit.assembly.layout
        self._folder, self._status, self._warn, self._inform = folder, status, warn, inform
        self._take(prepared.outfit, prepared.trainer)

    def _take(self, outfit: Outfit, trainer: LocalTrainer) -> None:
        """Train on these data from now on."""
        self._outfit, self._trainer = outfit, trainer
        self._held_out = outfit.local_task.valid_digest
        self._tested = outfit.held.tested(outfit.dataset) if self._metrics else None
        self._card = models.Card.of(outfit.assembly, outfit.dataset, {self._prepared.file.id: outfit.held})

    def work(self, job: Work) -> Worked:
        """Do one job and record its duration."""
        if isinstance(job, Train | TrainClient):
            self._refresh()
            self._regroup()
        with self._turn if isinstance(job, Train | TrainClient | Evaluate) else nullcontext():
            began = time.perf_counter()
            done = self._done(job)
            self._status.took(_TIMED[type(job)], time.perf_counter() - began)
        return done

    def _refresh(self) -> None:
        """Take up changed data before a round's training, if the peer's file says so."""
        prepared = self._prepared
        if prepared.refresh is None:
            return
        try:
            found = prepared.refresh.look(self._outfit)
            if found is None:
                return
            trainer = self._trainer_on(found, self._under)
        except (DataError, AlgorithmError) as problem:
            why = " ".join(str(problem).split())  # all mistakes in a file are on lines of their own
            self._warn("data_not_taken", f"the changed data are not used, but those before: {why}")
            return
        before, now = self._outfit.local_task.examples, found.local_task.examples
        self._take(found, trainer)
        self._inform("data_taken", f"the data have changed: {now} training examples, {before} before")

    def _regroup(self) -> None:
        """Take the outer steps of this peer's groups under the present roster; nothing else depends on it.

        A peer that is revoked ends, so it keeps those that it has.
        """
        now = self._roster()
        if now is self._under or not takes_outer_steps(self._outfit.assembly.federation):
            return
        if self._prepared.file.id not in now.by_id:
            return
        try:
            self._trainer = self._trainer_on(self._outfit, now)
        except SlicingError:  # the groups stay as they are, which the node reports
            return
        self._under = now

    def _trainer_on(self, outfit: Outfit, roster: Roster) -> LocalTrainer:
        """Return the training on these data among the members of a roster."""
        prepared = self._prepared
        begun = roster.number > 1  # a running peer has a state
        return trainer_of(outfit, prepared.file, roster, prepared.device, prepared.secret, begun=begun)

    def _done(self, job: Work) -> Worked:
        done = self._trainer.work(job)
        if not (isinstance(job, Evaluate) and isinstance(done, Evaluated)):
            return done
        validation = done.validation
        try:
            models.save(self._folder, self._card, job.x_n, self._layout)
            best = None if validation is None else models.BestRound.of(job.round, *validation, self._held_out)
            if best is not None:
                models.save_best(self._folder, self._card, job.x_n, self._layout, best)
            elif validation is None and (dropped := models.forget_best(self._folder)) is not None:
                text = (
                    f"no examples are held out any more, so the model of round {dropped.round} is not kept as the best"
                )
                self._inform("best_model_forgotten", text)
        except OSError as problem:
            self._warn("model_not_kept", f"the model of round {job.round} was not saved: {problem.strerror}")
        except models.ModelError as problem:
            self._warn("model_not_kept", str(problem))
        return self._measured(done, job)

    def _measured(self, evaluated: Evaluated, job: Evaluate) -> Evaluated:
        """Add the metrics that the peer's own file names."""
        if self._tested is None:
            return evaluated
        (peer,), (x, y) = self._card.peers, self._tested
        model = models.Model.of(self._card, peer, trainable_copy(self._module, "cpu"), self._layout, job.x_n)
        found = answer_scores(self._metrics, y, model.answers(x))
        for name, problem in found.failed.items():
            self._warn("metric_failed", f"the metric {name} failed in round {job.round}: {problem}")
        return replace(evaluated, metrics=found.values)


_TIMED: dict[type[Work], TimedWork] = {
    Train: "train",
    Evaluate: "evaluate",
    TrainClient: "train",
    AggregateUpdates: "close",
    FinishRound: "settle",
}
