"""The page of an experiment: published beside measured numbers, claims, and how it was made. JSON in, Markdown out.

`page_data` is the content of a page as plain data, kept beside it; `table_page` only formats it. So a page in the
repository can be checked against its own numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedpeer.experiments.columns import COLUMNS, Column
from fedpeer.experiments.experiment import Cell, Experiment, RunSize, SizeName, stem
from fedpeer.experiments.figure_lines import lines_of
from fedpeer.experiments.results import CellResults, Measured, Middle, mean_and_sem
from fedpeer.experiments.verdicts import claims_table, judged, unsearched
from fedpeer.runs.scores import METRICS

_DASH = "–"


def page_data(
    experiment: Experiment,
    size: RunSize,
    size_name: SizeName,
    cells: Sequence[Cell],
    results: CellResults,
    where: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of a page. `where` has the command, the environment and the workers."""
    return {
        "schema": 1,
        "name": experiment.name,
        "size": size_name,
        "otherwise": dict(size.overrides),
        "title": experiment.title,
        "source": experiment.source,
        "paper": experiment.paper,
        "notes": experiment.notes,
        "differs": size.differs,
        "rounds": size.rounds,
        "passes": size.passes,
        "seeds": size.seeds,
        "columns": list(experiment.columns),
        "cells": [cell.label for cell in cells],
        "theirs": {cell.label: dict(cell.published) for cell in cells},
        "figure": None if experiment.figure is None else asdict(experiment.figure),
        "places": {cell.label: asdict(cell.place) for cell in cells if cell.place is not None},
        "measured": [results[cell.label].to_json() for cell in cells if cell.label in results],
        "claims": judged(
            experiment, size_name, [cell.label for cell in cells], results, unsearched=unsearched(cells, results)
        ),
        **where,
    }


def stem_of(data: Mapping[str, Any]) -> str:
    """Return the name of a page's files, without ending; data of earlier versions, without overrides, are read too."""
    return stem(data["name"], data["size"], data.get("otherwise", {}))


