"""The tables of results fit the terminal: a long name of a method folds, and no number is cut."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from fedpeer.cli.results import Prose, metric_table, result_table

LONG = "mocha,omega=mean-regularised,lam=0.01,ridge=0.01"


def _result(mean: float) -> dict[str, Any]:
    metrics = {name: {"mean": mean, "per_peer": [mean]} for name in ("auc", "balanced-accuracy", "average-precision")}
    return {
        "accuracy_mean": mean,
        "accuracy_sem": 0.0123,
        "accuracy_worst": mean - 0.2,
        "accuracy_spread": 0.05,
        "bytes_sent": 123_456_789,
        "messages_sent": 1_234_567,
        "seconds_per_round": 1.234,
        "metrics": metrics,
    }


@pytest.mark.parametrize("width", [80, 140])
def test_no_number_of_a_result_is_cut(width: int) -> None:
    summary = {"methods": {"partial-averaging": _result(0.912), LONG: _result(0.734)}, "peers": 16, "seeds": [1, 2, 3]}
    console = Console(file=io.StringIO(), width=width)
    for table in (result_table(summary), metric_table(summary)):
        assert table is not None
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text
    for whole in ("91.2 %", "71.2 %", "73.4 %", "53.4 %", "123 MB", "1.23 M", "1.23 s", "0.912", "0.734"):
        assert text.count(whole) >= 1
    if width == 140:
        assert LONG.removeprefix("mocha") in text


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    for width in range(20, 60):
        console = Console(file=io.StringIO(), width=width)
        console.print(Prose("local only 82.2 %, partial averaging 80.7 %, 11.1 points above [0, 1]"))
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert all(whole in text for whole in ("82.2 %", "80.7 %", "11.1 points"))
        assert max(map(len, text.splitlines())) <= width
