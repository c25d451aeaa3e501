"""Figure 7: it is drawn from runs of other figures of any size; missing runs are made by the summary, or named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpeer.experiments import executors as playing
from fedpeer.experiments.events import Begun
from fedpeer.experiments.experiment import Axes, Experiment, Place, RunSize, SizeName
from fedpeer.experiments.figure_lines import lines_of
from fedpeer.experiments.pictures import figure_picture
from fedpeer.experiments.registry import experiment
from fedpeer.experiments.results import Measured
from fedpeer.experiments.runner import ExperimentOptions, folder_of, found, refresh, request_digest, run_experiment
from fedpeer.experiments.summary_figure import FIG7, GLOBAL, LOCAL, PARTIAL, TASKS, SummaryTask
from fedpeer.experiments.table import table_page
from fedpeer.runs.disk import read_json, write_json
from tests.experiments.conftest import Listed
from tests.experiments.test_figures import SMALL, Band, accuracy

SIZES: tuple[SizeName, ...] = ("quick", "default", "full")


def lines(size: RunSize) -> Any:
    """Return both lines of the small figure at four mini-batches, as the one task of a summary."""
    return tuple(
        replace(SMALL.cell(size, name, 4), label=f"digits; {name}", place=Place(name, 0)) for name in ("0", "100")
    )


SUMMARY = Experiment(
    name="summary",
    title="A summary",
    source="Nobody 2026, figure 9",
    paper="Nobody, Nothing, 2026",
    data=("digits",),
    columns=("PM",),
    sizes={"quick": RunSize(rounds=1, seeds=2, minutes=1), "default": RunSize(rounds=1, seeds=3, minutes=1)},
    cells=lines,
    claims=(),
    figure=Axes(number="9", runs=5, lines="averaging", x="task", ticks=("digits",)),
    reads=("fig0",),
)


@pytest.fixture
def band(monkeypatch: pytest.MonkeyPatch) -> Band:
    made = Band()
    for name in ("prepare_simulation", "begin_record", "run_prepared"):
        monkeypatch.setattr(playing, name, getattr(made, name))
    return made


def wanted(each: Experiment, root: Path, size: SizeName = "default", only: tuple[str, ...] = ()) -> ExperimentOptions:
    return ExperimentOptions(experiment=each, size_name=size, root=root, workers=1, only=only, command="a command")


def measured(label: str, score: float) -> Measured:
    return Measured(
        label=label, variant="", seeds=(0,), rounds=1, peers=2, per_seed={"PM": (score,)}, sent=0, seconds=0
    )


FIGURE = SMALL.experiment()
#: Cells of the figure that the summary reads.
BOTH = ("0; mini-batches: 4", "100; mini-batches: 4")


def test_runs_of_the_figures_behind_it_are_its_own(band: Band, tmp_path: Path) -> None:
    """This holds at any size: the figure was run with five seeds, of which the summary takes three."""
    assert run_experiment(wanted(FIGURE, tmp_path, "full", BOTH))
    played, told = len(band.played), list[Any]()
    assert run_experiment(wanted(SUMMARY, tmp_path), told.append)
    assert told[0] == Begun(runs=6, finished=6)
    assert len(band.played) == played
    cells = found(wanted(SUMMARY, tmp_path))
    for name, method in (("0", "local"), ("100", "full-averaging")):
        expected = [accuracy(method, seed, 4) for seed in range(3)]
        assert cells[f"digits; {name}"].per_seed["PM"] == pytest.approx(expected)


def test_what_they_lack_is_played(band: Band, tmp_path: Path) -> None:
    assert run_experiment(wanted(FIGURE, tmp_path, "default", BOTH[:1]))
    for number, path in enumerate(sorted(tmp_path.rglob("run.json"))):
        if not number:  # one of the figure's three runs was interrupted; only the figure may resume it
            write_json(path, {**read_json(path), "status": "interrupted"})
    band.played.clear()
    assert run_experiment(wanted(SUMMARY, tmp_path))
    assert [method for method, _ in band.played] == ["local", *["full-averaging"] * 3]
    assert len(list(tmp_path.glob("experiments/summary-default/*/run.json"))) == 4


def test_a_report_draws_it_from_what_is_there_and_names_what_is_not(band: Band, tmp_path: Path) -> None:
    refresh(SUMMARY, tmp_path, SIZES[:2])
    assert not list(tmp_path.iterdir()), "nothing was played"
    assert run_experiment(wanted(FIGURE, tmp_path, "quick", BOTH[:1]))
    refresh(SUMMARY, tmp_path, ("default",))
    assert not folder_of(tmp_path, "summary", "default").exists(), "nothing of that size was played"
    refresh(SUMMARY, tmp_path, SIZES[:2])
    data = read_json(folder_of(tmp_path, "summary", "quick") / "results.json")
    text = table_page(data)
    assert "| averaging ↓, task → | digits |" in text
    assert "Not finished: digits; 100." in text
    assert "$ fedpeer experiment run summary --quick\n" in text
    assert data["workers"] == 1

    assert run_experiment(wanted(FIGURE, tmp_path, "default", BOTH))
    refresh(SUMMARY, tmp_path, SIZES[:2])
    for size in SIZES[:2]:
        again = read_json(folder_of(tmp_path, "summary", size) / "results.json")
        assert [each["label"] for each in again["measured"]] == ["digits; 0", "digits; 100"], "the old page too"
    assert "Seeds so far" not in table_page(again)
    refresh(FIGURE, tmp_path, SIZES)
    assert sum(name == "full-averaging" for name, _ in band.played) == 3, "a report plays nothing"


def test_a_report_of_other_cells_than_its_own_says_nothing(band: Band, tmp_path: Path) -> None:
    assert run_experiment(wanted(FIGURE, tmp_path, "default", ("0; mini-batches: 1",)))
    other = replace(SUMMARY, cells=lambda size: lines(size)[1:])
    refresh(other, tmp_path, SIZES[:2])
    assert not folder_of(tmp_path, "summary", "default").exists()


@pytest.mark.parametrize("size", ["quick", "default", pytest.param("full", marks=pytest.mark.soak)])
def test_its_points_are_points_of_the_figures(size: SizeName, listed: Listed) -> None:
    """Each run that the summary requests is requested by a figure behind it, at each of the sizes."""
    assert FIG7.reads == tuple(name for name in FIG7.reads if experiment(name).name == name)
    behind = {
        request_digest(replace(request, seeds=(0,)))
        for name in FIG7.reads
        for cell in listed(name, size)
        for request in cell.variants.values()
    }
    made = FIG7.cells(FIG7.sizes[size])
    assert len(made) == 3 * len(TASKS)
    for cell in made:
        (request,) = cell.variants.values()
        assert request_digest(replace(request, seeds=(0,))) in behind, cell.label
    assert {cell.place.line for cell in made if cell.place} == {LOCAL, PARTIAL, GLOBAL}


def test_each_task_has_a_name_on_the_axis_and_its_points_stand_apart() -> None:
    places = {f"{task}; {line}": {"line": line, "x": x} for x, task in enumerate(("A", "B")) for line in ("l", "m")}
    figure = {"log": False, "x": "task", "lines": "averaging", "ticks": ["A", "B"]}
    data = {
        "title": "T",
        "columns": ["PM"],
        "figure": figure,
        "places": places,
        "measured": [measured(label, 0.5 + 0.1 * at).to_json() for at, label in enumerate(places)],
    }
    assert [[x for x, _ in line.points] for line in lines_of(data)] == [[0, 1], [0, 1]]
    svg = figure_picture(data)
    for name in ("A", "B"):
        assert f">{name}</text>" in svg
    joined = figure_picture({**data, "figure": {**figure, "ticks": []}})
    assert lengths(joined) == 2
    assert lengths(svg) == 0


def lengths(svg: str) -> int:
    """Count the lines that go across the picture from one place to the next."""
    paths = [part.partition('"')[0].split() for part in svg.split('<path d="M ')[1:]]
    ends = [(float(path[0]), float(path[-2])) for path in paths if path[2] == "L" and "z" not in path]
    return sum(0 < abs(last - first) < 330 and abs(last - first) > 100 for first, last in ends)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_partial_averaging_is_to_lead_on_each_task(task: SummaryTask) -> None:
    def held(alone: float, partly: float, whole: float) -> list[bool | None]:
        scores = {LOCAL: alone, PARTIAL: partly, GLOBAL: whole}
        made = {task.label(line): measured(task.label(line), score) for line, score in scores.items()}
        return [claim.check(made).held for claim in task.claims()]

    assert held(0.5, 0.6, 0.7) == [True, False]
    assert held(0.7, 0.6, 0.5) == [False, True]
    assert held(0.6, 0.6, 0.5) == [False, True], "a tie is not above"
