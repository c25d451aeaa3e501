"""Tests of claims: Student's interval and two-sided p of a mean, and Holm's correction for several tests. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

#: Level of all tests, and of the intervals beside them.
ALPHA = 0.05
#: Fewest runs for which a page prints p.
PRINTED_FROM = 10
#: Spread that rounding may cause, relative to the mean.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class MeanTest:
    """Student's test of the mean of some numbers, one per run.

    mean        their mean
    low, high   its 95 % interval; infinite for a single run, the mean where all runs agree
    p           two-sided p-value of "the mean is 0"; None for a single run
    runs        number of runs

    Scores are counts of right answers, so a few runs may agree by chance, and then there is no spread for Student's
    test to compare with. Then the sign test is used: that all of them are on one side of 0 happens by chance in 2 of
    2^runs cases.
    """

    mean: float
    low: float
    high: float
    p: float | None
    runs: int

    @classmethod
    def of(cls, values_S: Sequence[float] | NDArray[np.float64]) -> MeanTest:
        values_S = np.asarray(values_S, dtype=np.float64)
        mean, runs = float(values_S.mean()), len(values_S)
        if runs < 2:
            return cls(mean, -np.inf, np.inf, None, runs)
        if float(np.ptp(values_S)) <= _ROUNDING * max(1.0, abs(mean)):
            return cls(mean, mean, mean, 0.5 ** (runs - 1) if abs(mean) > _ROUNDING else 1.0, runs)
        found = stats.ttest_1samp(values_S, 0.0)
        low, high = found.confidence_interval(1 - ALPHA)
        return cls(mean, float(low), float(high), float(found.pvalue), runs)

    @property
    def p_above(self) -> float:
        """The two-sided p-value if the mean is above 0; else, and for a single run, 1."""
        return self.p if self.p is not None and self.mean > 0 else 1.0


def holm(p_K: Sequence[float]) -> list[float]:
    """Return the p-values corrected for their number.

    The k-th smallest of K is multiplied by K - k + 1, and none becomes smaller than one before it.

    Source: Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    order_K = np.argsort(p_K, kind="stable")
    scaled_K = np.asarray(p_K, dtype=np.float64)[order_K] * np.arange(len(p_K), 0, -1)
    corrected_K = np.empty(len(p_K))
    corrected_K[order_K] = np.minimum(np.maximum.accumulate(scaled_K), 1.0)
    return [float(p) for p in corrected_K]
