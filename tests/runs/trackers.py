"""A tracker that records, under a name of its own, and libraries that record how they are called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from fedpeer.runs.trackers.registry import TRACKERS
from fedpeer.runs.trackers.tracker import Series


@dataclass
class Recorder:
    """A tracker that records its calls in order; `fail(what)` may raise."""

    told: list[tuple[Any, ...]] = field(default_factory=list)
    fail: Callable[[str], object] = lambda what: None

    def open(self, series: Series, parameters: Mapping[str, object]) -> RecordedSeries:
        self.fail("open")
        self.told.append(("open", series, dict(parameters)))
        return RecordedSeries(self, series.name)

    def rows(self, name: str) -> list[tuple[int, dict[str, float]]]:
        """Return the rounds of a series with their numbers."""
        return [(each[3], each[2]) for each in self.told if each[:2] == ("add", name)]


@dataclass
class RecordedSeries:
    recorder: Recorder
    name: str

    def add(self, values: Mapping[str, float], round: int) -> None:
        self.recorder.fail("add")
        self.recorder.told.append(("add", self.name, dict(values), round))

    def close(self) -> None:
        self.recorder.fail("close")
        self.recorder.told.append(("close", self.name))


def known_as(patch: pytest.MonkeyPatch, name: str, recorder: Recorder) -> None:
    """Let users name a recorder as a tracker, and let its library seem to be installed."""

    def tracker(*, place: str = "") -> Recorder:
        """Record everything."""
        return recorder

    patch.setitem(TRACKERS, name, tracker)
    library(patch, name)


def library(patch: pytest.MonkeyPatch, name: str, **content: Any) -> ModuleType:
    """Add a module with this content to those that imports find."""
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)
    for key, value in content.items():
        setattr(made, key, value)
    patch.setitem(sys.modules, name, made)
    return made
