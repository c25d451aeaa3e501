"""Whether a share could be what an honest neighbour sends: finite but absurd values are refused.

What an honest neighbour holds can be judged by what this peer has done itself, and by that alone: what others sent, and
what became of an average by it, says nothing, or whoever lies moves the measure with the average. So a `OutlierCheck`
knows how long the slice was when the peer came in, and how long its own training steps were. A lie makes steps longer,
since training pulls back; so no step counts for more than the first one, which was made before anything of others had
come in, nor for much more than the median of those that counted before it. A share implies a value (value / weight),
and that is refused if one of these holds:

    near    it is further from this peer's estimate than a hundred of its usual steps, or of those that it missed of
            late, and than three times the length of the estimate
    far     it is longer than three times the first length and a hundred times the way that this peer has trained

So it is further away, and longer, than it could be if others train a hundred times as far in a round as this peer does.
A round that this peer missed counts as a step, so that who was away, or came late, takes what the others have become.
Before the first own step nothing counts but the length with which it came in, a hundred times.

What this bounds: of a liar and an honest neighbour alike nothing longer than `far` is taken, so no estimate can be, but
by own training; and `far` grows by no more than a hundred first steps a round, whatever is sent. Once training has come
to rest, it grows by a hundred of those steps, or by one first step. An honest neighbour whom a liar has moved may be
too far as well; it is refused, and charged only beyond a hundred times these bounds.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from torch import Tensor

#: Own steps of which the median counts.
STEPS = 10
#: Times as far as this peer that others may train in a round; they may have so many more examples, or steps.
FACTOR = 100.0
#: Times the median of the last ones that a step counts for at most. Steps that become longer again, by another learning
#: rate, count by and by; until then `FACTOR` has room for them.
RISE = 1.02
#: Times a length: two slices of the same length are up to twice that apart, and one may be half as long again.
LENGTHS = 3.0
#: Times the standard deviation of masked numbers: a peer of a hundred neighbours holds ten times one's noise, and two
#: of them are compared.
_NOISY = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierCheck:
    """What a peer knows by itself of how far one slice can be, as Euclidean lengths.

    start    of the slice, when the peer came in, or took it over from others
    first    of its first training step; 0 before that
    steps    of the last ones, oldest first, as far as they count
    path     of all of them together, and of a first one for each round that it missed
    away     of those that it missed of late, halved with each round since
    round    of the last
    """

    start: float
    first: float = 0.0
    steps: tuple[float, ...] = ()
    path: float = 0.0
    away: float = 0.0
    round: int = 0

    def after(self, step: float, round: int) -> OutlierCheck:
        """When it has trained in a round, by a step of this length."""
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
        """How far from an estimate of this length an honest value may be."""
        usual = statistics.median(self.steps) if self.steps else self.start
        return max(FACTOR * max(usual, self.away), LENGTHS * max(length, self.start))

    @property
    def far(self) -> float:
        """How long an honest value may be."""
        return LENGTHS * self.start + FACTOR * self.path if self.steps else FACTOR * self.start

    def refusal(self, implied_D: Tensor, estimate_D: Tensor, noise: float = 0.0) -> tuple[str, str] | None:
        """Why this cannot be, if so: the code of the refusal, and a text.

        `noise`: the standard deviation of what averages begin with (`gossip/noise.py`), of which a peer that told
        many neighbours holds the sum.
        """
        more = _NOISY * noise * math.sqrt(len(estimate_D))
        distance, length = float((implied_D - estimate_D).norm()), float(implied_D.norm())
        near, far = self.near(float(estimate_D.norm())) + more, self.far + more
        if distance <= near and length <= far:
            return None
        absurd = 0 < FACTOR * near < distance or 0 < FACTOR * far < length
        text = f"{distance:.3g} away and {length:.3g} long, where {near:.3g} and {far:.3g} are the most"
        return ("implausible" if absurd else "out_of_reach"), text


def length_of(slice_D: Tensor, all_n: Tensor) -> float:
    """Length of a slice, or what it would be if the slice were as long as the whole is for its size: what hardly moves
    at first, or begins with zeros, may be long later."""
    return max(float(slice_D.norm()), float(all_n.norm()) * math.sqrt(len(slice_D) / len(all_n)))
