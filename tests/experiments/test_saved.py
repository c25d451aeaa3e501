"""Pages read again: judged by today's claims, and marked where today's search is another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpeer.experiments import saved as module
from fedpeer.experiments.claims import above
from fedpeer.experiments.experiment import Cell, Experiment, RunSize
from fedpeer.experiments.results import Measured
from fedpeer.experiments.saved import saved
from fedpeer.experiments.short_requests import experiment_options
from fedpeer.experiments.table import page_data, table_page
from fedpeer.runs.disk import write_json

SIZE = RunSize(rounds=1, seeds=3, minutes=1, searches=True)
WHERE = {
    "command": "fedpeer experiment run tiny",
    "environment": {"packages": {}, "device": "cpu", "git": None, "processors": 2, "python": "CPython"},
    "workers": 1,
}


def cell(label: str, rates: tuple[str, ...], folds: int = 1) -> Cell:
    made = experiment_options("local", SIZE, learning={}, simulation={"dataset": "digits"})
    return Cell(label=label, variants=dict.fromkeys(rates, made), folds=folds)


def tiny(notes: str, *cells: Cell) -> Experiment:
    return Experiment(
        name="tiny",
        title="A tiny table",
        source="Nobody 2026, table 0",
        paper="Nobody",
        data=("digits",),
        columns=("PM",),
        sizes={"quick": SIZE, "default": SIZE, "full": SIZE},
        cells=lambda size: cells,
        claims=(above("B is above A", "B", ["A"], "PM"),),
        notes=notes,
    )


def measured(label: str, scores: tuple[float, ...], tried: tuple[str, ...]) -> Measured:
    return Measured(
        label=label, variant=tried[0], seeds=(0, 1, 2), rounds=1, peers=2, per_seed={"PM": scores}, sent=0, seconds=0,
        tried=dict.fromkeys(tried, 0.5),
    )  # fmt: skip


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Provide a function that reads the page of an earlier table as a page of today's."""
    before = tiny("As it was.", cell("A", ("lr=1",)), cell("B", ("lr=1",)))
    results = {"A": measured("A", (0.5, 0.51, 0.52), ("lr=1",)), "B": measured("B", (0.6, 0.61, 0.63), ("lr=1",))}
    write_json(tmp_path / "tiny-default.json", page_data(before, SIZE, "default", before.cells(SIZE), results, WHERE))

    def read(today: Experiment) -> dict[str, Any]:
        monkeypatch.setattr(module, "experiment", lambda name: today)
        (found,) = saved(tmp_path, ["tiny"], ["default"])
        write_json(tmp_path / "tiny-default.json", found)
        return found

    return read


def test_the_same_search_takes_todays_claims_and_notes(page: Any) -> None:
    today = tiny("As it is.", cell("A", ("lr=1",)), cell("B", ("lr=1",)))
    found = page(replace(today, claims=(above("B is far above A", "B", ["A"], "PM", by=5.0),)))
    assert [claim["text"] for claim in found["claims"]] == ["B is far above A"]
    assert found["claims"][0]["held"] is True
    assert found["notes"] == "As it is."
    assert "Searched over other settings" not in table_page(found)


def test_notes_about_other_lines_or_columns_are_not_taken(page: Any) -> None:
    today = tiny("As it is.", cell("A", ("lr=1",)), cell("B", ("lr=1",)))
    for other in (replace(today, columns=("PM", "GM")), replace(today, cells=lambda size: today.cells(size)[:1])):
        assert page(other)["notes"] == "As it was."


def test_another_search_is_said_and_not_judged_until_it_is_run(page: Any) -> None:
    found = page(tiny("As it is.", cell("A", ("lr=1", "lr=2")), cell("B", ("lr=1",))))
    assert found["outdated"] == ["A"]
    assert found["claims"][0]["held"] is None
    assert found["notes"] == "As it was.", "what is said of today's search is not true of these numbers"
    text = table_page(found)
    assert "Searched over other settings than are tried today, to be run again: A." in text
    again = page(tiny("As it is.", cell("A", ("lr=1",)), cell("B", ("lr=1",))))
    assert "outdated" not in again
    assert again["claims"][0]["held"] is True


def test_an_earlier_search_by_one_part_is_said_and_judged(page: Any) -> None:
    found = page(tiny("As it is.", cell("A", ("lr=1",), folds=5), cell("B", ("lr=1",), folds=5)))
    assert found["claims"][0]["held"] is True
    assert "where today each of several is held out in turn: A; B." in table_page(found)
