"""Several runs side by side: which settings differ, and what each run reached. Pure but for reading the folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpeer.runs.disk import dumps
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.summary import summarise

#: Of each method's results, in the order of the table.
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
    """One entry a run in every tuple.

    settings   dotted key -> the value as JSON text, None where the run has no such setting; only keys that differ.
               Versions and the like come as `environment.*`
    results    (method, measure) -> number, None where the run has none; measures as in `summary.json`
    """

    runs: tuple[str, ...]
    settings: Mapping[str, tuple[str | None, ...]]
    results: Mapping[tuple[str, str], tuple[float | None, ...]]


def compare(runs: Sequence[RunFolder]) -> Comparison:
    """The runs side by side, in the order given. Unfinished ones show what they have reached so far."""
    options = [dict(flat({**(run.read("settings") or {}), "environment": run.read("environment")})) for run in runs]
    keys = [key for key in dict.fromkeys(key for each in options for key in each) if key != "command"]
    settings = {key: tuple(each.get(key) for each in options) for key in keys}
    reached = [(run.read("summary") or {}).get("methods") or summarise(run.rows()) for run in runs]
    methods = dict.fromkeys(method for each in reached for method in each)
    results = {(m, r): tuple(each.get(m, {}).get(r) for each in reached) for m in methods for r in RESULTS}
    return Comparison(
        runs=tuple(run.id for run in runs),
        settings={key: values for key, values in settings.items() if len(set(values)) > 1},
        results={key: values for key, values in results.items() if any(value is not None for value in values)},
    )


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf as (dotted key, JSON text); strings without quotes."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else dumps(value)
