"""Verdicts: beyond noise, within noise, of one run, of counts, of cells that were searched over other settings."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np
import pytest

from fedpeer.algorithms.registry import ALGORITHMS
from fedpeer.experiments.claims import above, falls, highest, keeps, part_of, part_to_come_so_far
from fedpeer.experiments.columns import COLUMNS
from fedpeer.experiments.experiment import Cell, Experiment, RunSize
from fedpeer.experiments.registry import EXPERIMENTS, experiment
from fedpeer.experiments.results import CellResults, ClaimVerdict, Measured, PaperClaim
from fedpeer.experiments.significance import holm
from fedpeer.experiments.table import page_data
from fedpeer.experiments.verdicts import claims_table, judged, outdated, unsearched
from fedpeer.runs.scores import METRICS
from tests.experiments.conftest import Listed


def cell(label: str, scores: Sequence[float], **more: Any) -> Measured:
    return Measured(
        label=label,
        variant="",
        seeds=tuple(range(len(scores))),
        rounds=1,
        peers=2,
        per_seed={"PM": tuple(scores)},
        sent=1e6,
        seconds=1.0,
        **more,
    )


def table(*claims: PaperClaim) -> Experiment:
    size = RunSize(rounds=1, seeds=2, minutes=1)
    return Experiment(
        name="tiny",
        title="A table",
        source="Nobody 2026, table 0",
        paper="Nobody",
        data=("digits",),
        columns=("PM",),
        sizes={"quick": size, "default": size, "full": size},
        cells=lambda size: (),
        claims=claims,
    )


def verdicts(
    results: CellResults, *claims: PaperClaim, old: Sequence[str] = (), unsearched: Sequence[str] = ()
) -> list[dict[str, Any]]:
    return judged(table(*claims), "default", list(results), results, old, unsearched)


def of(*cells: Measured) -> CellResults:
    return {each.label: each for each in cells}


A_ABOVE_B = above("A is above B", "A", ["B"], "PM")
B_ABOVE_A = above("B is above A", "B", ["A"], "PM")


def test_a_difference_within_noise_is_favoured_and_does_not_hold() -> None:
    noisy = of(cell("A", (0.9, 0.8, 0.95)), cell("B", (0.85, 0.86, 0.84)))
    (one,) = verdicts(noisy, A_ABOVE_B)
    assert (one["held"], one["noise"], one["tested"]) == (False, True, True)
    assert one["words"].startswith("+3.33 points (-"), "the interval goes below 0"
    clear = of(cell("A", (0.90, 0.81, 0.95)), cell("B", (0.85, 0.76, 0.91)))
    one, other = verdicts(clear, A_ABOVE_B, B_ABOVE_A)
    assert (one["held"], one["noise"]) == (True, False)
    assert (other["held"], other["noise"]) == (False, False), "it points the other way"


def test_one_run_is_not_judged_and_bytes_are_not_tested() -> None:
    single = of(cell("A", (0.9,)), cell("B", (0.5,)))
    one, count = verdicts(single, A_ABOVE_B, part_of("half the bytes", "A", "B", "sent", most=0.5))
    assert (one["held"], one["noise"], one["tested"]) == (None, False, False)
    assert "one run cannot be told from noise" in one["words"]
    assert (count["held"], count["tested"]) == (False, False)
    assert count["words"] == "100.0 %"
    updates = of(cell("A", (0.9,) * 3, statistics={"update bytes": (500.0,) * 3}),
                 cell("B", (0.9,) * 3, statistics={"update bytes": (1000.0,) * 3}))  # fmt: skip
    (count,) = verdicts(updates, part_of("half the bytes", "A", "B", "update", most=0.5))
    assert (count["held"], count["tested"], count["words"]) == (True, False, "50.0 %"), "the same in each run"


def test_one_run_is_not_judged_without_a_test_either() -> None:
    """Whether a goal was reached, and whether groups were found, is estimated from runs; bytes alone are counts."""
    goal = part_to_come_so_far("A needs less than B", "A", "B", "megabytes", most=1.0)
    for runs, held in ((1, None), (2, False)):
        scores = (0.9,) * runs
        never = cell("A", scores), cell("B", scores, statistics={"megabytes": (3.0,) * runs})
        (one,) = verdicts(of(*never), goal)
        assert (one["held"], one["tested"]) == (held, False)
        found = next(claim for claim in experiment("assignment").claims if "are found" in claim.text)
        (label,) = found.needs
        (one,) = verdicts(of(cell(label, scores, statistics={"recovered": (1.0,) * runs})), found)
        assert one["held"] is (None if runs == 1 else True)


def test_a_goal_that_the_other_missed_in_some_run_is_not_beyond_noise() -> None:
    goal = part_to_come_so_far("A needs less than B", "A", "B", "megabytes", most=1.0)
    missed = of(cell("A", (0.9, 0.8), statistics={"megabytes": (3.0, 4.0)}), cell("B", (0.9, 0.8)))
    (one,) = verdicts(missed, goal)
    assert (one["held"], one["noise"]) == (False, True)
    assert one["words"] == "B did not come so far in all runs"
    assert not one["tested"], "nothing tells in how many runs"


def test_a_claim_that_cannot_be_tested_corrects_no_other() -> None:
    draws = np.random.default_rng(0)
    cells = of(
        cell("A", list(0.81 + 0.01 * draws.normal(size=10)), statistics={"megabytes": (3.0,) * 10}),
        cell("B", list(0.80 + 0.01 * draws.normal(size=10))),
    )
    goal = part_to_come_so_far("A needs less than B", "A", "B", "megabytes", most=1.0)
    alone, (untested, beside) = verdicts(cells, A_ABOVE_B), verdicts(cells, goal, A_ABOVE_B)
    assert [beside] == alone
    assert (untested["held"], untested["noise"], untested["words"]) == (
        False,
        True,
        "B did not come so far in all runs",
    )
    text = claims_table([untested, beside])
    assert "tests of this page" not in text
    assert "Claims without a test: 1;" in text


def test_claims_are_corrected_for_how_many_the_page_has() -> None:
    draws = np.random.default_rng(0)
    shifts = {"A": 0.03, "B": 0.0, "C": 0.015, "D": 0.01}
    cells = [cell(name, list(0.8 + shift + 0.01 * draws.normal(size=10))) for name, shift in shifts.items()]
    claims = [above(f"{name} is above B", name, ["B"], "PM") for name in "ACD"]
    alone = [claim.check(of(*cells)).p for claim in claims]
    p = [each for each in alone if each is not None]
    found = verdicts(of(*cells), *claims)
    assert [each["held"] for each in found] == [each < 0.05 for each in holm(p)]
    assert [f"p = {each:.2g}" in one["words"] for each, one in zip(holm(p), found, strict=True)] == [True] * 3
    assert verdicts(of(*cells), claims[1])[0]["words"].endswith(f"p = {p[1]:.2g}"), "of a single test"


def test_p_is_printed_from_ten_runs_on() -> None:
    for runs in (9, 10):
        pair = of(cell("A", list(np.linspace(0.7, 0.9, runs))), cell("B", list(np.linspace(0.6, 0.85, runs))))
        assert ("p = " in verdicts(pair, A_ABOVE_B)[0]["words"]) == (runs == 10)


def test_the_nearest_of_all_decides_and_the_best_of_several_pays_for_the_choice() -> None:
    cells = of(*(cell(name, scores) for name, scores in {
        "A": (0.90, 0.91, 0.93, 0.90), "B": (0.88, 0.90, 0.90, 0.89), "C": (0.5, 0.6, 0.55, 0.5)}.items()))  # fmt: skip
    both, near, far = (above("", "A", others, "PM").check(cells).p for others in (["B", "C"], ["B"], ["C"]))
    assert near is not None
    assert far is not None
    assert both == near > far
    chosen, named = (highest("", labels, ["B"], "PM").check(cells).p for labels in (["A", "C"], ["A"]))
    assert named is not None
    assert chosen == pytest.approx(2 * named)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_equal_numbers_are_a_tie(name: str) -> None:
    """A claimed difference is not held. A claimed agreement is only favoured: three runs may agree by chance.

    "At most" is true of equal numbers, though not clearly.
    """
    same = (0.5, 0.5, 0.5)
    more: dict[str, Any] = {
        "late": {"GM": same},
        "statistics": {column.metric: same for column in COLUMNS.values()},
    }
    for claim in experiment(name).claims:
        verdict = claim.check({label: cell(label, same, **more) for label in (*claim.needs, *claim.about)})
        if not claim.printed and verdict.p is not None:
            assert verdict.p in (0.25, 1.0), claim.text
            assert verdict.held is (verdict.p == 0.25) or "at most 100 %" in claim.text, claim.text


def test_two_runs_that_agree_by_chance_are_within_noise() -> None:
    """0.3 points are one image of 360: two equal runs are no sign that all runs would be equal."""
    (one,) = verdicts(of(cell("A", (0.903, 0.813)), cell("B", (0.9, 0.81))), A_ABOVE_B)
    assert (one["held"], one["noise"]) == (False, True)
    assert one["words"].startswith("+0.30 points in each run")
    assert "that of the sign test" in claims_table([one]), "no page calls it a t-test"


def test_a_difference_has_the_unit_of_its_column() -> None:
    slow, fast = (replace(cell(label, (0.5, 0.6)), statistics={"virtual seconds": seconds}) for label, seconds in (
        ("A", (20.0, 30.0)), ("B", (10.0, 15.0)),
    ))  # fmt: skip
    assert highest("", ["A"], ["B"], "seconds").check(of(slow, fast)).words.startswith("+12.5 virtual seconds (")
    assert falls("", "A", "B", "seconds", least=1).check(of(slow, fast)).words.startswith("-12.5 virtual seconds (")
    assert COLUMNS["PM"].unit == "points"
    alike = falls("", "A", "B", "PM", most=1).check(of(slow, fast))
    assert alike.words == "+0.0 points in each run", "nothing has no sign"


def test_a_tie_of_means_is_not_above_and_what_is_no_number_is_not_judged() -> None:
    tied = of(cell("A", (0.5, 0.75)), cell("B", (0.75, 0.5)))
    assert [one["noise"] for one in verdicts(tied, A_ABOVE_B, B_ABOVE_A)] == [False, False]
    assert falls("", "A", "B", "PM", most=0.0).check(tied).held is False
    unknown = of(cell("A", (0.5, math.nan)), cell("B", (0.25, 0.125)))
    (one,) = verdicts(unknown, A_ABOVE_B)
    assert (one["held"], one["words"]) == (None, "A has no PM")
    nothing = of(cell("A", (0.0, 0.0)), cell("B", (0.5, 0.25)))
    for claim in (falls("", "A", "B", "PM", least=1, part=True), part_of("", "B", "A", "PM", most=1.0)):
        assert claim.check(nothing).held is None


#: Words with which a claim allows a tolerance on either side, and the points that they mean.
WITHIN = re.compile(r"within (half a point|a point|two points|([\d.]+) points)")
POINTS = {"half a point": 0.5, "a point": 1.0, "two points": 2.0}


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        pytest.param(name, claim, id=claim.text)
        for name in EXPERIMENTS
        for claim in experiment(name).claims
        if WITHIN.search(claim.text) and not re.search("or better|or within|as good as|no harm", claim.text)
    ],
)
def test_what_is_about_as_much_is_within_the_points_that_are_told_on_either_side(name: str, claim: PaperClaim) -> None:
    """A claim holds if the whole interval is within its points; an interval that covers both bounds shows nothing."""
    (told,) = WITHIN.finditer(claim.text)
    points = POINTS.get(told[1]) or float(told[2])
    label, other = claim.needs

    def verdict(*apart_S: float) -> ClaimVerdict:
        scores = [(0.5,) * len(apart_S), tuple(0.5 + points * apart / 100 for apart in apart_S)]
        made = [cell(each, score) for each, score in zip((label, other), scores, strict=True)]
        return claim.check(of(*(replace(each, per_seed=dict.fromkeys(METRICS, each.per_seed["PM"])) for each in made)))

    for side in (-1, 1):
        inside, outside, noisy = (
            verdict(*(side * apart for apart in apart_S))
            for apart_S in ((0.8, 0.8, 0.9), (1.1, 1.1, 1.2), (-3.0, 0.0, 3.3))
        )
        assert (inside.held, outside.held) == (True, False), name
        assert inside.p is not None
        assert noisy.p is not None
        assert inside.p < 0.05 < noisy.p


def test_a_comparison_with_an_older_search_is_not_judged() -> None:
    pair = of(cell("A", (0.9, 0.91)), cell("B", (0.5, 0.51), tried={"lr=1": 0.5}))
    today = [Cell(label="A", variants={}), Cell(label="B", variants={"lr=1": None, "lr=2": None})]  # type: ignore[dict-item]
    assert outdated(today, pair) == ["B"]
    assert outdated([*today[:1], replace(today[1], variants={"lr=1": None})], pair) == []  # type: ignore[dict-item]
    (one,) = verdicts(pair, A_ABOVE_B, old=["B"])
    assert one["held"] is None
    assert "B was searched over other settings" in one["words"]


def test_a_line_that_was_searched_beside_one_that_was_not_is_not_judged() -> None:
    one, several = {"lr=1": None}, {"lr=1": None, "lr=2": None}
    today = [Cell(label="A", variants=several), Cell(label="B", variants=several)]  # type: ignore[arg-type]
    searched, first = cell("A", (0.9, 0.92), tried={"lr=1": 0.5, "lr=2": 0.4}), cell("B", (0.5, 0.51))
    assert unsearched(today, of(searched, first)) == ["B"]
    assert unsearched([today[0], replace(today[1], variants=one)], of(searched, first)) == []  # type: ignore[arg-type]
    assert unsearched(today, of(replace(searched, tried={}), first)) == [], "nobody was"

    (verdict,) = verdicts(of(searched, first), A_ABOVE_B, unsearched=["B"])
    assert verdict["held"] is None
    assert verdict["words"].endswith("; A was searched, B was not")
    both = of(replace(searched, tried={}), first)
    assert verdicts(both, A_ABOVE_B, unsearched=["A", "B"])[0]["held"] is True, "two alike, beside a third line"
    page = page_data(table(A_ABOVE_B), RunSize(rounds=1, seeds=2, minutes=1), "default", today, of(searched, first), {})
    assert page["claims"][0]["held"] is None, "on the page of a run, too"


def test_the_papers_numbers_and_bytes_are_not_judged_by_an_older_search_either() -> None:
    """A claim about all cells that were run is about each of them, and other settings may send other bytes."""
    pair = of(cell("A", (0.9, 0.91)), cell("B", (0.5, 0.51), tried={"lr=1": 0.5}))
    printed = keeps("A and B have the paper's numbers", ("A", "B", "C"), "PM", (85.0, 40.0, 1.0), within=1.0)
    fewer = part_of("as many bytes", "B", "A", "sent", most=1.0)
    found = judged(table(printed, fewer), "full", list(pair), pair, ["B"])
    assert [one["held"] for one in found] == [None, None]
    assert all(one["words"].endswith("B was searched over other settings than are tried today") for one in found)
    assert [one["held"] for one in judged(table(printed, fewer), "full", list(pair), pair)] == [True, True]


def test_the_table_says_how_it_was_tested() -> None:
    pair = of(cell("A", (0.90, 0.81, 0.95)), cell("B", (0.85, 0.76, 0.91)))
    text = claims_table(verdicts(pair, A_ABOVE_B, B_ABOVE_A))
    assert "| A is above B | **held** |" in text
    assert "| B is above A | **not held** |" in text
    assert "corrected for the 2 tests of this page (Holm)" in text
    assert "Within noise" not in text
    noisy = of(cell("A", (0.9, 0.8, 0.95)), cell("B", (0.85, 0.86, 0.84)))
    text = claims_table(verdicts(noisy, A_ABOVE_B))
    assert "| A is above B | within noise |" in text
    assert "*Within noise*: they favour it" in text
    assert "corrected" not in text, "a single test needs no correction"
    earlier = claims_table([{"text": "of an earlier version", "held": True, "words": "+1.0 points"}])
    assert earlier.endswith("| of an earlier version | **held** | +1.0 points |")
    assert not claims_table([])


@pytest.mark.parametrize("name", ["pfedvem-table1", "pfedvem-cifar100", "virtual-table2", "mocha-table", "dfl-table"])
def test_all_methods_of_a_table_have_equally_many_candidates(name: str, listed: Listed) -> None:
    for size in experiment(name).sizes:
        assert len({len(each.variants) for each in listed(name, size)}) == 1


@pytest.mark.parametrize("name", ["pfedvem-table1", "pfedvem-cifar100", "virtual-table2"])
def test_a_step_of_the_server_is_tried_for_each_method_that_has_one(name: str, listed: Listed) -> None:
    steps = {"server_lr", "server_rate", "gamma"}
    for each in listed(name, "full"):
        algorithms = [request.methods[0] for request in each.variants.values()]
        settings = {name for one in algorithms for name in signature(ALGORITHMS[one.name]).parameters}
        if settings & steps:
            assert any(steps & one.settings.keys() for one in algorithms), each.label


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_claim_says_better_or_p_by_itself(name: str) -> None:
    """The test is the page's, so a claim's words neither promise another test nor deny a difference of any size."""
    for claim in experiment(name).claims:
        assert "p <" not in claim.text
        assert "not below" not in claim.text
        assert "not above" not in claim.text
