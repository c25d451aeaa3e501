"""Runs that several experiments have in common are run once, by the experiment that comes first."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from fedpeer.experiments import executors as playing
from fedpeer.experiments.events import Begun
from fedpeer.experiments.experiment import Experiment
from fedpeer.experiments.registry import EXPERIMENTS, experiment
from fedpeer.experiments.runner import ExperimentOptions, folder_of, request_digest, run_experiment
from fedpeer.experiments.table import table_page
from fedpeer.runs.disk import read_json, write_json
from tests.experiments.conftest import Listed
from tests.experiments.test_figures import SMALL, Band

FIRST = SMALL.experiment()
#: Another experiment that asks for the same runs and shares those of the first.
SECOND = replace(FIRST, name="second", shares=(FIRST.name,))


@pytest.fixture
def band(monkeypatch: pytest.MonkeyPatch) -> Band:
    made = Band()
    for name in ("prepare_simulation", "begin_record", "run_prepared"):
        monkeypatch.setattr(playing, name, getattr(made, name))
    return made


def wanted(each: Experiment, root: Path, *only: str) -> ExperimentOptions:
    return ExperimentOptions(experiment=each, size_name="default", root=root, workers=1, only=only, command="a command")


def test_what_another_has_finished_is_taken_and_the_rest_played(band: Band, tmp_path: Path) -> None:
    labels = [cell.label for cell in FIRST.cells(FIRST.sizes["default"])]
    assert run_experiment(wanted(FIRST, tmp_path, labels[0]))
    for path in tmp_path.rglob("run.json"):
        write_json(path, {**read_json(path), "seconds": 60.0})
    taken, told = len(band.played), list[Any]()
    assert run_experiment(wanted(SECOND, tmp_path), told.append)
    begun = next(each for each in told if isinstance(each, Begun))
    assert begun.finished == taken > 0
    assert len(band.played) == begun.runs
    data = read_json(folder_of(tmp_path, SECOND.name, "default") / "results.json")
    assert [each["label"] for each in data["measured"]] == labels, "a whole page"
    assert data["shared"] == [FIRST.name]
    assert data["measured"][0]["seconds"] == 0.0, "its time is the other's"
    assert f"of runs, besides those of {FIRST.name} that count here too, with 1 worker" in table_page(data)


def test_nothing_is_taken_of_who_is_not_named_or_has_not_finished(band: Band, tmp_path: Path) -> None:
    assert run_experiment(wanted(FIRST, tmp_path))
    played = len(band.played)
    stranger = replace(SECOND, name="stranger", shares=())
    assert run_experiment(wanted(stranger, tmp_path))
    assert len(band.played) == 2 * played
    assert " of runs with 1 worker" in table_page(
        read_json(folder_of(tmp_path, "stranger", "default") / "results.json")
    )
    for path in folder_of(tmp_path, FIRST.name, "default").rglob("run.json"):
        write_json(path, {**read_json(path), "status": "interrupted"})
    assert run_experiment(wanted(SECOND, tmp_path))
    assert len(band.played) == 3 * played


def test_what_is_common_is_named_and_nothing_else_is(listed: Listed) -> None:
    """Two experiments that ask for the same run name each other, without the summary, which reads runs of others."""
    options, experiments = {}, {name: experiment(name) for name in EXPERIMENTS}
    for each in experiments.values():
        requests = [one for cell in listed(each.name, "default") for one in cell.variants.values()]
        options[each.name] = {request_digest(replace(request, seeds=(0,))) for request in requests}
        assert not set(each.reads) & set(each.shares), each.name
    for one, other in combinations([name for name, each in experiments.items() if not each.reads], 2):
        common = not options[one].isdisjoint(options[other])
        assert (other in experiments[one].shares) == (one in experiments[other].shares) == common, f"{one} and {other}"
