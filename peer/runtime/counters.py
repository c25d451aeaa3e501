"""Accumulators of a status: curves over rounds, traffic, durations. All have a fixed size, however much is added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedpeer.runs.disk import finite

#: Most points of one curve: a chart is some 600 pixels wide, and more than a point every three pixels cannot be seen.
CURVE_POINTS = 200


class Curve:
    """Points over rounds, at most `CURVE_POINTS`: when full, every second point is dropped and the spacing doubles.

    The newest point is always kept: it replaces the one before if that is nearer than the spacing.
    """

    def __init__(self) -> None:
        self.points: list[tuple[Any, ...]] = []  # (round, value, ...)
        self._pace = 1

    def add(self, round: int, *values: float | None) -> None:
        """Add the values of a round; those of the newest round are replaced, and earlier rounds are ignored."""
        newest = self.points[-1][0] if self.points else round - 1
        if round < newest:
            return
        crowded = len(self.points) > 1 and newest - self.points[-2][0] < self._pace
        if round == newest or crowded:
            self.points.pop()
        self.points.append((round, *map(finite, values)))
        if len(self.points) > CURVE_POINTS:
            self.points = self.points[::2]
            self._pace *= 2

    def hold(self, round: int, value: float | None) -> None:
        """Add the value of a round; of a run of equal values only the two ends are kept."""
        if len(self.points) > 1 and self.points[-1][1] == self.points[-2][1] == finite(value):
            self.points.pop()
        self.add(round, value)


@dataclass(slots=True)
class _Amount:
    """Messages and bytes in one direction."""

    messages: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        self.messages += 1
        self.bytes += size


@dataclass(slots=True)
class DurationSummary:
    """Number of durations, and their sum and maximum in seconds."""

    count: int = 0
    sum: float = 0.0
    max: float = 0.0


@dataclass(slots=True)
class TrafficCounter:
    """Messages and bytes in both directions."""

    sent: _Amount = field(default_factory=_Amount)
    received: _Amount = field(default_factory=_Amount)

    def as_json(self) -> dict[str, int]:
        """Return the four numbers by name."""
        return {
            "bytes_sent": self.sent.bytes,
            "bytes_received": self.received.bytes,
            "messages_sent": self.sent.messages,
            "messages_received": self.received.messages,
        }
