"""The updates of one round at its coordinator, until it closes. Forgotten with the term: who sent sends again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fedpeer.peer.core.life import Life


@dataclass
class Gathering:
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

    def awaited(self, life: Life, group: str, part: Iterable[str]) -> list[str]:
        """Who takes part and may still send: not who is gone, or was never here."""
        return [
            peer
            for peer in part
            if peer not in self.updates and peer not in self.refused and (peer == life.me or _there(life, group, peer))
        ]


def _there(life: Life, group: str, peer: str) -> bool:
    """Whether somebody is there, or was until a moment ago, or is only not met yet by this process."""
    other = life.others.get(peer)
    if other is not None and not other.met and life.membership.standing(peer) in ("alive", "suspect"):
        return life.listens(peer)
    return life.expected(peer, group)
