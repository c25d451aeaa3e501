"""S, MT, GM and PM from rows, compared with numbers computed by hand; validation data choose the best round."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedpeer.runs.disk import dumps
from fedpeer.runs.scores import best_models, read_scores
from fedpeer.runs.summary import best_text, headline, server_score, spoken, summarise


def row(round: int, own: list[float], server: list[float] | None = None, seed: int = 0, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"method": "fedavg", "seed": seed, "round": round, "accuracy": own, "tested": [10, 30]}
    return found | ({} if server is None else {"server_accuracy": server}) | more


def test_pooled_and_plain_means_of_both_models() -> None:
    found = read_scores([row(1, [0.5, 0.9], [0.2, 0.4])], "accuracy")
    assert {name: each["final"] for name, each in found.items()} == pytest.approx(
        {"PM": 0.7, "MT": 0.8, "GM": 0.3, "S": 0.35}
    )
    assert all(each["final_sem"] is None for each in found.values())


def test_without_a_servers_model_there_are_two() -> None:
    assert set(read_scores([row(1, [0.5, 0.9])], "accuracy")) == {"PM", "MT"}


def test_the_best_round_is_validations_where_there_is_one() -> None:
    """Round 2 is best on the test data, and round 1 on the validation data; the test score of round 1 is reported."""
    kept_back = ([0.9, 0.9], [0.1, 0.1], [0.5, 0.5])
    tested = ([0.4, 0.4], [0.8, 0.8], [0.6, 0.6])
    plain = [row(number, own) for number, own in enumerate(tested, 1)]
    with_validation = [each | {"validation_accuracy": valid} for each, valid in zip(plain, kept_back, strict=True)]
    chosen, flattered = (read_scores(rows, "accuracy")["PM"] for rows in (with_validation, plain))
    assert (chosen["best"], chosen["best_by"], chosen["final"]) == (
        pytest.approx(0.4),
        "validation",
        pytest.approx(0.6),
    )
    assert (flattered["best"], flattered["best_by"]) == (pytest.approx(0.8), "test")


def test_each_peer_has_the_score_of_its_own_best_round() -> None:
    """A peer that holds out nothing has its last one; a diverged round is never the best."""
    judged = [([0.7, None], [0.5, None]), ([0.9, None], [0.4, None]), ([0.9, None], [0.3, None]), ([None, None],) * 2]
    tested = ([0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8])
    rows = [
        row(number, own, validation_accuracy=valid, validation_loss=loss)
        for number, (own, (valid, loss)) in enumerate(zip(tested, judged, strict=True), 1)
    ]
    found = best_models(rows, "accuracy")
    assert (found["per_peer"], found["peers"]) == ([0.5, 0.8], 1)
    other = [each | {"seed": 1, "accuracy": [0.0, 0.0]} for each in rows]
    assert best_models([*rows, *other], "accuracy")["per_peer"] == [0.25, 0.4], "mean over seeds"
    errors = [
        {"method": "local", "seed": 0, "round": n, "error": [e], "validation_error": [v], "validation_loss": [v]}
        for n, (e, v) in enumerate([(3.0, 2.0), (4.0, 1.0), (5.0, 1.5)], 1)
    ]
    assert best_models(errors, "error")["per_peer"] == [4.0]
    assert best_models([row(1, [0.5, 0.5])], "accuracy") == {}
    said = best_text({"fedavg": {"accuracy_mean": 0.7, "best_models": found}})
    assert said is not None
    assert "(1 of 2 peers hold out any): FedAvg 65.0 %." in said


def test_peers_that_hold_out_no_example_have_no_say_in_the_best_round() -> None:
    """Their validation scores are null in every round; a peer that diverged lacks one in that round only."""
    tested = ([0.4, 0.4], [0.8, 0.8], [0.6, 0.6])
    rows = [row(number, own) for number, own in enumerate(tested, 1)]

    def chosen(*kept_back: list[float | None]) -> dict[str, Any]:
        judged = [each | {"validation_accuracy": valid} for each, valid in zip(rows, kept_back, strict=True)]
        return read_scores(judged, "accuracy")["PM"]

    found = chosen([0.9, None], [0.1, None], [0.5, None])
    assert (found["best"], found["best_by"]) == (pytest.approx(0.4), "validation")
    found = chosen([0.9, None], [0.1, 0.1], [0.5, 0.5])
    assert (found["best"], found["best_by"]) == (pytest.approx(0.6), "validation")
    found = chosen([None, None], [None, None], [None, None])
    assert (found["best"], found["best_by"]) == (pytest.approx(0.8), "test")


def test_seeds_that_were_cut_short_do_not_count() -> None:
    rows = [row(1, [0.5, 0.5]), row(2, [0.6, 0.6]), row(1, [0.1, 0.1], seed=1), row(2, [0.8, 0.8], seed=1)]
    found = read_scores([*rows, row(1, [0.0, 0.0], seed=2)], "accuracy")["PM"]
    assert found["final"] == pytest.approx(0.7)
    assert found["final_sem"] == pytest.approx(0.1)
    assert found["per_seed"] == pytest.approx([0.6, 0.8])


def test_beside_the_last_round_is_the_mean_over_the_last_ten_if_all_were_evaluated() -> None:
    def rows(seed: int, rounds: range) -> list[dict[str, Any]]:
        return [row(number, [0.5, 0.7], [0.01 * number, 0.02 * number], seed) for number in rounds]

    found = read_scores([*rows(0, range(1, 13)), *rows(1, range(3, 13))], "accuracy")
    mean = 0.01 * sum(range(3, 13)) / 10
    assert found["GM"]["late"] == pytest.approx(1.5 * mean)
    assert found["S"]["late_per_seed"] == pytest.approx([1.75 * mean] * 2)
    assert found["S"]["late_sem"] == pytest.approx(0.0)
    assert found["GM"]["final"] == pytest.approx(0.18)
    for fewer in (rows(0, range(1, 10)), rows(0, range(2, 25, 2)), [*rows(0, range(1, 12)), *rows(0, range(13, 14))]):
        assert "late" not in read_scores(fewer, "accuracy")["GM"]


def test_errors_are_best_where_they_are_least() -> None:
    rows = [
        {"method": "fedavg", "seed": 0, "round": n, "accuracy": None, "error": [e], "tested": [4]}
        for n, e in ((1, 3.0), (2, 1.0), (3, 2.0))
    ]
    found = read_scores(rows, "error")["PM"]
    assert (found["final"], found["best"]) == (2.0, 1.0)


def test_scores_that_are_no_number_are_null_before_they_are_written_too() -> None:
    """The command line prints what is in memory, and the report what was written."""
    lost = {"method": "fedavg", "seed": 0, "round": 1, "error": [None, 2.0], "tested": [1, 3]}
    lost |= {"server_error": [None, None], "validation_error": [1.0, 2.0], "validation_loss": [1.0, 2.0]}
    found = summarise([lost])
    assert found == json.loads(dumps(found))
    assert server_score(found["fedavg"]) is None
    assert headline(found) == "No score is a number, so the training diverged"
    assert found["fedavg"]["best_models"]["per_peer"] == [None, 2.0]


def test_a_sentence_goes_by_the_better_of_both_models() -> None:
    alone = {"method": "local", "seed": 0, "round": 1, "accuracy": [0.7, 0.7], "tested": [10, 30]}
    found = summarise([alone, row(1, [0.5, 0.6], [0.9, 0.9])])
    assert server_score(found["fedavg"]) == pytest.approx(0.9)
    assert server_score(found["local"]) is None
    assert headline(found) == "FedAvg: 90.0 %, 20.0 points above local only"


def test_a_readers_own_algorithm_goes_by_its_class() -> None:
    assert spoken("python:mypkg.learn:Mine,part=0.5") == "Mine,part=0.5"
    assert spoken("fedprox,mu=0.1") == "FedProx,mu=0.1"


def test_a_sentence_begins_with_a_capital_but_names_are_names() -> None:
    rows = [{"method": method, "seed": 0, "round": 1, "accuracy": [0.5], "tested": [1]} for method in ("local", "x")]
    pfedvem = [rows[0], rows[1] | {"method": "pfedvem"}]
    assert headline(summarise(pfedvem)).startswith("pFedVEM: 50.0 %")
    assert headline(summarise([rows[0], rows[1] | {"method": "ifca"}])).startswith("IFCA: ")
    assert headline(summarise([rows[0], rows[1] | {"method": "full-averaging"}])).startswith("Full averaging: ")
