"""What a status is added up in: curves over rounds, traffic, times. All of fixed size, whatever comes in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

#: Points of one curve. A chart is some 600 pixels wide, and the eye sees no more than a point every three of them.
CURVE_POINTS = 200


class Curve:
    """Points over rounds, never more than `CURVE_POINTS`: when full, every second one goes and the pace halves.

    The newest point is always there: it replaces the one before if that is nearer than the pace.
    """

    def __init__(self) -> None:
        self.points: list[tuple[Any, ...]] = []  # (round, value, ...)
        self._pace = 1

    def add(self, round: int, *values: float | None) -> None:
        """Add the values of a round; the newest round's are replaced, and an earlier round is no news."""
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


@dataclass(slots=True)
class Amount:
    """Messages and bytes that went one way."""

    messages: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        self.messages += 1
        self.bytes += size


@dataclass(slots=True)
class DurationSummary:
    """How often something was done, and how long it took in all and at most."""

    count: int = 0
    sum: float = 0.0
    max: float = 0.0


@dataclass(slots=True)
class TrafficCounter:
    """Messages and bytes both ways."""

    sent: Amount = field(default_factory=Amount)
    received: Amount = field(default_factory=Amount)

    def as_json(self) -> dict[str, int]:
        """Four numbers with plain names."""
        return {
            "bytes_sent": self.sent.bytes,
            "bytes_received": self.received.bytes,
            "messages_sent": self.sent.messages,
            "messages_received": self.received.messages,
        }


def finite(value: float | None) -> float | None:
    """The number, or None where JSON has none for it."""
    return value if value is not None and math.isfinite(value) else None
