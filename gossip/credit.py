"""Whose verdicts count: of each author, how often what it said of others was refuted lately. A pure account, in ticks.

One false verdict proves nothing: packets are lost, and who was paused for a minute was dead to all. So each refuted
verdict is a mark, marks fade, and who has too many of them is not believed until they have faded. Between two verdicts
that count pass hundreds of ticks then, however many are signed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Marks from which on an author is not believed, on a good network.
MARKS_MAX = 3.0
#: Ticks in which marks fade to a half (30 s at 25 ms): who lies without end is believed once in 500 ticks.
HALF_TICKS = 1200


@dataclass
class Credit:
    """The marks of each author, and the tick at which they were counted."""

    marks: dict[str, tuple[float, int]] = field(default_factory=dict)

    def of(self, author: str, clock: int) -> float:
        """The marks of an author that have not faded."""
        count, at = self.marks.get(author, (0.0, clock))
        return float(count * 0.5 ** ((clock - at) / HALF_TICKS))

    def refuted(self, author: str, clock: int) -> None:
        """A verdict of this author was wrong, as far as one can know."""
        self.marks[author] = self.of(author, clock) + 1, clock

    def believes(self, author: str, clock: int, stretch: float = 1.0) -> bool:
        """Whether verdicts of this author count. `stretch`: of whoever asks; where answers get lost, more of what is
        said in good faith is wrong."""
        return self.of(author, clock) < MARKS_MAX * stretch

    def forget(self, author: str) -> None:
        """It is not in the roster any more."""
        self.marks.pop(author, None)
