"""The table at the end of a simulation, and the sentence that compares the methods."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedpeer.runs.summary import (
    best_text,
    count_text,
    headline,
    linear_text,
    measure_of,
    metric_names,
    metric_text,
    score_text,
    server_score,
    spoken,
)
from fedpeer.runs.units import apart, duration_text, keep_units


@dataclass(frozen=True)
class Prose:
    """Text for a terminal in which no line ends between a number and its unit; rich itself breaks at any space."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        for line in textwrap.wrap(keep_units(self.text), options.max_width, break_on_hyphens=False):
            yield Text(line.replace("\xa0", " "))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, Text(self.text))


def print_results(console: Console, summary: Mapping[str, Any]) -> None:
    """Print tables and sentences of a summary, the object that `--json` prints; nothing if nothing was measured."""
    methods = summary["methods"]
    if not methods:
        return
    console.print(result_table(summary))
    if further := metric_table(summary):
        console.print(further)
    for sentence in (worth(summary), best_text(methods), linear_text(summary.get("linear"), measure_of(methods))):
        if sentence:
            console.print(Prose(sentence))
    if promise := private(summary):
        console.print(promise, highlight=False, markup=False)


def result_table(summary: Mapping[str, Any]) -> Table:
    """Return a table with a row per method: score, spread and cost. `summary` is the object that `--json` prints."""
    methods: Mapping[str, Mapping[str, Any]] = summary["methods"]
    measure = measure_of(methods)
    several = len(summary["seeds"]) > 1
    title = f"{measure} over {summary['peers']} peers" + (f", {len(summary['seeds'])} seeds" if several else "")
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("method", overflow="fold")
    served = any(server_score(result) is not None for result in methods.values())
    for column in [
        "mean",
        *(["SEM"] if several else []),
        *(["server"] if served else []),
        "worst peer",
        "spread",
        "sent",
        "messages",
        "a round",
    ]:
        table.add_column(column, justify="right", no_wrap=True)
    best = _best(methods, measure)
    for method, result in methods.items():
        cells: list[Text | str] = [
            Text(spoken(method)),
            score_text(result[f"{measure}_mean"], measure),
            *([apart(result[f"{measure}_sem"], measure)] if several else []),
            *([score_text(server_score(result), measure)] if served else []),
            score_text(result[f"{measure}_worst"], measure),
            apart(result[f"{measure}_spread"], measure),
            count_text(result["bytes_sent"], "B") if result["bytes_sent"] else "nothing",
            count_text(result["messages_sent"]),
            duration_text(result["seconds_per_round"]),
        ]
        table.add_row(*cells, style="bold" if method == best else None)
    return table


def metric_table(summary: Mapping[str, Any]) -> Table | None:
    """Return a table of the further metrics, a row per method and a column per metric; None: none were wanted.

    A metric that is not defined for all peers is shown with the number of peers for which it is.
    """
    methods: Mapping[str, Mapping[str, Any]] = summary["methods"]
    names = metric_names(methods)
    if not names:
        return None
    title = "further metrics, mean over peers"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("method", overflow="fold")
    for name in names:
        table.add_column(Text(name), justify="right", overflow="fold")
    for method, result in methods.items():
        table.add_row(Text(spoken(method)), *(metric_text(result.get("metrics", {}).get(name)) for name in names))
    return table


def worth(summary: Mapping[str, Any]) -> str:
    """Return the sentence under the table, which compares the best method with the others."""
    seeds = len(summary["seeds"])
    over = f", mean of {seeds} seeds" if seeds > 1 else ""
    return f"{headline(summary['methods'])}{over}."


def private(summary: Mapping[str, Any]) -> str | None:
    """Return the privacy guarantee of the noise on updates, as a sentence, or None if updates are not private."""
    spent = summary.get("privacy")
    if not spent:
        return None
    if spent["epsilon"] is None:
        return "Updates are clipped but have no noise, so there is no privacy guarantee."
    promise = f"epsilon {spent['epsilon']:.3g} at delta {spent['delta']:g}, with at most {spent['rounds']} rounds each"
    if "noise" in spent:  # earlier runs do not record it
        promise += f" and noise of {spent['noise']:.3g} times the clip for certain"
    return f"Differential privacy of the peers against anyone who sees the models: {promise}."


def _best(methods: Mapping[str, Mapping[str, Any]], measure: str) -> str | None:
    means = {method: result[f"{measure}_mean"] for method, result in methods.items()}
    known = {method: mean for method, mean in means.items() if mean is not None}
    if not known:
        return None
    return (max if measure == "accuracy" else min)(known, key=lambda method: known[method])
