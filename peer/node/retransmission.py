"""Retransmission timers of transfers that are not acknowledged yet, in ticks.

A transfer is repeated until it is acknowledged. The wait follows from how long acknowledgements took lately (Jacobson
and Karels 1988, as in RFC 6298); it is doubled after a repeat, and bounded at both ends. Timers are forgotten at a
restart: all open transfers are sent again then.

A transfer that overtook its predecessor is rejected, and is due as soon as the predecessor is acknowledged. If it
waited for its own timer, the next transfer would come too early in its turn, and every round from then on would take a
wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Bounds of a wait, in ticks. Below the first, a busy neighbor would get repeats before it could answer; above the
#: second, a link that has come back would stay idle for longer than a person takes for normal (5 s at 25 ms).
WAIT_MIN, WAIT_MAX = 8, 200
#: Factor of the usual wait up to which waits between repeats grow. They double to ease a crowded link, but no further:
#: of a dozen channels at 30 % loss one is always at its third repeat, and all peers wait for that one.
_GROWTH_MAX = 4

#: (peer, group, seq)
_Key = tuple[str, str, int]


@dataclass
class _Timer:
    """Timer of one transfer.

    first, last   ticks at which it was sent first and last
    wait          ticks after `last` at which it is due
    repeats       how often it was sent again
    early         its neighbor rejected it when it was sent last, because the transfer before it was missing
    overdue       it was early, and the transfer before it is there now
    """

    first: int
    last: int
    wait: float
    repeats: int = 0
    early: bool = False
    overdue: bool = False


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
            if not timer.overdue:
                timer.wait = min(2 * timer.wait, _GROWTH_MAX * self.wait(key[0]), WAIT_MAX)
            timer.last, timer.repeats, timer.early, timer.overdue = now, timer.repeats + 1, False, False

    def answered(self, peer: str, group: str, taken: int, now: int) -> None:
        """Remove the timers up to number `taken`; the next transfer is due at once if it was rejected as early.

        How long answers take is learned from transfers that were sent once.
        """
        closed = [key for key in self.timers if key[0] == peer and key[1] == group and key[2] <= taken]
        for key in closed:
            timer = self.timers.pop(key)
            if timer.repeats:
                continue
            took = float(now - timer.first)
            if peer not in self.smoothed:
                self.smoothed[peer], self.varies[peer] = took, took / 2
            else:
                self.varies[peer] += (abs(took - self.smoothed[peer]) - self.varies[peer]) / 4
                self.smoothed[peer] += (took - self.smoothed[peer]) / 8
        following = self.timers.get((peer, group, taken + 1))
        if closed and following is not None:
            following.overdue = following.early

    def missed(self, peer: str, group: str, seq: int) -> None:
        """Shorten the waits of transfers before this one, which the peer rejected: the link works, they were lost."""
        for key, timer in self.timers.items():
            if key[:2] == (peer, group) and key[2] < seq:
                timer.wait = min(timer.wait, self.wait(peer))
        if (peer, group, seq) in self.timers:
            self.timers[peer, group, seq].early = True

    def drop(self, key: _Key) -> None:
        """Remove the timer of a transfer that is not open any more."""
        del self.timers[key]

    def forget(self, peer: str) -> None:
        """Remove all timers of a peer: nothing is open to it any more, or all of it is sent anew."""
        for key in [key for key in self.timers if key[0] == peer]:
            del self.timers[key]

    def due(self, now: int) -> list[_Key]:
        """Return the transfers that are to be sent again now, lowest number first."""
        return sorted(key for key, timer in self.timers.items() if timer.overdue or now - timer.last >= timer.wait)
