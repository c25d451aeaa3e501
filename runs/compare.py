"""Compares several runs: the settings that differ, and the results of each. Pure except for reading the folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpeer.runs.disk import dumps
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.summary import summarise

#: The results of each method, in the order of the table.
RESULTS = (
    "accuracy_mean",
    "accuracy_sem",
    "accuracy_worst",
    "accuracy_spread",
    "error_mean",
    "error_sem",
    "error_worst",
    "error_spread",
    "bytes_sent",
    "messages_sent",
    "seconds_per_round",
    "rounds",
)


@dataclass(frozen=True)
class Comparison:
    """Settings and results of several runs; every tuple has one entry per run.

    settings   dotted key -> the value as JSON text, None if the run has no such setting; only keys that differ. The
               environment (versions, device, ...) is under `environment.*`
    results    (method, measure) -> number, None if the run has none; measures as in `summary.json`
    """

    runs: tuple[str, ...]
    settings: Mapping[str, tuple[str | None, ...]]
    results: Mapping[tuple[str, str], tuple[float | None, ...]]


def compare(runs: Sequence[RunFolder]) -> Comparison:
    """Compare runs in the given order; unfinished runs have their results so far."""
    requests = [dict(flat({**(run.read("settings") or {}), "environment": run.read("environment")})) for run in runs]
    keys = [key for key in dict.fromkeys(key for each in requests for key in each) if key != "command"]
    settings = {key: tuple(each.get(key) for each in requests) for key in keys}
    reached = [(run.read("summary") or {}).get("methods") or summarise(run.rows()) for run in runs]
    methods = dict.fromkeys(method for each in reached for method in each)
    results = {(m, r): tuple(each.get(m, {}).get(r) for each in reached) for m in methods for r in RESULTS}
    return Comparison(
        runs=tuple(run.id for run in runs),
        settings={key: values for key, values in settings.items() if len(set(values)) > 1},
        results={key: values for key, values in results.items() if any(value is not None for value in values)},
    )


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every leaf as (dotted key, JSON text); text is without quotes."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else dumps(value)
