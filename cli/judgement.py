"""Measures a model's answers for `fedpeer evaluate`: metrics, each class, and which classes are confused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedpeer.algorithms.answer_metrics import ANSWER_METRICS, answer_scores, class_scores, confusion
from fedpeer.config.building import metrics_of
from fedpeer.config.choice import Choice
from fedpeer.config.problems import ConfigError, ConfigProblem
from fedpeer.config.registries import metric_problems
from fedpeer.data.own.code import imported
from fedpeer.learning.models import Model

#: Most classes that have a line each; fewest columns for a class's name beside its confusions.
_LISTED_MAX, _NAME_MIN = 100, 12


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Measurements of a model's answers.

    metrics     by name; NaN: not defined on these examples
    classes     names of the classes or labels; empty for other targets
    by_class    (C, 4): precision, recall, F1, examples; empty for other targets
    confusion   (C, C): examples of each class (rows) by answer (columns); empty for other targets
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    classes: Sequence[str] = ()
    by_class: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 4)))
    confusion: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 0), np.int64))

    def to_json(self) -> dict[str, Any]:
        """Return the entries of the `--json` object; null: not defined."""
        found: dict[str, Any] = {
            "metrics": {name: value if math.isfinite(value) else None for name, value in self.metrics.items()}
        }
        if self.classes:
            columns = ("precision", "recall", "f1", "examples")
            rows = zip(self.classes, self.by_class.tolist(), strict=True)
            found["classes"] = {name: dict(zip(columns, row, strict=True)) for name, row in rows}
        if self.confusion.size:
            found["confusion"] = self.confusion.tolist()
        return found

    def shown(self, width: int = 80) -> Iterator[Table | str]:
        """Yield the tables and sentences to show on a terminal of `width` columns."""
        if self.metrics:
            yield ", ".join(
                f"{name} {value:.4g}" if math.isfinite(value) else f"{name} not defined here"
                for name, value in self.metrics.items()
            )
        if len(self.classes) > _LISTED_MAX:
            yield f"precision and recall of each of the {len(self.classes):,}: --json"
        elif self.classes:
            yield self._each_class()
        if len(self.confusion):
            yield self._confused(width)

    def _each_class(self) -> Table:
        table = _table("class", "precision", "recall", "F1", "examples")
        for name, (precision, recall, f1, examples) in zip(self.classes, self.by_class, strict=True):
            table.add_row(Text(name), f"{precision:.3f}", f"{recall:.3f}", f"{f1:.3f}", f"{examples:.0f}")
        return table

    def _confused(self, width: int) -> Table | str:
        """Return the table of confusions, headed by the names of the classes or, where these are too wide, numbers."""
        numbers = [str(number) for number, _ in enumerate(self.classes, start=1)]
        numbered = [f"{number} {name}" for number, name in zip(numbers, self.classes, strict=True)]
        ways = ((self.classes, self.classes), (numbered, numbers))
        for names, headings in ways if 3 * len(numbers) < width else ():  # a column has a digit and two blanks
            table = _table("class, and the answers", *headings)
            for name, row in zip(names, self.confusion, strict=True):
                table.add_row(Text(name), *(str(count or "·") for count in row))
            if _fits(table, width):
                return table
        return f"confusion of the {len(numbers):,} classes, which is wider than this terminal: --json"


def _fits(table: Table, width: int) -> bool:
    """Return whether a table fits with no number cut; its first column gets the width that the others leave."""
    first = table.columns[0]
    first.max_width = _NAME_MIN
    least = Console(width=10_000).measure(table).maximum
    first.max_width = _NAME_MIN + width - least
    return least <= width


def _table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(first)
    for other in others:
        table.add_column(Text(other), justify="right", no_wrap=True)
    return table


def judgement_of(model: Model, x: NDArray[np.generic], y: NDArray[np.generic], wanted: Sequence[Choice]) -> Judgement:
    """Measure a model's answers to raw inputs (N, *F) with targets (N,) in the data's units.

    Args:
        wanted: the metrics; empty: all that fit the targets.

    Raises:
        ConfigError, ChoiceError: a metric is unknown, is for other targets, or failed.
    """
    problems = [ConfigProblem((), each.text, "--metrics") for each in metric_problems(tuple(wanted))]
    if problems:
        raise ConfigError("the command line", problems)
    task = model.card.shape.task
    metrics = metrics_of(wanted or [Choice(name) for name in ANSWER_METRICS[task]], task, imported)
    if not metrics:
        return Judgement()
    answers = model.answers(x)
    found = answer_scores(metrics, y, answers)
    if found.failed and np.isfinite(answers).all():  # of a model that diverged they are not defined
        failed = [ConfigProblem((), f"{name} failed: {why}", "--metrics") for name, why in found.failed.items()]
        raise ConfigError("the command line", failed)
    if task not in ("classification", "multi-label"):
        return Judgement(metrics=found.values)
    classes = model.card.classes or tuple(map(str, range(answers.shape[1])))
    judged = Judgement(metrics=found.values, classes=classes, by_class=class_scores(y, answers))
    return judged if task == "multi-label" else replace(judged, confusion=confusion(y, answers))
