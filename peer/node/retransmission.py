"""When to say a transfer again: timers of what was sent and not acknowledged, in ticks.

A transfer that is lost is repeated until it is acknowledged. How long to wait follows from how long answers took
lately (Jacobson and Karels 1988, as in RFC 6298), with the wait doubled after a repeat and bounded at both ends.
Forgotten at a restart: everything that is open is said again then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Ticks. Below the first, a busy neighbour would be asked again before it could answer; above the second, a link that
#: has come back would rest for longer than a person believes that it works (5 s at 25 ms).
WAIT_MIN, WAIT_MAX = 8, 200
#: Times the usual wait that the waits between repeats grow to. They double to ease a crowded link, and no further: of a
#: dozen channels at 30 % loss one is always at its third repeat, and everybody waits for that one.
_GROWTH_MAX = 4

#: (peer, group, seq)
_Key = tuple[str, str, int]


@dataclass
class _Timer:
    first: int
    last: int
    wait: float
    repeats: int = 0


@dataclass
class Retransmissions:
    """Timers of open transfers, and of each neighbour how long its answers take."""

    timers: dict[_Key, _Timer] = field(default_factory=dict)
    smoothed: dict[str, float] = field(default_factory=dict)
    varies: dict[str, float] = field(default_factory=dict)

    def wait(self, peer: str) -> float:
        """Ticks after which an answer of this peer is overdue."""
        if peer not in self.smoothed:
            return float(2 * WAIT_MIN)
        return min(max(self.smoothed[peer] + 4 * self.varies[peer], WAIT_MIN), WAIT_MAX)

    def sent(self, key: _Key, now: int) -> None:
        """A transfer was said for the first time, or again."""
        timer = self.timers.get(key)
        if timer is None:
            self.timers[key] = _Timer(now, now, self.wait(key[0]))
        else:
            most = min(_GROWTH_MAX * self.wait(key[0]), WAIT_MAX)
            timer.last, timer.wait, timer.repeats = now, min(2 * timer.wait, most), timer.repeats + 1

    def answered(self, peer: str, group: str, taken: int, now: int) -> None:
        """All up to number `taken` are acknowledged. Only what was said once tells how long an answer takes."""
        for key in [key for key in self.timers if key[0] == peer and key[1] == group and key[2] <= taken]:
            timer = self.timers.pop(key)
            if timer.repeats:
                continue
            took = float(now - timer.first)
            if peer not in self.smoothed:
                self.smoothed[peer], self.varies[peer] = took, took / 2
            else:
                self.varies[peer] += (abs(took - self.smoothed[peer]) - self.varies[peer]) / 4
                self.smoothed[peer] += (took - self.smoothed[peer]) / 8

    def missed(self, peer: str, group: str, seq: int) -> None:
        """It has come to them before what was made earlier: the link carries, so that is not waited for any longer."""
        for key, timer in self.timers.items():
            if key[:2] == (peer, group) and key[2] < seq:
                timer.wait = min(timer.wait, self.wait(peer))

    def drop(self, key: _Key) -> None:
        """This transfer is not open any more."""
        del self.timers[key]

    def forget(self, peer: str) -> None:
        """Nothing is open to this peer any more, or all of it is to be said anew."""
        for key in [key for key in self.timers if key[0] == peer]:
            del self.timers[key]

    def due(self, now: int) -> list[_Key]:
        """What is to be said again now, oldest number first."""
        return sorted(key for key, timer in self.timers.items() if now - timer.last >= timer.wait)
