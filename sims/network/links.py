"""Simulated links: whether, how often and when a message arrives. Only a message's size matters here.

Each directed edge draws from a stream of its own, keyed by the run's seed and both names, so what happens on one edge
does not depend on the traffic of another. Times are in ticks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedpeer.algorithms.draws import Draws


@dataclass(frozen=True, kw_only=True)
class LinkRules:
    """Properties of all links.

    delay             least ticks that a message takes
    jitter            mean of the additional ticks, exponentially distributed
    loss, repeat      shares of the messages that never arrive, or arrive twice
    reorder           share of the messages that may be overtaken; all others arrive in the order of sending
    bytes_per_tick    capacity of a link; messages queue behind one another
    """

    delay: float = 0.1
    jitter: float = 0.0
    loss: float = 0.0
    repeat: float = 0.0
    reorder: float = 0.0
    bytes_per_tick: float = math.inf

    def __post_init__(self) -> None:
        assert self.delay > 0, "an answer comes later than its question"
        assert all(0 <= share < 1 for share in (self.loss, self.repeat, self.reorder)), "shares of the messages"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A one-way cut: from tick `begin` to tick `end` nothing from `senders` reaches `receivers`."""

    begin: float
    end: float
    senders: tuple[str, ...]
    receivers: tuple[str, ...]

    def parts(self, sender: str, receiver: str, time: float) -> bool:
        return self.begin <= time < self.end and sender in self.senders and receiver in self.receivers


def partition(begin: float, end: float, *sides: Sequence[str]) -> tuple[Cut, ...]:
    """Return cuts under which no peer of one side receives anything from another side."""
    return tuple(
        Cut(begin=begin, end=end, senders=tuple(one), receivers=tuple(other))
        for one in sides
        for other in sides
        if one is not other
    )


#: Numbers that are drawn for each message, and messages for which they are drawn at once.
_DRAWN, _AT_ONCE = 5, 64


class _Edge:
    """One direction between two peers."""

    def __init__(self, draws: np.random.Generator) -> None:
        self.draws = self._drawn(draws)
        self.free = 0.0  # when the last message has been sent completely
        self.last = 0.0  # when the last message that keeps its order arrives

    @staticmethod
    def _drawn(draws: np.random.Generator) -> Iterator[list[float]]:
        """Yield the numbers of one message after the other."""
        while True:
            yield from draws.random((_AT_ONCE, _DRAWN)).tolist()


class SimulatedLinks:
    """The directed links between all peers: which messages arrive, and when.

    heal   tick from which on nothing is lost, repeated, overtaken or cut
    """

    def __init__(self, rules: LinkRules, seed: int, cuts: Sequence[Cut] = (), heal: float = math.inf) -> None:
        self._rules, self._cuts, self._heal = rules, cuts, heal
        self._draws = Draws(seed)
        self._edges: dict[tuple[str, str], _Edge] = {}

    def cut(self, sender: str, receiver: str, time: float) -> bool:
        return time < self._heal and any(cut.parts(sender, receiver, time) for cut in self._cuts)

    def arrivals(self, sender: str, receiver: str, size: int, now: float) -> list[float]:
        """Return the ticks at which a message of `size` bytes that is sent now arrives: none, one or two."""
        edge = self._edges.get((sender, receiver))
        if edge is None:
            edge = _Edge(self._draws.numpy(f"link to {receiver}", sender))
            self._edges[sender, receiver] = edge
        rules = self._rules
        edge.free = max(now, edge.free) + size / rules.bytes_per_tick
        # The number of draws is constant, so that one message's fate does not depend on another's.
        lost, repeated, overtaken, *late = next(edge.draws)
        if now >= self._heal:
            lost = repeated = overtaken = 1.0
        elif lost < rules.loss or self.cut(sender, receiver, now):
            return []
        times = [edge.free + rules.delay - rules.jitter * math.log1p(-u) for u in late]
        if overtaken >= rules.reorder:
            times[0] = edge.last = max(times[0], edge.last)
        times = times if repeated < rules.repeat else times[:1]
        return [time for time in times if not self.cut(sender, receiver, time)]
