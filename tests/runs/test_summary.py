"""Results compared with closed formulas, and the sentence that states how much a method was worth."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from statistics import mean, pstdev, stdev
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from fedpeer.algorithms.registry import ALGORITHMS
from fedpeer.runs.summary import count_text, headline, metric_text, score_text, spoken, summarise
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


def test_further_metrics_are_means_over_seeds_and_over_the_peers_for_which_they_are_defined() -> None:
    every = rows()
    for each in every:
        if each["round"] == 3:
            each["metrics"] = {"auc": [0.5 + 0.1 * each["seed"], None, 0.9 if each["seed"] else None]}
    found = summarise(every)["partial-averaging"]["metrics"]["auc"]
    assert found["per_peer"] == [pytest.approx(0.55), None, pytest.approx(0.9)]
    assert found["mean"] == pytest.approx((0.55 + 0.9) / 2)
    assert metric_text(found) == "0.725 (2 of 3)"
    assert metric_text({"mean": None, "per_peer": [None]}) == "–"
    assert "metrics" not in summarise(rows())["partial-averaging"]


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
    assert headline(methods, brief=True) == said


def test_the_headline_is_honest_when_it_was_worth_nothing() -> None:
    methods = results(local=0.9, partial_averaging=0.88, full_averaging=0.88)
    said = "Partial averaging: 88.0 %, 2.0 points below local only and level with full averaging"
    assert headline(methods, brief=True) == said


def paired(
    scores: Mapping[str, list[float]], seeds: Mapping[str, list[float]] | None = None, measure: str = "accuracy"
) -> dict[str, dict[str, Any]]:
    """Return results with a score for each peer, and perhaps for each seed."""
    return {
        method: {
            f"{measure}_mean": float(np.mean(each)),
            f"{measure}_per_peer": each,
            "rounds": 3,
            "seeds": list(range(len(seeds[method]) if seeds else 1)),
            "scores": {"PM": {"per_seed": seeds[method]}} if seeds else {},
        }
        for method, each in scores.items()
    }


@given(st.lists(st.tuples(st.floats(0.5, 1), st.floats(0.5, 1)), min_size=3, max_size=20), st.booleans())
def test_the_interval_is_that_of_a_paired_t_test(pairs: list[tuple[float, float]], by_seed: bool) -> None:
    """It excludes zero just where SciPy's test rejects at 5 %."""
    mine, other = ([pair[k] for pair in pairs] for k in (0, 1))
    scores = {"partial-averaging": mine, "local": other}
    difference = np.subtract(mine, other)
    assume(difference.std() > 1e-6)
    found = headline(paired(scores, scores if by_seed else None))
    test = stats.ttest_rel(mine, other)
    low, high = test.confidence_interval(0.95)
    assert ("within noise of local only" in found) == (low < 0 < high)
    if abs(difference.mean()) >= 0.0005:
        (shown,) = re.findall(r"\((\S+) to (\S+)\)", found)
        assert [float(each) for each in shown] == pytest.approx([100 * low, 100 * high], abs=0.0501)
    assert f"paired over {len(pairs)} {'seeds' if by_seed else 'peers'}" in found


def test_a_difference_that_is_noise_is_called_so() -> None:
    apart = {"partial-averaging": [0.90, 0.92, 0.95], "local": [0.80, 0.83, 0.84], "full-averaging": [0.93, 0.91, 0.9]}
    assert headline(paired(apart)) == (
        "Partial averaging: 92.3 %, 10.0 points above local only (7.5 to 12.5) and within noise of full averaging "
        "(-8.9 to 10.9); in brackets 95 % intervals, paired over 3 peers"
    )
    assert headline(paired({name: each[:2] for name, each in apart.items()})) == (
        "Partial averaging: 91.0 %, 9.5 points above local only and 1.0 points below full averaging"
    ), "two pairs have no interval"
    errors = {"partial-averaging": [1.0, 1.1, 0.9], "local": [2.0, 2.2, 1.8]}
    assert headline(paired(errors, measure="error")).startswith(
        "Partial averaging: error 1, 50.0 % less than local only (-62.4 to -37.6 %)"
    )
    noise = {"partial-averaging": [700.0, 300.0, 500.0], "local": [500.0, 500.0, 500.0]}
    assert "within noise of local only (-99.4 to 99.4 %)" in headline(paired(noise, measure="error")), "of the error"


def test_seeds_are_paired_where_there_are_enough_of_them() -> None:
    peers = {"partial-averaging": [0.9, 0.8, 0.7], "local": [0.7, 0.8, 0.9]}
    alike = {"partial-averaging": [0.81, 0.82, 0.80], "local": [0.80, 0.81, 0.79]}
    assert "paired over 3 seeds" in headline(paired(peers, alike))
    two = {name: each[:2] for name, each in alike.items()}
    assert "paired over 3 peers" in headline(paired(peers, two))


def test_the_headline_speaks_of_the_best_method_where_there_is_no_partial_averaging() -> None:
    assert headline(results(local=0.5, fedprox=0.7, mocha=0.6)).startswith("FedProx: 70.0 %, 20.0 points above local")
    assert (
        headline(results("error", local=2.0, fedprox=1.5), brief=True)
        == "FedProx: error 1.5, 25.0 % less than local only"
    )
    assert headline(results(local=0.5)) == "Local only: 50.0 % on average over 16 peers"


def test_the_headline_compares_nothing_that_came_less_far() -> None:
    methods = results(local=0.885) | results(rounds=3, partial_averaging=0.4)
    assert headline(methods) == "Partial averaging: 40.0 % on average over 16 peers, after round 3"
    assert headline({}) == "Nothing was evaluated"
    assert headline({"local": {"error_mean": None, "rounds": 3}}) == "No score is a number, so the training diverged"


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


def test_algorithms_are_written_as_in_their_papers() -> None:
    """An algorithm that no paper names is written in words."""
    words = {name for name in ALGORITHMS if spoken(name) == name.replace("-", " ")}
    assert words == {"partial-averaging", "full-averaging", "gradient-tracking"}
    assert spoken("choco-sgd,share=0.1") == "CHOCO-SGD,share=0.1"
