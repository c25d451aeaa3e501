"""Claims that can be checked: each function makes a `PaperClaim`.

Cells are compared run by run: two cells in pairs of the same seed, and one cell with a number. A claim about tables is
favoured by means (`above`, `near`, `in_order`, `reaches`, `part_of`, `keeps`), one about figures by the medians of the
runs (`highest`, `lowest`, `leads`, `falls`, `part_to_come_so_far`), as their pages print them. Both have a two-sided
test of the mean; `verdicts.py` judges by it, and corrects it for all claims of a page. A claim about the best, worst,
first or last cell gets all other cells that the word refers to, and its p-value is the largest of all comparisons; if
the best of k cells counts, it is multiplied by k, for the choice. A claim that two numbers agree names within how many
points; both sides are tested, so it holds if the whole interval is within these points.

All differences are in the unit in which a table shows the column, which is points for scores; brackets have the 95 %
interval of the mean, unless all runs agree. `more` says whether a larger value is better. A claim about a cell or
number that is missing has no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedpeer.experiments.columns import COLUMNS
from fedpeer.experiments.results import UNTESTED, CellResults, ClaimVerdict, Middle, PaperClaim
from fedpeer.experiments.significance import MeanTest

_Floats = NDArray[np.float64]


class _MissingError(Exception):
    """A cell, or one of its numbers, is missing."""


def with_test(held: bool, words: str, margins: Sequence[_Floats], choices: int = 1) -> ClaimVerdict:
    """Return the verdict with its p-value.

    Args:
        held: whether the numbers favour the claim.
        words: by how much.
        margins: for each comparison, by how much it is in favour of the claim, one number per run.
        choices: number of cells from which the best was chosen.
    """
    tests = [MeanTest.of(margin_S) for margin_S in margins]
    p = min(1.0, choices * max(test.p_above for test in tests))
    return ClaimVerdict(held, words, p, min(test.runs for test in tests))


def reaches(text: str, label: str, column: str, value: float, *, more: bool = True) -> PaperClaim:
    """Claim that the cell's mean is at least (`more`) or at most the value."""

    def check(results: CellResults) -> ClaimVerdict:
        values_S = np.array(_values(results, label, column))
        margin_S = (1 if more else -1) * (values_S - value)
        return with_test(float(margin_S.mean()) >= 0, f"{_number(values_S)} beside {value:g}", [margin_S])

    return PaperClaim(text, _judged(check), (label,), printed=True)


def above(
    text: str, label: str, others: Sequence[str], column: str, *, by: float = 0.0, more: bool = True
) -> PaperClaim:
    """Claim that the cell is above (`more`) or below each other cell by more than `by` points; negative: a margin."""

    def check(results: CellResults) -> ClaimVerdict:
        sign = 1 if more else -1
        pairs = {other: sign * _differences(results, label, other, column) for other in others}
        nearest = min(pairs, key=lambda other: float(pairs[other].mean()))
        words = f"{_signed(sign * pairs[nearest], column)} to {nearest}"
        words += "" if len(others) == 1 else ", the nearest"
        return with_test(float(pairs[nearest].mean()) > by, words, [each - by for each in pairs.values()])

    return PaperClaim(text, _judged(check), (label, *others))


def near(text: str, label: str, other: str, column: str, *, within: float) -> PaperClaim:
    """Claim that the cell is less than `within` points from the other, on either side."""

    def check(results: CellResults) -> ClaimVerdict:
        more_S = _differences(results, label, other, column)
        held = abs(float(more_S.mean())) < within
        return with_test(held, f"{_signed(more_S, column)} to {other}", [within - more_S, within + more_S])

    return PaperClaim(text, _judged(check), (label, other))


def part_of(text: str, label: str, other: str, column: str, *, most: float) -> PaperClaim:
    """Claim that the cell's mean is at most the fraction `most` of the other's; bytes are counted, and not tested."""

    def check(results: CellResults) -> ClaimVerdict:
        mine, theirs = (float(np.mean(_values(results, each, column))) for each in (label, other))
        part = _part(mine, theirs, other)
        held, words = part <= most, _percent(part)
        if COLUMNS[column].counted:
            return ClaimVerdict(held, words)
        return with_test(held, words, [-_differences(results, label, other, column, part=most)])

    return PaperClaim(text, _judged(check), (label, other))


def part_to_come_so_far(
    text: str, label: str, other: str, column: str, *, most: float = 1.0, less: bool = False
) -> PaperClaim:
    """Claim that the median cost of reaching a goal is at most (`less`: below) the fraction `most` of the other's.

    A cell without the number missed the goal in some run, so its cost is infinite. If the other cell missed it, it is
    unknown in how many runs; then the claim is favoured, but cannot be tested.
    """

    def check(results: CellResults) -> ClaimVerdict:
        for each in (label, other):
            if label in results and each in results and COLUMNS[column].values(results[each]) is None:
                who, p = ("it", None) if each == label else (each, UNTESTED)
                words = f"{who} did not come so far in all runs"
                return ClaimVerdict(each != label, words, p, len(results[each].seeds))
        mine, theirs = (each.median for each in _middles(results, (label, other), column).values())
        part = _part(mine, theirs, other)
        held = part < most if less else part <= most
        return with_test(held, _percent(part), [-_differences(results, label, other, column, part=most)])

    return PaperClaim(text, _judged(check), (label, other))


