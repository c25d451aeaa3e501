"""Combination of a round's updates, chosen by name: the plain mean, or a rule that tolerates Byzantine clients.

Each function here takes the settings of its choice, checks them, and returns an `Aggregation`, which is a `Mean` of the
`TrainingContext`: (values_KD, weights_K) -> (D,). Torch is imported when a mean is taken, so that names and settings
can be checked without it; the rules themselves are in `robust.py`.

Weights. The plain mean uses the weights that clients report: the number of their examples, or a precision. All robust
rules give all peers the same weight, as their papers do (Blanchard et al. 2017, Yin et al. 2018, Karimireddy et al.
2021): a client that can lie about its update can lie about its weight, and a count that no peer can check would
outweigh all others. The geometric median also has a weighted form (Pillutla et al. 2019, equation 2), for clients whose
counts can be trusted.

Byzantine clients. A rule is given the number f of Byzantine clients that it must tolerate (`liars`), and needs at least
2 f + 3 updates. Rows that are not finite come from Byzantine clients: they are left out, and each reduces f by one. If
fewer than 2 f + 3 updates are left, since peers are absent, the median of each coordinate replaces the rule: it
tolerates as many Byzantine clients as any rule can with so few updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedpeer.algorithms.byzantine import RobustError, check_liars

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Aggregation:
    """A rule with its settings, used as the `mean` of a `TrainingContext`; it can be compared by value, and sent.

    rule       name of the rule
    liars      f, number of Byzantine clients that it must tolerate, >= 0; default 0
    settings   further settings of the rule
    """

    rule: str
    liars: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_liars(self.rule, 2 * max(self.liars, 0) + 3, self.liars)

    def check(self, updates: int) -> None:
        """Check that this rule tolerates its f Byzantine clients in rounds of this many updates.

        Raises:
            RobustError: updates < 2 f + 3. Never for the plain mean, or for f = 0.
        """
        if self.liars:
            check_liars(self.rule, updates, self.liars)

    def __call__(self, values_KD: Tensor, weights_K: Tensor) -> Tensor:
        """Return the combined update, (D,) in the type of values_KD, from K >= 1 rows, at least one of them finite."""
        from fedpeer.algorithms.robust import aggregated

        return aggregated(self.rule, values_KD, weights_K, self.liars, **self.settings)


def mean() -> Aggregation:
    """Take the mean, weighted as the algorithm says: by examples in FedAvg. A single Byzantine client can decide it."""
    return Aggregation("mean")


def median(*, liars: int = 0) -> Aggregation:
    """Take the median of each coordinate; it tolerates any Byzantine minority.

    Args:
        liars: only checked against the number of peers, >= 0; default 0.
    """
    return Aggregation("median", liars)


def trimmed_mean(*, liars: int) -> Aggregation:
    """Take the mean of each coordinate without its `liars` smallest and `liars` largest values."""
    return Aggregation("trimmed-mean", liars)


def krum(*, liars: int) -> Aggregation:
    """Take the one update whose nearest others are nearest to it."""
    return Aggregation("krum", liars)


def multi_krum(*, liars: int, kept: int | None = None) -> Aggregation:
    """Take the mean of the `kept` updates with the best Krum scores, by default of K - f - 2.

    Args:
        liars: f, number of Byzantine clients to tolerate, >= 0.
        kept: number of updates, >= 1; default, and at most: K - f - 2.
    """
    if kept is not None and kept < 1:
        raise RobustError(f"multi-krum: kept = {kept}: write 1 or more")
    return Aggregation("multi-krum", liars, {"kept": kept})


def centred_clipping(*, liars: int = 0, radius: float | None = None, steps: int = 3) -> Aggregation:
    """Take the median of each coordinate, moved by the mean of the differences from it, each clipped to `radius`.

    Karimireddy et al. 2021 start from the result of the round before. A mean has no memory, so this rule starts from a
    robust estimate of the same round.

    Args:
        liars: number of Byzantine clients to tolerate, >= 0; default 0.
        radius: length > 0 in the units of the updates; default: the median distance of the updates from the start. With
            a Byzantine minority it is at most the distance of some honest update, so Byzantine clients cannot widen it.
        steps: number of such moves, >= 1; default 3.
    """
    if radius is not None and not radius > 0:
        raise RobustError(f"centred-clipping: radius = {radius:g}: write a length above 0")
    if steps < 1:
        raise RobustError(f"centred-clipping: steps = {steps}: write 1 or more")
    return Aggregation("centred-clipping", liars, {"radius": radius, "steps": steps})


def geometric_median(*, liars: int = 0, weighted: bool = False) -> Aggregation:
    """Take the point with the least sum of distances to the updates.

    Args:
        liars: number of Byzantine clients to tolerate, >= 0; default 0.
        weighted: whether distances count by number of examples, for clients whose counts can be trusted; default false.
    """
    return Aggregation("geometric-median", liars, {"weighted": weighted})


#: The choices by name; see the top of this file.
AGGREGATIONS: dict[str, Callable[..., Aggregation]] = {
    "mean": mean,
    "median": median,
    "trimmed-mean": trimmed_mean,
    "krum": krum,
    "multi-krum": multi_krum,
    "centred-clipping": centred_clipping,
    "geometric-median": geometric_median,
}
