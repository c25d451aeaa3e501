"""The lines of a figure, read from its page's data: medians of runs and their bars, without importing matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedpeer.experiments.columns import COLUMNS
from fedpeer.experiments.results import Measured, Middle


@dataclass(frozen=True)
class FigureLine:
    """One line of a figure: its name, and (x, middle) of each point, in ascending order of x."""

    name: str
    points: tuple[tuple[float, Middle], ...]


def lines_of(data: Mapping[str, Any], name: str = "") -> list[FigureLine]:
    """Return the lines of a page's data, in the order of their first cells.

    Args:
        data: the page's data.
        name: the column to show; default the first one. Lines without it are left out.
    """
    column = COLUMNS[name or data["columns"][0]]
    found: dict[str, list[tuple[float, Middle]]] = {}
    for each in map(Measured.from_json, data["measured"]):
        place, values = data["places"][each.label], column.values(each)
        if values is not None:
            found.setdefault(place["line"], []).append((place["x"], Middle.of(values)))
    return [FigureLine(name, tuple(sorted(points, key=lambda point: point[0]))) for name, points in found.items()]
