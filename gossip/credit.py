"""Credit of the authors of verdicts: how many verdicts of each were refuted lately. A pure account, in ticks.

One false verdict proves nothing: packets get lost, and a peer that paused for a minute seemed dead to all. So each
refuted verdict is a mark, marks fade, and an author with too many marks is not believed until they have faded. From
then on, hundreds of ticks pass between two of its verdicts that count, however many it signs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Number of marks at which an author is not believed any more, on a good network.
MARKS_MAX = 3.0
#: Half-life of marks in ticks (30 s at 25 ms): an author that never stops lying is believed once in 500 ticks.
HALF_TICKS = 1200


@dataclass
class Credit:
    """Marks of each author, with the tick at which they were counted."""

    marks: dict[str, tuple[float, int]] = field(default_factory=dict)

    def of(self, author: str, clock: int) -> float:
        """Return an author's marks as far as they have not faded by now."""
        count, at = self.marks.get(author, (0.0, clock))
        return float(count * 0.5 ** ((clock - at) / HALF_TICKS))

    def refuted(self, author: str, clock: int) -> None:
        """Record that a verdict of this author was wrong, as far as this peer can know."""
        self.marks[author] = self.of(author, clock) + 1, clock

    def believes(self, author: str, clock: int, stretch: float = 1.0) -> bool:
        """Return whether this author's verdicts count.

        `stretch` is the caller's own (`Awareness.stretch`): where answers get lost, more honest verdicts are wrong.
        """
        return self.of(author, clock) < MARKS_MAX * stretch

    def forget(self, author: str) -> None:
        """Drop the marks of a peer that is no longer in the roster."""
        self.marks.pop(author, None)