def in_order(text: str, labels: Sequence[str], column: str, *, more: bool) -> PaperClaim:
    """Claim that each cell is better than the next one."""

    def check(results: CellResults) -> ClaimVerdict:
        sign = 1 if more else -1
        pairs = list(pairwise(labels))
        margins = [sign * _differences(results, better, worse, column) for better, worse in pairs]
        words = [
            f"{better} against {worse}: {_signed(sign * margin_S, column)}"
            for (better, worse), margin_S in zip(pairs, margins, strict=True)
        ]
        return with_test(all(float(margin_S.mean()) > 0 for margin_S in margins), "; ".join(words), margins)

    return PaperClaim(text, _judged(check), tuple(labels))


def highest(
    text: str, labels: Sequence[str], others: Sequence[str], column: str, *, apart: bool = False, by: float = 0.0
) -> PaperClaim:
    """Claim that the best of some cells is above each of the others, by the medians of their runs; ties fail.

    Args:
        text: the claim, as a sentence.
        labels: the cells, whose best one counts.
        others: the cells that it must exceed.
        column: the compared number, a key of `COLUMNS`.
        apart: whether the bars, from 40 % to 60 % of the runs, must not touch.
        by: points by which it must be above; a negative number is a margin.
    """

    def check(results: CellResults) -> ClaimVerdict:
        mine, theirs = _middles(results, labels, column), _middles(results, others, column)
        best = max(mine, key=lambda label: mine[label].median)
        nearest = max(theirs, key=lambda label: theirs[label].median)
        more = mine[best].median - theirs[nearest].median
        clear = mine[best].low > max(each.high for each in theirs.values())
        pairs = {other: _differences(results, best, other, column) for other in others}
        words = _points(more, pairs[nearest], COLUMNS[column].unit) + _between(
            best, nearest, len(mine) + len(theirs) > 2
        )
        words += "" if clear or not apart else "; their bars touch"
        held = more > by and (clear or not apart)
        return with_test(held, words, [each - by for each in pairs.values()], len(labels))

    return PaperClaim(text, _judged(check), (*labels, *others))


def lowest(text: str, label: str, others: Sequence[str], column: str) -> PaperClaim:
    """Claim that the cell is below each of the others, by the medians of their runs; ties fail."""

    def check(results: CellResults) -> ClaimVerdict:
        mine = _middles(results, [label], column)[label].median
        theirs = _middles(results, others, column)
        nearest = min(theirs, key=lambda other: theirs[other].median)
        more = mine - theirs[nearest].median
        pairs = {other: _differences(results, label, other, column) for other in others}
        words = _points(more, pairs[nearest], COLUMNS[column].unit) + _between(label, nearest, True)
        return with_test(more < 0, words, [-each for each in pairs.values()])

    return PaperClaim(text, _judged(check), (label, *others))


def leads(text: str, line: Sequence[str], others: Sequence[Sequence[str]], column: str) -> PaperClaim:
    """Claim that a line's mean over its points is above each other line's, by the medians of their runs; ties fail."""

    def check(results: CellResults) -> ClaimVerdict:
        pairs = [_pairs(results, line, other, column) for other in others]
        mores = [float(np.median(mine_S) - np.median(theirs_S)) for mine_S, theirs_S in pairs]
        margins = [mine_S - theirs_S for mine_S, theirs_S in pairs]
        nearest_S = margins[int(np.argmin(mores))]
        words = f"{_points(min(mores), nearest_S, COLUMNS[column].unit, digits=2)} to the nearest"
        return with_test(min(mores) > 0, words, margins)

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
    """Claim that the median falls from one cell to another by more than `least` and less than `most` points.

    If `part`, both limits are in percent of the first cell's median.
    """

    def check(results: CellResults) -> ClaimVerdict:
        before, after = (each.median for each in _middles(results, (start, end), column).values())
        before_S, after_S = _pairs(results, [start], [end], column)
        if part and not before_S.all():
            raise _MissingError(f"{start} has nothing to lose")
        lost = 100 * _part(before - after, before, start) if part else before - after
        lost_S = (before_S - after_S) * (100 / before_S if part else 1)
        unit = f"% of {before:.1f}" if part else COLUMNS[column].unit
        bounds = [(1, least), (-1, most)]
        held = all(limit is None or sign * (lost - limit) > 0 for sign, limit in bounds)
        margins = [sign * (lost_S - limit) for sign, limit in bounds if limit is not None]
        return with_test(held, _points(-lost, -lost_S, unit), margins)

    return PaperClaim(text, _judged(check), (start, end))


