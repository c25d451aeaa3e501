"""Runs side by side."""

from __future__ import annotations

from pathlib import Path

from fedpeer.runs.compare import compare
from fedpeer.runs.summary import summarise
from tests.runs.run_factory import made


def test_only_settings_that_differ_are_shown_and_all_results(tmp_path: Path) -> None:
    first = made(tmp_path, rounds=2)
    second = made(tmp_path, rounds=3, methods=("local",), gossip={"tolerance": 0.1})
    both = compare([first, second])
    assert both.runs == (first.id, second.id)
    assert both.settings == {
        "learning.rounds": ("2", "3"),
        "methods": ('["local", "partial-averaging", "full-averaging"]', '["local"]'),
        "gossip.tolerance": (None, "0.1"),
    }
    expected = tuple(summarise(run.rows())["local"]["accuracy_mean"] for run in (first, second))
    assert both.results["local", "accuracy_mean"] == expected
    assert both.results.get(("partial-averaging", "bytes_sent")) == (800, None)
    assert ("local", "error_mean") not in both.results
    assert ("local", "accuracy_sem") not in both.results


def test_a_run_that_still_goes_on_is_compared_by_what_it_has(tmp_path: Path) -> None:
    finished, going = made(tmp_path), made(tmp_path, finished=False)
    results = compare([finished, going]).results
    assert results["local", "accuracy_mean"][0] == results["local", "accuracy_mean"][1]
