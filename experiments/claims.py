"""Claims that can be checked: each function makes a `PaperClaim`.

Cells of tables are compared in pairs, seed by seed (`above`, `in_order`), or by their means (`reaches`, `part_of`,
`keeps`). Points of figures are compared by the medians of their runs (`highest`, `lowest`, `leads`, `falls`), as the
paper draws them. A claim about the best, worst, first or last cell gets all other cells that the word refers to.

All differences are in points: in the unit in which a table shows the column. `more` says whether a larger value is
better. A claim about a cell or number that is missing has no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedpeer.experiments.results import COLUMNS, ClaimVerdict, Middle, PaperClaim, Results, mean_and_sem

_Floats = NDArray[np.float64]


class _MissingError(Exception):
    """A cell, or one of its numbers, is missing."""


def reaches(text: str, label: str, column: str, value: float, *, more: bool = True) -> PaperClaim:
    """Claim that the cell's mean is at least (`more`) or at most the value."""

    def check(results: Results) -> ClaimVerdict:
        mean, sem = mean_and_sem(_values(results, label, column))
        sign = 1 if more else -1
        return ClaimVerdict(sign * (mean - value) >= 0, f"{_number(mean, sem)} beside {value:g}")

    return PaperClaim(text, _judged(check), (label,), printed=True)


def above(
    text: str, label: str, others: Sequence[str], column: str, *, by: float = 0.0, more: bool = True
) -> PaperClaim:
    """Claim that the cell is above (`more`) or below each of the others by `by` points; negative: a margin."""

    def check(results: Results) -> ClaimVerdict:
        sign = 1 if more else -1
        pairs = {other: sign * _differences(results, label, other, column) for other in others}
        nearest = min(pairs, key=lambda other: float(pairs[other].mean()))
        mean, sem = mean_and_sem(tuple(pairs[nearest]))
        words = f"{_signed(sign * mean, sem, column)} to {nearest}"
        return ClaimVerdict(mean >= by, words if len(others) == 1 else f"{words}, the nearest")

    return PaperClaim(text, _judged(check), (label, *others))


def part_of(text: str, label: str, other: str, column: str, *, most: float) -> PaperClaim:
    """Claim that the cell's mean is at most the fraction `most` of the other's."""

    def check(results: Results) -> ClaimVerdict:
        mine, other_mean = (mean_and_sem(_values(results, each, column))[0] for each in (label, other))
        if not other_mean:
            raise _MissingError(f"{other} has nothing to compare with")
        return ClaimVerdict(mine <= most * other_mean, f"{100 * mine / other_mean:.1f} %")

    return PaperClaim(text, _judged(check), (label, other))


def part_to_come_so_far(text: str, label: str, other: str, column: str, *, most: float) -> PaperClaim:
    """Claim `part_of` for the cost of reaching a goal; a cell without the number never reached it: infinite cost."""
    within = part_of(text, label, other, column, most=most)

    def check(results: Results) -> ClaimVerdict:
        for each in (label, other):
            if label in results and each in results and COLUMNS[column].values(results[each]) is None:
                who = "it" if each == label else each
                return ClaimVerdict(each != label, f"{who} did not come so far in all runs")
        return within.check(results)

    return replace(within, check=check)


def in_order(text: str, labels: Sequence[str], column: str, *, more: bool, p: float = 0.05) -> PaperClaim:
    """Claim that each cell is better than the next one, by a one-sided paired t-test over seeds."""

    def check(results: Results) -> ClaimVerdict:
        sign, words, held = 1 if more else -1, [], []
        for better, worse in pairwise(labels):
            differences_S = sign * _differences(results, better, worse, column)
            mean, sem = mean_and_sem(tuple(differences_S))
            if sem is None:
                return ClaimVerdict(None, "needs two seeds or more")
            chance = _chance(differences_S)
            held.append(chance < p)
            words.append(f"{better} against {worse}: {_signed(sign * mean, sem, column)}, p = {chance:.2g}")
        return ClaimVerdict(all(held), "; ".join(words))

    return PaperClaim(text, _judged(check), tuple(labels))


def highest(
    text: str, labels: Sequence[str], others: Sequence[str], column: str, *, apart: bool = False, by: float = 0.0
) -> PaperClaim:
    """Claim that the best of some cells is above each of the others, by the medians of their runs; ties fail.

    Args:
        text: the claim, as a sentence.
        labels: the cells of which the best counts.
        others: the cells that it must exceed.
        column: the compared number, a key of `COLUMNS`.
        apart: whether the bars, from 40 % to 60 % of the runs, must not touch.
        by: points by which it must be above; a negative number is a margin.
    """

    def check(results: Results) -> ClaimVerdict:
        mine = {label: Middle.of(_values(results, label, column)) for label in labels}
        theirs = {label: Middle.of(_values(results, label, column)) for label in others}
        best = max(mine, key=lambda label: mine[label].median)
        nearest = max(theirs, key=lambda label: theirs[label].median)
        more = mine[best].median - theirs[nearest].median
        clear = mine[best].low > max(each.high for each in theirs.values())
        words = f"{more:+.1f} points" + (f", {best} to {nearest}" if len(mine) + len(theirs) > 2 else "")
        words += "" if clear or not apart else "; their bars touch"
        return ClaimVerdict(more > by and (clear or not apart), words)

    return PaperClaim(text, _judged(check), (*labels, *others))