def keeps(text: str, labels: Sequence[str], column: str, published: Sequence[float], *, within: float) -> PaperClaim:
    """Claim that each cell that was run is at most `within` points below the paper's number."""

    def check(results: CellResults) -> ClaimVerdict:
        lacks = {
            label: np.array(_values(results, label, column)) - wanted
            for label, wanted in zip(labels, published, strict=True)
            if label in results
        }
        if not lacks:
            raise _MissingError("none of them was run")
        below = [f"{label} {lack_S.mean():+.1f}" for label, lack_S in lacks.items() if lack_S.mean() < -within]
        least = min(lacks, key=lambda label: float(lacks[label].mean()))
        words = f"{len(lacks)} of {len(labels)} judged, the least: {least} "
        words += _points(float(lacks[least].mean()), lacks[least], COLUMNS[column].unit)
        words += f"; below by more: {', '.join(below)}" if below else ""
        return with_test(not below, words, [lack_S + within for lack_S in lacks.values()])

    return PaperClaim(text, _judged(check), about=tuple(labels), printed=True)


def _judged(check: Callable[[CellResults], ClaimVerdict]) -> Callable[[CellResults], ClaimVerdict]:
    def judged(results: CellResults) -> ClaimVerdict:
        try:
            return check(results)
        except _MissingError as missing:
            return ClaimVerdict(None, str(missing))

    return judged


def _values(results: CellResults, label: str, column: str) -> tuple[float, ...]:
    if label not in results:
        raise _MissingError(f"{label} was not run")
    found = COLUMNS[column].values(results[label])
    if found is None or not np.isfinite(found).all():
        raise _MissingError(f"{label} has no {COLUMNS[column].title}")
    return found


def _middles(results: CellResults, labels: Sequence[str], column: str) -> Mapping[str, Middle]:
    return {label: Middle.of(_values(results, label, column)) for label in labels}


def _by_seed(results: CellResults, line: Sequence[str], column: str) -> Mapping[int, float]:
    """Return the mean over a line's cells for each seed that all of them have."""
    values = [_values(results, label, column) for label in line]
    cells = [dict(zip(results[label].seeds, each, strict=True)) for label, each in zip(line, values, strict=True)]
    return {seed: float(np.mean([cell[seed] for cell in cells])) for seed in sorted(set.intersection(*map(set, cells)))}


def _pairs(results: CellResults, line: Sequence[str], other: Sequence[str], column: str) -> tuple[_Floats, _Floats]:
    """Return the means of two lines over their cells, (S,) each, in pairs of the same seed, of the seeds both have."""
    mine, theirs = _by_seed(results, line, column), _by_seed(results, other, column)
    pairs = [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
    if not pairs:
        raise _MissingError(f"{line[0]} and {other[0]} have no seed in common")
    mine_S, theirs_S = np.array(pairs, dtype=np.float64).T
    return mine_S, theirs_S


def _differences(results: CellResults, label: str, other: str, column: str, *, part: float = 1.0) -> _Floats:
    """Return the differences of two cells over the seeds that both have, (S,); `part` scales the other's values."""
    mine_S, theirs_S = _pairs(results, [label], [other], column)
    return mine_S - part * theirs_S


def _part(one: float, whole: float, name: str) -> float:
    """Return one number as a fraction of another one, which is that of the cell of this name."""
    if not whole:
        raise _MissingError(f"{name} has nothing to compare with")
    return one / whole


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _number(values_S: _Floats) -> str:
    test = MeanTest.of(values_S)
    spread = "" if test.p is None or test.low == test.high else f" ({test.low:.1f} to {test.high:.1f})"
    return f"{test.mean:.1f}{spread}"


def _signed(difference_S: _Floats, column: str) -> str:
    """Return a mean difference and its interval in the column's unit."""
    digits = max(2, COLUMNS[column].digits)
    return _points(float(difference_S.mean()), difference_S, COLUMNS[column].unit, digits=digits)


def _points(difference: float, by_run_S: _Floats, unit: str, *, digits: int = 1) -> str:
    """Return a difference, and the interval of the mean over runs, preceded by that mean if it is another number."""
    shown, test = f"{difference + 0.0:+.{digits}f}", MeanTest.of(by_run_S)  # -0.0 + 0.0 is 0.0
    words, mean = f"{shown} {unit}".rstrip(), f"{test.mean + 0.0:+.{digits}f}"
    if test.p is None:
        return words
    if test.low == test.high:
        return f"{words} in each run"
    about = "" if mean == shown else f"mean {mean}, "
    return f"{words} ({about}{test.low:+.{digits}f} to {test.high:+.{digits}f})"


def _between(label: str, other: str, named: bool) -> str:
    """Return which cells were compared, without the place on the axis that they have in common."""
    if not named:
        return ""
    (mine, _, place), (theirs, _, other_place) = label.partition("; "), other.partition("; ")
    return f", {mine} to {theirs}" if place == other_place else f", {label} to {other}"