def table_page(data: Mapping[str, Any]) -> str:
    """Return the page in Markdown."""
    results = {each["label"]: Measured.from_json(each) for each in data["measured"]}
    missing = [label for label in data["cells"] if label not in results]
    parts = [
        f"# {data['title']}",
        f"{data['source']} ({data['paper']}). Size: {data['size']}. {data['differs']}".strip(),
        _table(data, results) if data.get("figure") is None else _figure_table(data),
        _unfinished(missing),
        _fewer(data["seeds"], results),
        _outdated(data),
        _legend(data, results),
        claims_table(data["claims"]),
        data["notes"],
        _settings(results),
        _made(data, results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _fewer(seeds: int, results: CellResults) -> str:
    """Return a sentence about cells that do not have all seeds yet."""
    fewer = {label: len(cell.seeds) for label, cell in results.items() if len(cell.seeds) < seeds}
    if not fewer:
        return ""
    named = ", ".join(f"{label} {count}" for label, count in fewer.items())
    sentence = named if len(fewer) <= 12 else f"{min(fewer.values())} or more, at {len(fewer)} points fewer than all"
    return f"Seeds so far, of {seeds}: {sentence}. Pairs are of the seeds that both have."


def _outdated(data: Mapping[str, Any]) -> str:
    """Return sentences about searches that an earlier version of the experiment made differently."""
    labels, sentences = data.get("outdated", ()), []
    if labels:
        sentences.append(f"Searched over other settings than are tried today, to be run again: {'; '.join(labels)}.")
    if lines := data.get("one_part", ()):
        sentences.append(
            f"Searched on one part of the training examples, where today each of several is held out in turn: "
            f"{'; '.join(lines)}."
        )
    return " ".join(sentences)


def _unfinished(missing: Sequence[str]) -> str:
    if not missing:
        return ""
    return f"Not finished: {', '.join(missing)}." if len(missing) <= 12 else f"Not finished: {len(missing)} points."


def _figure_table(data: Mapping[str, Any]) -> str:
    """Return a link to the picture beside the page, and its points as a table: a row per line of the figure."""
    columns = data["columns"]
    tables = [(f"{COLUMNS[name].title}:\n\n" if len(columns) > 1 else "") + _points(data, name) for name in columns]
    return "\n\n".join([f"![{data['title']}]({stem_of(data)}.svg)", *tables])


def _points(data: Mapping[str, Any], name: str) -> str:
    """Return a table of one column of a figure: a row per line, a column per place on the axis."""
    found, digits = lines_of(data, name), COLUMNS[name].digits
    places = sorted({x for line in found for x, _ in line.points})
    shown = places if len(places) <= 12 else [x for x in places if not x % 5]
    ticks = data["figure"].get("ticks") or ()
    heads = [ticks[int(x)] if ticks else f"{x:,.0f}" for x in shown]
    lines = [_line([f"{data['figure']['lines']} ↓, {data['figure']['x']} →", *heads])]
    lines.append(_line([":--", *["--:"] * len(shown)]))
    for line in found:
        points = dict(line.points)
        lines.append(_line([line.name, *(_middle(points[x], digits) if x in points else _DASH for x in shown)]))
    return "\n".join(lines)


def _middle(middle: Middle, digits: int) -> str:
    found = f"{middle.median:.{digits}f}"
    alone = middle.low == middle.high
    return found if alone else f"{found} ({middle.low:.{digits}f}–{middle.high:.{digits}f})"


def _table(data: Mapping[str, Any], results: CellResults) -> str:
    columns = {name: COLUMNS[name] for name in _shown_columns(data, results)}
    best = any(column.best(cell) is not None for column in columns.values() for cell in results.values())
    printed = [name for name in columns if any(name in found for found in data["theirs"].values())]
    head, kinds = [""], [":--"]
    for name, column in columns.items():
        added = [f"{column.title}, theirs"] if name in printed else []
        added += [f"{column.title}, ours" if added else column.title]
        added += [f"{column.title}, best round"] if best and column.has_best else []
        head += added
        kinds += ["--:"] * len(added)
    lines = [_line(head), _line(kinds)]
    for label, cell in results.items():
        line = [label]
        for name, column in columns.items():
            line += [data["theirs"][label].get(name, _DASH)] if name in printed else []
            values = column.values(cell)
            line += [_DASH if values is None else _shown(column, *mean_and_sem(values))]
            if best and column.has_best:
                found = column.best(cell)
                line += [_DASH if found is None else _shown(column, *found)]
        lines.append(_line(line))
    return "\n".join(lines)


def _shown_columns(data: Mapping[str, Any], results: CellResults) -> list[str]:
    """Return the names of the columns that have a number; all, before there are any results."""
    return [
        name
        for name in data["columns"]
        if not results or any(COLUMNS[name].values(cell) is not None for cell in results.values())
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(column: Column, mean: float, sem: float | None) -> str:
    digits = column.digits
    return f"{mean:.{digits}f}" if sem is None else f"{mean:.{digits}f} ± {sem:.{digits}f}"


def _legend(data: Mapping[str, Any], results: CellResults) -> str:
    """Return the meaning of the columns, and how numbers are averaged."""
    words = "; ".join(f"{COLUMNS[name].title}: {COLUMNS[name].meant}" for name in _shown_columns(data, results))
    several = data["seeds"] > 1
    if data.get("figure") is not None:
        published = f" (the paper has {data['figure']['runs']})" if data["figure"]["number"] else ""
        scores = "Scores are in percent. " if METRICS.keys() & set(data["columns"]) else ""
        sentence = "In percent" if data["columns"] == ["PM"] else f"{scores}Each number"
        if not several:
            return f"{words}. {sentence}, of one run{published}."
        return (
            f"{words}. {sentence}: the median of {data['seeds']} runs{published} and, in brackets and as bars, the "
            "points below which 40 % and 60 % of them lie."
        )
    sentence = f"{words}. Scores are in percent, in the last round"
    sentence += f", mean ± standard error over {data['seeds']} seeds" if several else ", of one seed"
    if any(cell.best for cell in results.values()):
        sentence += "; the best round is chosen on training examples kept back, never on test examples"
    return f"{sentence}."


def _settings(results: CellResults) -> str:
    """Return a table of the variants that were taken and tried, if any has a name."""
    lines = []
    for label, cell in results.items():
        if cell.tried:
            tried = ", ".join(f"{name}: {100 * score:.1f}" for name, score in cell.tried.items())
            tried += f" (mean of {cell.folds} parts)" if cell.folds > 1 else ""
            lines.append(f"| {label} | {cell.variant} | {tried} |")
        elif cell.variant:
            lines.append(f"| {label} | {cell.variant} | {_DASH} |")
    if not lines:
        return ""
    head = ["| settings | taken | tried: % on training examples kept back |", "| :-- | :-- | :-- |"]
    return "\n".join([*head, *lines])


def _made(data: Mapping[str, Any], results: CellResults) -> str:
    environment = data["environment"]
    versions = ", ".join(f"{name} {found}" for name, found in environment["packages"].items() if found)
    seconds = sum(cell.seconds for cell in results.values())
    workers = data["workers"]
    on = f"{workers} worker{'s' * (workers > 1)}" if environment["device"] == "cpu" else environment["device"]
    commit = environment.get("source", environment["git"] and environment["git"]["commit"][:12])  # earlier: no "source"
    shared = f", besides those of {', '.join(data['shared'])} that count here too," if data.get("shared") else ""
    return (
        f"```console\n$ {data['command']}\n```\n\n"
        f"{lasting_text(seconds)} of runs{shared} with {on} on a machine of {environment['processors']} cores; "
        f"{environment['python']}, {versions}" + (f", revision {commit}" if commit else "") + "."
    )


def lasting_text(seconds: float) -> str:
    """Return a duration as text: 12 s, 3 min, 2 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
