"""How the updates of a round become one: the plain mean, or a rule that stands some liars. A choice by name.

Each function takes the settings of its choice, checks them, and returns an `Aggregation`, a `Mean` as a `Workbench` has
it: (values_KD, weights_K) -> (D,). Torch is imported when a mean is taken, so that names and settings can be checked
without it; the rules themselves are in `robust.py`.

Weights. The plain mean weighs by what the clients say of themselves: the number of their examples, or a precision. All
rules against liars count peers alike, as their papers do (Blanchard et al. 2017, Yin et al. 2018, Karimireddy et al.
2021): who may lie about an update may lie about its weight, and a count that nobody can check would outweigh everyone.
The geometric median has a weighted form (Pillutla et al. 2019, equation 2), for those whose counts are known to be
true.

Liars. A rule is told how many it shall stand, f, and takes 2 f + 3 updates at least. Rows that are not finite come
from liars: they are left out, and each is one of the f less. Where still fewer come than 2 f + 3, since peers are away,
the median of each coordinate is taken in the place of the rule: it stands as many liars as that number of updates can.
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
    """A rule with its settings: the mean of a `Workbench`. The same rule has the same fields, and they can be sent.

    liars   f, how many it shall stand
    """

    rule: str
    liars: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_liars(self.rule, 2 * max(self.liars, 0) + 3, self.liars)

    def check(self, updates: int) -> None:
        """Refuse what this rule cannot stand in rounds of so many updates.

        Raises:
            RobustError: n < 2 f + 3, but for the plain mean, and for rules that were told of no liars.
        """
        if self.liars:
            check_liars(self.rule, updates, self.liars)

    def __call__(self, values_KD: Tensor, weights_K: Tensor) -> Tensor:
        """(D,) in the type of values_KD, from K >= 1 rows of which one at least is finite."""
        from fedpeer.algorithms.robust import aggregated

        return aggregated(self.rule, values_KD, weights_K, self.liars, **self.settings)


def mean() -> Aggregation:
    """The mean, weighted as the algorithm says: by examples in FedAvg. One liar decides it."""
    return Aggregation("mean")


def median(*, liars: int = 0) -> Aggregation:
    """The median of each coordinate; it stands any minority, and `liars` is only held against the number of peers."""
    return Aggregation("median", liars)


def trimmed_mean(*, liars: int) -> Aggregation:
    """The mean of each coordinate without its `liars` smallest and largest values."""
    return Aggregation("trimmed-mean", liars)


def krum(*, liars: int) -> Aggregation:
    """The one update whose nearest others are nearest to it."""
    return Aggregation("krum", liars)


def multi_krum(*, liars: int, kept: int | None = None) -> Aggregation:
    """The mean of the `kept` updates that Krum likes best; of K - f - 2, if not said or where there are fewer."""
    if kept is not None and kept < 1:
        raise RobustError(f"multi-krum: kept = {kept}: write 1 or more")
    return Aggregation("multi-krum", liars, {"kept": kept})


def centred_clipping(*, liars: int = 0, radius: float | None = None, steps: int = 3) -> Aggregation:
    """The median of each coordinate, moved by the mean of the differences from it, each clipped to `radius`.

    Karimireddy et al. 2021 start where the round before ended; a mean remembers nothing, so this one starts at a robust
    guess of the same round. Without a radius it is the median distance of the updates from that start: with liars in
    the minority that is at most the distance of some honest update, so they cannot widen it.
    """
    if radius is not None and not radius > 0:
        raise RobustError(f"centred-clipping: radius = {radius:g}: write a length above 0")
    if steps < 1:
        raise RobustError(f"centred-clipping: steps = {steps}: write 1 or more")
    return Aggregation("centred-clipping", liars, {"radius": radius, "steps": steps})


def geometric_median(*, liars: int = 0, weighted: bool = False) -> Aggregation:
    """The point with the least sum of distances; `weighted`: by examples, where the counts can be trusted."""
    return Aggregation("geometric-median", liars, {"weighted": weighted})


#: By name; see the top of this file.
AGGREGATIONS: dict[str, Callable[..., Aggregation]] = {
    "mean": mean,
    "median": median,
    "trimmed-mean": trimmed_mean,
    "krum": krum,
    "multi-krum": multi_krum,
    "centred-clipping": centred_clipping,
    "geometric-median": geometric_median,
}
