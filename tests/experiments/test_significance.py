"""Tests of claims: Student's formulas by hand, Holm's correction, and the meaning of no spread and of a single run."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from fedpeer.experiments.significance import MeanTest, holm


def test_interval_and_p_are_students() -> None:
    values = np.array([0.3, -0.1, 0.6, 0.2])
    error = values.std(ddof=1) / 2
    found = MeanTest.of(values)
    assert found.mean == pytest.approx(0.25)
    assert found.high - found.mean == pytest.approx(special.stdtrit(3, 0.975) * error)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert found.p == pytest.approx(2 * special.stdtr(3, -0.25 / error)), "two-sided"
    assert found.p_above == found.p
    assert MeanTest.of(-values).p_above == 1.0, "the mean is on the other side"
    assert MeanTest.of(-values).p == pytest.approx(found.p)


def test_the_interval_excludes_0_exactly_where_p_is_below_5_percent() -> None:
    draws = np.random.default_rng(0)
    tests = [MeanTest.of(draws.normal(0.6, 1.0, size=8)) for _ in range(200)]
    excluded = [test.low > 0 or test.high < 0 for test in tests]
    assert excluded == [test.p is not None and test.p < 0.05 for test in tests]
    assert 0 < sum(excluded) < 200


@pytest.mark.filterwarnings("error")
def test_runs_that_agree_are_judged_by_their_sides_alone() -> None:
    """Two or three runs may agree by chance; without a spread they show only which side is better."""
    assert MeanTest.of([0.5, 0.5, 0.5]) == MeanTest(0.5, 0.5, 0.5, 0.25, 3)
    assert MeanTest.of([0.0, 0.0]).p_above == 1.0
    assert MeanTest.of([10.0, 10.0 + 1e-14]).p == 0.5, "as far as rounding goes"
    for runs in (2, 5, 10):
        assert MeanTest.of([0.5] * runs).p == pytest.approx(stats.binomtest(runs, runs).pvalue)


def test_a_single_run_says_nothing_about_noise() -> None:
    alone = MeanTest.of([3.0])
    assert (alone.mean, alone.p, alone.p_above, alone.runs) == (3.0, None, 1.0, 1)
    assert (alone.low, alone.high) == (-math.inf, math.inf)
    assert MeanTest.of([math.nan, 1.0]).p_above == 1.0, "a run that diverged"


def test_holm_multiplies_the_smallest_by_all_and_never_goes_down() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_of_many_tests_without_any_effect_holm_seldom_finds_one() -> None:
    draws = np.random.default_rng(1)
    families = draws.uniform(size=(2000, 20))
    wrong = np.mean([min(holm(family.tolist())) < 0.05 for family in families])
    alone = np.mean([min(family) < 0.05 for family in families])
    assert wrong < 0.07
    assert alone > 0.5
