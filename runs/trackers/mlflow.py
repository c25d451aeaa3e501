"""MLflow: a run for each series, on a server or in a local store."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedpeer.runs.trackers.tracker import Series, Tracker

#: The tag by which a series is found again.
_TAG = "fedpeer.series"
#: MLflow's limits of one call, and of a parameter's text.
_PARAMS_MAX, _METRICS_MAX, _TEXT_MAX = 100, 1000, 6000
#: Seconds of rounds that are sent together: a call takes some 10 ms, which may be a third of a quick round.
SENT_EVERY_S = 1.0

T = TypeVar("T")


def mlflow(*, uri: str | None = None, experiment: str = "fedpeer") -> Tracker:
    """Log to MLflow at `uri`, such as http://host:5000 or sqlite:///mlflow.db; default: as MLflow is set up."""
    return _Mlflow(uri, experiment)


@dataclass(frozen=True)
class _Mlflow:
    uri: str | None
    experiment: str

    def open(self, series: Series, parameters: Mapping[str, object]) -> _Run:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client = MlflowClient(tracking_uri=self.uri)
        known = client.get_experiment_by_name(self.experiment)
        experiment = client.create_experiment(self.experiment) if known is None else known.experiment_id
        found = client.search_runs([experiment], f"tags.`{_TAG}` = '{series.id}'", max_results=1)
        if found:
            run = found[0].info.run_id
            client.update_run(run, status="RUNNING")
            return _Run(client, run)
        tags = {_TAG: series.id, "fedpeer.group": series.group}
        run = client.create_run(experiment, run_name=series.name, tags=tags).info.run_id
        texts = [Param(_key(name), str(value)[:_TEXT_MAX]) for name, value in parameters.items()]
        for some in _pieces(texts, _PARAMS_MAX):
            client.log_batch(run, params=some)
        return _Run(client, run)


@dataclass
class _Run:
    """A run, and the numbers of quick rounds that have not been sent yet."""

    client: Any
    id: str
    waiting: list[Any] = field(default_factory=list)
    sent: float = field(default_factory=time.monotonic)

    def add(self, values: Mapping[str, float], round: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self.waiting += [Metric(_key(name), value, now, round) for name, value in values.items()]
        if time.monotonic() - self.sent >= SENT_EVERY_S:
            self._send()

    def close(self) -> None:
        self._send()
        self.client.set_terminated(self.id)

    def _send(self) -> None:
        for some in _pieces(self.waiting, _METRICS_MAX):
            self.client.log_batch(self.id, metrics=some)
        self.waiting, self.sent = [], time.monotonic()


def _pieces(values: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (values[first : first + most] for first in range(0, len(values), most))


def _key(name: str) -> str:
    """Return a name without the characters that MLflow refuses."""
    return re.sub(r"[^\w\-. /]", "_", name)
