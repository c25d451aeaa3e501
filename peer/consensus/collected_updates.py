"""Updates of one round at its coordinator, until the round closes.

They are forgotten with the term: clients send them again. Under an aggregation goal, updates that did not count wait
for the next round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class CollectedUpdates:
    """Updates that have arrived for the round under way.

    place      its (term, round); `since`: tick at which it opened; `first`: at which its first update arrived
    updates    by client; `rounds`: the round that each is for; `refused`: clients whose update could not be taken
    closed     whether the round is being closed: later updates are too late
    """

    place: tuple[int, int] = (0, 0)
    since: int = 0
    first: int | None = None
    updates: dict[str, bytes] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    closed: bool = False

    def at(self, place: tuple[int, int], now: int, counted: Mapping[str, int] | None = None) -> None:
        """Start anew if `place` is another round or term.

        Args:
            counted: by client, the round of its last update that counted; later updates are kept within a term. None:
                no update is kept.
        """
        if place == self.place:
            return
        stay = counted is not None and place[0] == self.place[0]
        rounds = {peer: round for peer, round in self.rounds.items() if stay and round > (counted or {}).get(peer, 0)}
        self.place, self.since, self.rounds, self.first = place, now, rounds, now if rounds else None
        self.updates, self.refused, self.closed = {peer: self.updates[peer] for peer in rounds}, set(), False

    def take(self, peer: str, round: int, content: bytes, now: int) -> None:
        """Take a client's update."""
        self.first = now if self.first is None else self.first
        self.updates[peer], self.rounds[peer] = content, round

    def drop(self, peers: Iterable[str]) -> None:
        """Forget the updates of these clients."""
        for peer in list(peers):
            self.updates.pop(peer, None)
            self.rounds.pop(peer, None)

    def awaited(self, part: Iterable[str], there: Callable[[str], bool]) -> list[str]:
        """Return the participants that may still send an update: those that are `there`."""
        return [peer for peer in part if peer not in self.updates and peer not in self.refused and there(peer)]
