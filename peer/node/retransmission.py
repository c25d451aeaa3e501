"""Retransmission timers of transfers that are not acknowledged yet, in ticks.

A transfer is repeated until it is acknowledged. The wait follows from how long acknowledgements took lately (Jacobson
and Karels 1988, as in RFC 6298); it is doubled after a repeat, and bounded at both ends. Timers are forgotten at a
restart: all open transfers are sent again then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Bounds of a wait, in ticks. Below the first, a busy neighbor would get repeats before it could answer; above the
#: second, a link that has come back would stay idle for longer than a person takes for normal (5 s at 25 ms).
WAIT_MIN, WAIT_MAX = 8, 200
#: Factor of the usual wait up to which waits between repeats grow. They double to ease a crowded link, but no further:
#: of a dozen channels at 30 % loss one is always at its third repeat, and everybody waits for that one.
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
    """Timers of open transfers, and the usual times of each neighbor's acknowledgements.

    smoothed, varies   by neighbor, mean of these times and of their deviations, in ticks
    """

    timers: dict[_Key, _Timer] = field(default_factory=dict)
    smoothed: dict[str, float] = field(default_factory=dict)
    varies: dict[str, float] = field(default_factory=dict)

    def wait(self, peer: str) -> float:
        """Return the ticks after which an acknowledgement of this peer is overdue."""
        if peer not in self.smoothed:
            return float(2 * WAIT_MIN)
        return min(max(self.smoothed[peer] + 4 * self.varies[peer], WAIT_MIN), WAIT_MAX)

    def sent(self, key: _Key, now: int) -> None:
        """Start the timer of a transfer that was sent, or lengthen it if it was sent again."""
        timer = self.timers.get(key)
        if timer is None:
            self.timers[key] = _Timer(now, now, self.wait(key[0]))
        else:
            most = min(_GROWTH_MAX * self.wait(key[0]), WAIT_MAX)
            timer.last, timer.wait, timer.repeats = now, min(2 * timer.wait, most), timer.repeats + 1

    def answered(self, peer: str, group: str, taken: int, now: int) -> None:
        """Remove the timers up to number `taken`; learn how long answers take from transfers that were sent once."""
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
        """Shorten the waits of transfers to a peer that has received this later one: the link works, they were lost."""
        for key, timer in self.timers.items():
            if key[:2] == (peer, group) and key[2] < seq:
                timer.wait = min(timer.wait, self.wait(peer))

    def drop(self, key: _Key) -> None:
        """Remove the timer of a transfer that is not open any more."""
        del self.timers[key]

    def forget(self, peer: str) -> None:
        """Remove all timers of a peer: nothing is open to it any more, or all of it is sent anew."""
        for key in [key for key in self.timers if key[0] == peer]:
            del self.timers[key]

    def due(self, now: int) -> list[_Key]:
        """Return the transfers that are to be sent again now, lowest number first."""
        return sorted(key for key, timer in self.timers.items() if now - timer.last >= timer.wait)
