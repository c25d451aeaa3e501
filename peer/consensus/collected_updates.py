"""The updates of one round at its coordinator, until it closes. Forgotten with the term: who sent sends again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass
class CollectedUpdates:
    """See the top of this file.

    place      (term, round) that is gathered for; `since`: the tick at which it opened
    updates    what came, by client; `refused`: whose update could not be taken
    closed     whether it is being closed: what comes now is too late
    """

    place: tuple[int, int] = (0, 0)
    since: int = 0
    updates: dict[str, bytes] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    closed: bool = False

    def at(self, place: tuple[int, int], now: int) -> None:
        """Begin anew, if this is another round or term."""
        if place != self.place:
            self.place, self.since = place, now
            self.updates, self.refused, self.closed = {}, set(), False

    def awaited(self, part: Iterable[str], there: Callable[[str], bool]) -> list[str]:
        """Who takes part and may still send: those who are there."""
        return [peer for peer in part if peer not in self.updates and peer not in self.refused and there(peer)]
