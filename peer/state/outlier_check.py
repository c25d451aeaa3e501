"""Outlier check of shares: finite but absurd values are rejected.

An honest neighbor's value can be compared only with what this peer has done itself: if other peers' shares, or an
average of them, counted, a liar would move the measure with the average. So an `OutlierCheck` knows the length of the
slice when the peer came in, and the lengths of its own training steps. A lie makes steps longer, since training pulls
back. So no step counts for more than the first one, which was made before any share had arrived, nor for much more than
the median of the steps counted before it. A share implies a value (value / weight), which is rejected if one of these
holds:

    near    it is further from this peer's estimate than a hundred usual steps, or a hundred times the steps missed
            lately, and further than three times the length of the estimate
    far     it is longer than three times the first length plus a hundred times the path that this peer has trained

So it is further away, or longer, than it could be if others train a hundred times as far in a round as this peer does.
A round that this peer missed counts as a step, so that a peer that was away, or came late, accepts what the others have
become. Before its own first step only the length with which it came in counts, a hundred times.

What this bounds: nothing longer than `far` is taken from any neighbor, so no estimate can be longer except by own
training; and `far` grows by no more than a hundred first steps per round, whatever is sent. Once training has come to
rest, `far` grows by a hundred of the steps then made, or by one first step. An honest neighbor that a liar has moved
may be too far as well; it is rejected, and charged only beyond a hundred times these bounds.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from torch import Tensor

from fedpeer.gossip.mass import Mass

#: Number of own steps whose median counts.
STEPS = 10
#: Factor by which other peers may train further in a round than this one: they may have more examples or steps.
FACTOR = 100.0
#: Upper bound of what a step counts for, in medians of the last steps. Steps that become longer again, by another
#: learning rate, count gradually; until then `FACTOR` has room for them.
RISE = 1.02
#: Factor of a length: two slices of the same length are up to twice that apart, and one may be half as long again.
LENGTHS = 3.0
#: Factor of the noise's standard deviation: a peer with a hundred neighbors holds ten times the noise of one, and two
#: peers are compared.
_NOISY = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierCheck:
    """Bounds for one slice, from the peer's own training; all lengths are Euclidean.

    start    length of the slice when the peer came in, or took it over from others
    first    length of its first training step; 0 before that
    steps    lengths of the last steps as far as they count, oldest first
    path     sum of all steps, and of a first step for each round that the peer missed
    away     sum of first steps for the rounds missed lately, halved with each round since
    round    round of the last step
    """

    start: float
    first: float = 0.0
    steps: tuple[float, ...] = ()
    path: float = 0.0
    away: float = 0.0
    round: int = 0

    def after(self, step: float, round: int) -> OutlierCheck:
        """Return the check after a training step of this length in a round."""
        first = self.first or step
        usual = statistics.median(self.steps) if self.steps else first
        step = min(step, first, max(RISE * usual, first / FACTOR))
        missed = max(0, round - self.round - 1) * first
        return OutlierCheck(
            start=self.start,
            first=first,
            steps=(*self.steps, step)[-STEPS:],
            path=self.path + step + missed,
            away=self.away / 2 + missed,
            round=max(round, self.round),
        )

    def near(self, length: float) -> float:
        """Return how far an honest value may be from an estimate of this length."""
        usual = statistics.median(self.steps) if self.steps else self.start
        return max(FACTOR * max(usual, self.away), LENGTHS * max(length, self.start))

    @property
    def far(self) -> float:
        """Upper bound of an honest value's length."""
        return LENGTHS * self.start + FACTOR * self.path if self.steps else FACTOR * self.start

    def refusal(self, share: Mass, held: Mass, noise: float = 0.0) -> tuple[str, str] | None:
        """Return the code and text of a rejection if the estimate of a share is not plausible beside the one held.

        `noise` is the standard deviation of masked values (`gossip/noise.py`); a peer that sent them to many neighbors
        holds their sum.
        """
        more = _NOISY * noise * math.sqrt(len(held.value_D))
        distance, length = share.distance(held), share.length
        near, far = self.near(held.length) + more, self.far + more
        if distance <= near and length <= far:
            return None
        absurd = 0 < FACTOR * near < distance or 0 < FACTOR * far < length
        text = f"{distance:.3g} away and {length:.3g} long, at most {near:.3g} and {far:.3g} are plausible"
        return ("implausible" if absurd else "out_of_reach"), text


def length_of(slice_D: Tensor, all_n: Tensor) -> float:
    """Return the length of a slice (D,), or its part by size of the length of all parameters (n,) if that is longer.

    A slice that hardly moves at first, or starts with zeros, may be long later.
    """
    return max(float(slice_D.norm()), float(all_n.norm()) * math.sqrt(len(slice_D) / len(all_n)))