def lowest(text: str, label: str, others: Sequence[str], column: str) -> PaperClaim:
    """Claim that the cell is below each of the others, by the medians of their runs; ties fail."""

    def check(results: Results) -> ClaimVerdict:
        mine = Middle.of(_values(results, label, column)).median
        theirs = {other: Middle.of(_values(results, other, column)).median for other in others}
        nearest = min(theirs, key=lambda other: theirs[other])
        return ClaimVerdict(mine < theirs[nearest], f"{mine - theirs[nearest]:+.1f} points, {label} to {nearest}")

    return PaperClaim(text, _judged(check), (label, *others))


def leads(text: str, line: Sequence[str], others: Sequence[Sequence[str]], column: str) -> PaperClaim:
    """Claim that a line's mean over its points is above each other line's, by the medians of their runs; ties fail."""

    def check(results: Results) -> ClaimVerdict:
        mine, *theirs = (_mean_over(results, labels, column) for labels in (line, *others))
        more = Middle.of(mine).median - max(Middle.of(each).median for each in theirs)
        return ClaimVerdict(more > 0, f"{more:+.2f} points to the nearest")

    return PaperClaim(text, _judged(check), tuple(label for labels in (line, *others) for label in labels))


def falls(
    text: str,
    start: str,
    end: str,
    column: str,
    *,
    least: float | None = None,
    most: float | None = None,
    part: bool = False,
) -> PaperClaim:
    """Claim that the median falls from one cell to another by `least` to `most` points, or percent if `part`."""

    def check(results: Results) -> ClaimVerdict:
        before, after = (Middle.of(_values(results, label, column)).median for label in (start, end))
        lost = 100 * (before - after) / before if part else before - after
        unit = f"% of {before:.1f}" if part else "points"
        held = (least is None or lost >= least) and (most is None or lost <= most)
        return ClaimVerdict(held, f"{-lost:+.1f} {unit}")

    return PaperClaim(text, _judged(check), (start, end))


def keeps(text: str, labels: Sequence[str], column: str, published: Sequence[float], *, within: float) -> PaperClaim:
    """Claim that each cell that was run is at most `within` points below the paper's number."""

    def check(results: Results) -> ClaimVerdict:
        lacks = {
            label: mean_and_sem(_values(results, label, column))[0] - wanted
            for label, wanted in zip(labels, published, strict=True)
            if label in results
        }
        if not lacks:
            raise _MissingError("none of them was run")
        below = [f"{label} {lack:+.1f}" for label, lack in lacks.items() if lack < -within]
        count = f"{len(lacks)} of {len(labels)} judged"
        return ClaimVerdict(not below, f"{count}; below by more: {', '.join(below)}" if below else count)

    return PaperClaim(text, _judged(check), printed=True)


def _chance(differences_S: _Floats) -> float:
    """Return the p-value of the mean difference; 0 or 1 if all seeds agree exactly, as there is no spread to test."""
    if not float(differences_S.std()):
        return 0.0 if float(differences_S.mean()) > 0 else 1.0
    return float(stats.ttest_1samp(differences_S, 0.0, alternative="greater").pvalue)


def _judged(check: Callable[[Results], ClaimVerdict]) -> Callable[[Results], ClaimVerdict]:
    def judged(results: Results) -> ClaimVerdict:
        try:
            return check(results)
        except _MissingError as missing:
            return ClaimVerdict(None, str(missing))

    return judged


def _values(results: Results, label: str, column: str) -> tuple[float, ...]:
    if label not in results:
        raise _MissingError(f"{label} was not run")
    found = COLUMNS[column].values(results[label])
    if found is None:
        raise _MissingError(f"{label} has no {column}")
    return found


def _mean_over(results: Results, labels: Sequence[str], column: str) -> tuple[float, ...]:
    """Return each run's mean over the cells, which have the same seeds, as they read the same runs."""
    return tuple(np.mean([_values(results, label, column) for label in labels], axis=0))


def _differences(results: Results, label: str, other: str, column: str) -> _Floats:
    """Return the differences of two cells over the seeds that both have, (S,)."""
    one, two = _values(results, label, column), _values(results, other, column)
    theirs = dict(zip(results[other].seeds, two, strict=True))
    pairs = [(mine, theirs[seed]) for seed, mine in zip(results[label].seeds, one, strict=True) if seed in theirs]
    if not pairs:
        raise _MissingError(f"{label} and {other} have no seed in common")
    return np.array([mine - other for mine, other in pairs], dtype=np.float64)


def _number(mean: float, sem: float | None) -> str:
    return f"{mean:.1f}" if sem is None else f"{mean:.1f} ± {sem:.1f}"


def _signed(mean: float, sem: float | None, column: str) -> str:
    """Return a difference in points, or in the column's own unit where that is finer."""
    digits = COLUMNS[column].digits
    digits, unit = (digits, "") if digits > 2 else (2, " points")
    return f"{mean:+.{digits}f}{unit}" if sem is None else f"{mean:+.{digits}f} ± {sem:.{digits}f}{unit}"
