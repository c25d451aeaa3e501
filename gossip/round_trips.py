"""Round-trip times to other peers, and the time after which an answer is late. A pure account, in ticks.

It keeps a running mean and a running deviation, as TCP does (Jacobson and Karels 1988). Each ping has its own number,
so an answer names its ping. Answers that come when nothing waits for them any more count too; otherwise a link on which
the kernel retransmits lost packets seconds later would look as fast as its fastest answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Ticks for which an unanswered ping is remembered, after which a link counts as down; and the most pings remembered.
KEPT_TICKS, KEPT_MAX = 400, 1024
#: Deviations above the mean within which an answer is on time. TCP takes four; each wait here covers several pings.
_DEVIATIONS = 2
#: Multiple of the expected time that an answer may take before waits grow, for the same reason; and the largest factor
#: by which they grow.
FREE, GROWTH_MAX = 1.5, 8.0


@dataclass
class RoundTrips:
    """Round-trip times of one peer's pings.

    under_way   unanswered pings by number, as (recipient, tick)
    mean        mean round-trip time of each peer, in ticks
    deviation   its mean deviation, in ticks
    """

    under_way: dict[int, tuple[str, int]] = field(default_factory=dict)
    mean: dict[str, float] = field(default_factory=dict)
    deviation: dict[str, float] = field(default_factory=dict)

    def sent(self, number: int, to: str, clock: int) -> None:
        """Record that a ping is sent."""
        self.under_way[number] = to, clock
        while self.under_way:
            oldest = next(iter(self.under_way))
            if len(self.under_way) <= KEPT_MAX and clock - self.under_way[oldest][1] <= KEPT_TICKS:
                break
            del self.under_way[oldest]

    def answered(self, number: int, sender: str, clock: int) -> bool:
        """Record an answer; return whether it comes from the peer to which this ping was sent."""
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
        """Return the factor, 1 to GROWTH_MAX, for waits that were chosen for answers within `shortest` ticks."""
        if peer not in self.mean:
            return 1.0
        late = self.mean[peer] + _DEVIATIONS * self.deviation[peer]
        return min(max(late / (FREE * shortest), 1.0), GROWTH_MAX)

    def forget(self, peer: str) -> None:
        """Drop the times of a peer that is no longer in the roster."""
        self.mean.pop(peer, None)
        self.deviation.pop(peer, None)
