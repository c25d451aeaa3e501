"""Results compared with closed formulas, and the sentence that states how much a method was worth."""

from __future__ import annotations

import math
import random
from statistics import mean, pstdev, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.runs.summary import count_text, headline, score_text, summarise
from tests.runs.run_factory import row

SCORES = [[0.9, 0.8, 0.7], [0.5, 0.9, 0.7]]  # seeds by peers


def rows(measure: str = "accuracy") -> list[dict[str, Any]]:
    """Return the rows of two seeds and three peers; round 1 is worse, and round 3 was not evaluated."""
    return [
        {
            "method": "partial-averaging",
            "seed": seed,
            "round": number,
            "seconds": float(number),
            measure: {1: [0.1] * 3, 2: SCORES[seed], 3: None}[number],
            "bytes_sent": [10, 20, 30 + seed],
            "messages_sent": [1, 1, 1],
        }
        for seed in (0, 1)
        for number in (1, 2, 3)
    ]


def test_the_results_follow_their_definitions() -> None:
    result = summarise(rows())["partial-averaging"]
    per_peer = [mean(pair) for pair in zip(*SCORES, strict=True)]
    means = [mean(scores) for scores in SCORES]
    assert result["accuracy_per_peer"] == pytest.approx(per_peer)
    assert result["accuracy_mean"] == pytest.approx(mean(per_peer))
    assert result["accuracy_worst"] == pytest.approx(min(per_peer))
    assert result["accuracy_spread"] == pytest.approx(pstdev(per_peer))
    assert result["accuracy_sem"] == pytest.approx(stdev(means) / math.sqrt(2))
    assert result["bytes_sent"] == round(3 * (60 + 61) / 2)
    assert result["messages_sent"] == 9
    assert result["seconds_per_round"] == pytest.approx(2.0)
    assert (result["rounds"], result["seeds"]) == (2, [0, 1])


def test_the_worst_of_errors_is_the_greatest() -> None:
    result = summarise(rows("error"))["partial-averaging"]
    assert result["error_worst"] == pytest.approx(0.85)
    assert not any(key.startswith("accuracy") for key in result)


def test_one_seed_has_no_standard_error() -> None:
    assert summarise(rows()[:3])["partial-averaging"]["accuracy_sem"] is None


def test_nothing_evaluated_gives_null_and_no_peer() -> None:
    result = summarise([row("local", 1, evaluated=False)])["local"]
    assert result["accuracy_mean"] is None
    assert result["accuracy_per_peer"] == []
    assert result["rounds"] is None
    assert summarise([]) == {}


def test_a_seed_cut_short_does_not_pull_the_mean_down() -> None:
    whole = [row("local", number, seed=0) for number in (1, 2, 3)]
    result = summarise([*whole, row("local", 1, seed=1)])["local"]
    assert result["seeds"] == [0]
    assert result == summarise(whole)["local"]


def test_a_round_recorded_twice_counts_once() -> None:
    twice = [row("local", 1), {**row("local", 2), "accuracy": [0.0] * 4}, row("local", 2)]
    assert summarise(twice) == summarise([row("local", 1), row("local", 2)])


def test_a_peer_without_a_finite_error_makes_the_mean_unknown_not_the_others() -> None:
    diverged = {**row("local", 1, measure="error"), "error": [1.0, None, 3.0, 4.0]}
    result = summarise([diverged])["local"]
    assert result["error_mean"] is None
    assert result["error_per_peer"] == [1.0, None, 3.0, 4.0]


@given(seed=st.integers())
def test_the_order_of_rows_does_not_matter(seed: int) -> None:
    shuffled = rows()
    random.Random(seed).shuffle(shuffled)
    assert summarise(shuffled) == summarise(rows())


def results(measure: str = "accuracy", rounds: int = 30, **means: float) -> dict[str, dict[str, Any]]:
    return {
        method.replace("_", "-"): {f"{measure}_mean": value, f"{measure}_per_peer": [value] * 16, "rounds": rounds}
        for method, value in means.items()
    }


def test_the_headline_says_what_partial_averaging_was_worth() -> None:
    methods = results(local=0.885, partial_averaging=0.924, full_averaging=0.897)
    said = "Partial averaging: 92.4 %, 3.9 points above local only and 2.7 points above full averaging"
    assert headline(methods) == said


def test_the_headline_is_honest_when_it_was_worth_nothing() -> None:
    methods = results(local=0.9, partial_averaging=0.88, full_averaging=0.88)
    said = "Partial averaging: 88.0 %, 2.0 points below local only and level with full averaging"
    assert headline(methods) == said


def test_the_headline_speaks_of_the_best_method_where_there_is_no_partial_averaging() -> None:
    assert headline(results(local=0.5, fedprox=0.7, mocha=0.6)).startswith("FedProx: 70.0 %, 20.0 points above local")
    assert headline(results("error", local=2.0, fedprox=1.5)) == "FedProx: error 1.5, 25.0 % less than local only"
    assert headline(results(local=0.5)) == "Local only: 50.0 % on average over 16 peers"


def test_the_headline_compares_nothing_that_came_less_far() -> None:
    methods = results(local=0.885) | results(rounds=3, partial_averaging=0.4)
    assert headline(methods) == "Partial averaging: 40.0 % on average over 16 peers, after round 3"
    assert headline({}) == "Nothing was evaluated"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (999.7, "1 kB"), (4_230_000, "4.23 MB"), (56e9, "56 GB"), (2.5e15, "2,500 TB")],
)
def test_bytes_have_three_digits(number: float, text: str) -> None:
    assert count_text(number, "B") == text


def test_scores_as_people_read_them() -> None:
    assert score_text(0.92412, "accuracy") == "92.4 %"
    assert score_text(0.92412, "accuracy", 0.0031) == "92.4 ± 0.3 %"
    assert score_text(4.2149, "error", 0.123) == "4.21 ± 0.12"
    assert score_text(12345.0, "error") == "12,345"
    assert score_text(None, "error") == "–"
