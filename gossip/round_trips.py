"""How long answers of other peers take, and from when on one is late. A pure account, in ticks.

A running mean and a running deviation, as TCP has them (Jacobson and Karels 1988). Each ping has a number of its own,
so an answer tells which ping it answers; and one that comes when nobody waits for it any more counts too, or a link on
which the kernel says again what was lost, seconds later, would look as quick as its quickest answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Ticks for which a ping without an answer is remembered, and pings in all. Beyond the first a link is down.
KEPT_TICKS, KEPT_MAX = 400, 1024
#: Deviations beyond the mean within which an answer is on time. TCP takes four; each wait here is for several pings.
_DEVIATIONS = 2
#: Times the time that an answer was thought to take that one may take before waits grow, for the same reason; and times
#: that waits grow to.
FREE, GROWTH_MAX = 1.5, 8.0


@dataclass
class RoundTrips:
    """Pings under way by number, as (to, at); and of each peer mean and mean deviation of its answers."""

    under_way: dict[int, tuple[str, int]] = field(default_factory=dict)
    mean: dict[str, float] = field(default_factory=dict)
    deviation: dict[str, float] = field(default_factory=dict)

    def sent(self, number: int, to: str, clock: int) -> None:
        """A ping leaves."""
        self.under_way[number] = to, clock
        while self.under_way:
            oldest = next(iter(self.under_way))
            if len(self.under_way) <= KEPT_MAX and clock - self.under_way[oldest][1] <= KEPT_TICKS:
                break
            del self.under_way[oldest]

    def answered(self, number: int, sender: str, clock: int) -> bool:
        """An answer came; whether it is that of whom this ping went to."""
        to, at = self.under_way.get(number, ("", clock))
        if to != sender:
            return False
        del self.under_way[number]
        took = float(clock - at)
        if sender not in self.mean:
            self.mean[sender], self.deviation[sender] = took, took / 2
        else:
            self.deviation[sender] += (abs(took - self.mean[sender]) - self.deviation[sender]) / 4
            self.mean[sender] += (took - self.mean[sender]) / 8
        return True

    def slowness(self, peer: str, shortest: int) -> float:
        """By how much to multiply waits that were chosen for answers within `shortest` ticks, from 1 to GROWTH_MAX."""
        if peer not in self.mean:
            return 1.0
        late = self.mean[peer] + _DEVIATIONS * self.deviation[peer]
        return min(max(late / (FREE * shortest), 1.0), GROWTH_MAX)

    def forget(self, peer: str) -> None:
        """It is not in the roster any more."""
        self.mean.pop(peer, None)
        self.deviation.pop(peer, None)
