"""Whether a share could be what an honest neighbour sends: finite but absurd values are refused.

The value that a share implies (value / weight) is compared with one's own estimate. An honest one is as far away as
peers have learnt different things: of the size of the changes of the last rounds, or, when a peer has long been cut off
from others who have converged, of the size of the estimate itself. What is further away than a hundred changes and
further than the estimate is long is refused. This bounds what a liar can do to an average, and does not prevent it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from torch import Tensor

#: Rounds of which the largest change counts; before so many are seen there is nothing to judge by.
ROUNDS = 10
#: Times the largest change.
FACTOR = 100.0
#: Times the standard deviation of made-up numbers: a peer of a hundred neighbours holds ten times one's noise, and two
#: of them are compared.
NOISY = 30.0


@dataclass
class Gauge:
    """The changes of one group in the last rounds, as Euclidean norms."""

    changes: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS))

    def moved(self, before_D: Tensor, after_D: Tensor) -> None:
        """A round is over."""
        self.changes.append(float((after_D - before_D).norm()))

    @property
    def ready(self) -> bool:
        """Whether there is anything to judge by."""
        return len(self.changes) == ROUNDS

    def absurd(self, implied_D: Tensor, estimate_D: Tensor, noise: float = 0.0) -> str | None:
        """Why this cannot be, if so; asked only when `ready`.

        `noise`: the standard deviation of what averages begin with (`gossip/noise.py`), of which a peer that told
        many neighbours holds the sum.
        """
        distance = float((implied_D - estimate_D).norm())
        most = max(FACTOR * max(self.changes), float(estimate_D.norm())) + NOISY * noise * len(estimate_D) ** 0.5
        return f"{distance:.3g} away, and {most:.3g} is the most" if distance > most else None
