"""The protocol of an experiment tracker: it opens series, which get numbers round by round.

A series is one method with one seed of a simulation, or one real peer. All calls of a tracker come from one thread,
which may wait: for a server, for a disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class TrackingError(Exception):
    """The user's mistake about a tracker, with the way out."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One series of numbers.

    id        its name for ever: the same after a restart, and in no other run
    name      what people read
    group     the run or the federation to which it belongs
    home      folder of that run or peer, for trackers that write files
    first     number of the first round that the series gets, 1 or more; above 1 the series is continued
    """

    id: str
    name: str
    group: str
    home: Path
    first: int = 1


class SeriesLog(Protocol):
    """An open series."""

    def add(self, values: Mapping[str, float], round: int) -> None:
        """Add the numbers of a round, by names such as "accuracy/mean"."""
        ...

    def close(self) -> None:
        """End the series, with all numbers written."""
        ...


class Tracker(Protocol):
    """One tracker, with its settings."""

    def open(self, series: Series, parameters: Mapping[str, object]) -> SeriesLog:
        """Open a series, or the same one again.

        Args:
            parameters: the settings by dotted path: texts, numbers, booleans, None.

        Raises:
            Exception: whatever its library raises; the run goes on without this tracker.
        """
        ...


def flattened(settings: Mapping[str, Any], before: str = "") -> dict[str, object]:
    """Return each setting by its dotted path; a list is text."""
    found: dict[str, object] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return found
