"""`metrics.jsonl` of a real peer: which rows are written when, and what is in them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpeer.peer.runtime.rows import WAITING_MAX, Rows
from fedpeer.peer.state.events import Evaluated, Note


def done(round: int) -> Note:
    return Note("info", "round", "", {"round": round, "disagreement": {"everyone": 0.1}, "weights": {"everyone": 1.0}})


def always(round: int) -> bool:
    return True


def even(round: int) -> bool:
    return round % 2 == 0


def begun(path: Path, round: int, due: Callable[[int], bool] = always) -> Rows:
    return Rows(path, "accuracy", round, due)


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_row_is_written_once_its_round_or_a_later_one_has_scores(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = begun(path, 1)
    rows.sent(70, counts=True)
    rows.sent(30, counts=False)
    rows.round(done(1))
    rows.round(done(2))
    assert written(path) == []
    rows.evaluated(Evaluated(2, 0.75, 0.5, (0.7, 0.6)))
    one, two = written(path)
    assert (one["round"], one["accuracy"], one["loss"], one["messages_sent"], one["bytes_sent"]) == (
        1,
        None,
        None,
        1,
        70,
    )
    assert (two["accuracy"], two["loss"], two["server_accuracy"], two["server_loss"]) == (0.75, 0.5, 0.7, 0.6)
    assert (two["messages_sent"], two["weight"]) == (0, {"everyone": 1.0})
    rows.round(done(3))
    assert len(written(path)) == 2, "it waits for its scores"
    rows.close()
    assert [row["round"] for row in written(path)] == [1, 2, 3]


def test_a_round_without_an_evaluation_waits_for_none(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = begun(path, 1, even)
    rows.round(done(1))
    assert [row["round"] for row in written(path)] == [1], "a process that is killed now has lost nothing"
    rows.round(done(2))
    rows.round(done(3))
    assert [row["round"] for row in written(path)] == [1], "rows stand in the order of rounds"
    rows.evaluated(Evaluated(2, 0.75, 0.5))
    assert [(row["round"], row["accuracy"]) for row in written(path)] == [(1, None), (2, 0.75), (3, None)]


def test_after_a_restart_no_row_waits_for_the_scores_of_the_last_one_before_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = begun(path, 2, even)
    rows.round(done(2))
    rows.close()
    rows = begun(path, 3, even)
    rows.round(done(3))
    assert [(row["round"], row["accuracy"]) for row in written(path)] == [(2, None), (3, None)]
    rows.evaluated(Evaluated(2, 0.75, 0.5))
    assert [(row["round"], row["accuracy"]) for row in written(path)] == [(2, None), (3, None), (2, 0.75)]


def test_further_metrics_stand_in_their_round_and_null_is_what_is_not_defined(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "metrics.jsonl", "error", 1, always)
    rows.evaluated(Evaluated(1, 0.2, 0.1, metrics={"mae": 0.125, "python:own:r": math.nan}))
    rows.round(done(1))
    (row,) = written(tmp_path / "metrics.jsonl")
    assert (row["error"], row["metrics"]) == (0.2, {"mae": 0.125, "python:own:r": None})


def test_scores_on_examples_held_out_stand_beside_the_others(tmp_path: Path) -> None:
    rows = begun(tmp_path / "metrics.jsonl", 1)
    rows.evaluated(Evaluated(1, 0.75, 0.5, validation=(0.5, 0.875)))
    rows.round(done(1))
    (row,) = written(tmp_path / "metrics.jsonl")
    assert (row["accuracy"], row["validation_accuracy"], row["validation_loss"]) == (0.75, 0.5, 0.875)


@pytest.mark.parametrize("rounds", [WAITING_MAX, WAITING_MAX + 3])
def test_no_more_than_so_many_rows_wait(tmp_path: Path, rounds: int) -> None:
    rows = begun(tmp_path / "metrics.jsonl", 1)
    for number in range(1, rounds + 1):
        rows.round(done(number))
    assert [row["round"] for row in written(tmp_path / "metrics.jsonl")] == list(range(1, rounds - WAITING_MAX + 1))


@pytest.mark.parametrize("again", [True, False], ids=["learning", "finished"])
def test_a_round_that_was_paused_before_its_evaluation_gets_its_scores_after_it(tmp_path: Path, again: bool) -> None:
    """A peer that goes on reports the round as done once more, and makes up for its evaluation."""
    path = tmp_path / "metrics.jsonl"
    rows = begun(path, 1)
    rows.sent(70, counts=True)
    rows.round(done(1))
    rows.close()
    (paused,) = written(path)
    rows = begun(path, 2)
    if again:
        rows.round(done(1))
    rows.evaluated(Evaluated(1, 0.75, 0.5))
    rows.close()
    assert written(path) == [paused, paused | {"accuracy": 0.75, "loss": 0.5}]
    assert paused["bytes_sent"] == 70


def test_a_restart_replaces_no_row_by_one_without_traffic(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = begun(path, 1)
    rows.sent(70, counts=True)
    rows.round(done(1))
    rows.evaluated(Evaluated(1, 0.75, 0.5))
    rows.close()
    rows = begun(path, 2)
    rows.round(done(1))
    rows.sent(30, counts=True)
    rows.evaluated(Evaluated(1, 0.75, 0.5))
    rows.round(done(2))
    rows.close()
    assert [(row["round"], row["bytes_sent"], row["accuracy"]) for row in written(path)] == [
        (1, 70, 0.75),
        (2, 30, None),
    ]


def test_a_row_that_was_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 1, "sec')
    rows = begun(path, 2)
    rows.round(done(2))
    rows.close()
    *_, last = path.read_text().splitlines()
    assert json.loads(last)["round"] == 2
