"""Updates of one round at its coordinator, until the round closes. Forgotten with the term: clients send them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass
class CollectedUpdates:
    """Updates that have arrived for the round under way.

    place      its (term, round); `since`: tick at which it opened
    updates    by client; `refused`: clients whose update could not be taken
    closed     whether the round is being closed: later updates are too late
    """

    place: tuple[int, int] = (0, 0)
    since: int = 0
    updates: dict[str, bytes] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    closed: bool = False

    def at(self, place: tuple[int, int], now: int) -> None:
        """Start anew if `place` is another round or term."""
        if place != self.place:
            self.place, self.since = place, now
            self.updates, self.refused, self.closed = {}, set(), False

    def awaited(self, part: Iterable[str], there: Callable[[str], bool]) -> list[str]:
        """Return the participants that may still send an update: those that are `there`."""
        return [peer for peer in part if peer not in self.updates and peer not in self.refused and there(peer)]
