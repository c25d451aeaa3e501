"""Figures: the averaging of each scheme, one run read at several rounds, medians and bars, and claims."""

from __future__ import annotations

import re
import statistics
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedpeer.experiments import executors as playing
from fedpeer.experiments.book import book
from fedpeer.experiments.claims import falls, highest, leads, lowest
from fedpeer.experiments.columns import COLUMNS
from fedpeer.experiments.events import Begun
from fedpeer.experiments.experiment import AtRound, Cell, SizeName
from fedpeer.experiments.figure import Figure, FigureWorld, Scheme, labelled
from fedpeer.experiments.figure_lines import lines_of
from fedpeer.experiments.pictures import figure_picture
from fedpeer.experiments.registry import EXPERIMENTS, experiment
from fedpeer.experiments.results import Measured, Middle, PaperClaim
from fedpeer.experiments.runner import RESULTS, ExperimentOptions, found, played, run_experiment
from fedpeer.experiments.schemes import FIRST, level
from fedpeer.experiments.table import table_page
from fedpeer.runs.canvas import PALETTE
from fedpeer.runs.disk import read_json, write_json
from fedpeer.runs.folder import RunFolder
from tests.experiments.conftest import Listed

FIGURES = [name for name in EXPERIMENTS if name.startswith("fig")]
METRICS = {column.metric for column in COLUMNS.values()}

SMALL = Figure(
    number="0",
    title="A figure",
    paper="Nobody, Nothing, 2026",
    data=("digits",),
    schemes=lambda read: (Scheme("0", "local"), Scheme("100", "full-averaging")),
    settings=(1, 2, 4),
    setting="mini-batches",
    world=lambda read: FigureWorld(
        dataset="digits", split="iid", peers=2, updates=3, rounds=4, read=AtRound(read), read_every=1
    ),
    few=(("0", "100"), (1, 4)),
    minutes=(1, 1, 1),
    claims=[
        highest("100 is best", [labelled("100", "mini-batches", 4)], [labelled("0", "mini-batches", 4)], "PM"),
    ],
    runs=5,
)


class Band:
    """Replacement for the engines: every run's accuracy is known, and the methods and seeds run are remembered."""

    def __init__(self) -> None:
        self.played: list[tuple[str, int]] = []

    def prepare_simulation(self, request: Any, *, dataset: object) -> SimpleNamespace:
        return SimpleNamespace(request=request)

    def begin_record(self, folder: Path, simulation: SimpleNamespace, command: str) -> RunFolder:
        return RunFolder.create(folder, name="digits", settings={"command": command}, environment={})

    def run_prepared(self, simulation: SimpleNamespace, run: RunFolder, on_event: object, stop: object) -> None:
        options = simulation.request
        (method,), (seed,) = options.methods, options.seeds
        self.played.append((method.name, seed))
        for number in range(1, 5):
            row = {"method": str(method), "seed": seed, "round": number, "seconds": 0.1, "loss": [0.0] * 2}
            score = accuracy(method.name, seed, number)
            row |= {"accuracy": [score - 0.01, score + 0.01], "tested": [1, 1], "bytes_sent": [1, 2]}
            run.record({**row, "messages_sent": [0] * 2, "disagreement": {}, "weight": {}})
        run.finish({"methods": {}})


def accuracy(method: str, seed: int, number: int) -> float:
    return {"local": 0.1, "full-averaging": 0.2 + seed / 1000}[method] + 0.1 * number + seed**2 / 100


@pytest.fixture
def band(monkeypatch: pytest.MonkeyPatch) -> Band:
    made = Band()
    for name in ("prepare_simulation", "begin_record", "run_prepared"):
        monkeypatch.setattr(playing, name, getattr(made, name))
    return made


def wanted(root: Path, size: SizeName = "full") -> ExperimentOptions:
    return ExperimentOptions(
        experiment=SMALL.experiment(), size_name=size, root=root, workers=1, command="fedpeer experiment run fig0"
    )


def test_one_run_is_read_at_several_rounds(band: Band, tmp_path: Path) -> None:
    told: list[Any] = []
    assert run_experiment(wanted(tmp_path), told.append)
    assert told[0] == Begun(runs=10, finished=0)
    assert Counter(band.played) == {(name, seed): 1 for name in ("local", "full-averaging") for seed in range(5)}
    cells = found(wanted(tmp_path))
    for number in (1, 2, 4):
        expected = [accuracy("local", seed, number) for seed in range(5)]
        assert cells[labelled("0", "mini-batches", number)].per_seed["PM"] == pytest.approx(expected)
    seconds = sum(cell.seconds for cell in cells.values())
    assert seconds == pytest.approx(sum(float(read_json(path)["seconds"]) for path in tmp_path.rglob("run.json")))


#: As figure 18: one run of each line is read at every point, and a claim compares lines over several points.
CONVERGING = replace(
    SMALL,
    claims=[
        leads(
            "100 leads",
            [labelled("100", "mini-batches", read) for read in (1, 2)],
            [[labelled("0", "mini-batches", read) for read in (1, 2)]],
            "PM",
        )
    ],
)


def page(options: ExperimentOptions) -> dict[str, Any]:
    """Return a page's data without the seconds of its runs."""
    data: dict[str, Any] = read_json(options.folder / RESULTS)
    return {**data, "measured": [{**each, "seconds": 0} for each in data["measured"]]}


#: Runs after which two lines of three runs each are paused: within the first line, between the two, within the second.
PAUSES = (1, 3, 5)


@pytest.mark.parametrize(
    "pause", [pytest.param(each, marks=[] if each in PAUSES else pytest.mark.soak) for each in range(1, 7)]
)
def test_a_figure_that_compares_lines_is_paused_after_any_run_and_continued(
    band: Band, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: int
) -> None:
    stop = threading.Event()
    whole, part = (
        replace(wanted(tmp_path / name, "default"), experiment=CONVERGING.experiment()) for name in ("whole", "part")
    )

    def until_the_pause(*played: Any) -> None:
        band.run_prepared(*played)
        if len(band.played) == pause:
            stop.set()

    with monkeypatch.context() as pausing:
        pausing.setattr(playing, "run_prepared", until_the_pause)
        run_experiment(part, stop=stop)
    assert len(band.played) == pause
    assert "held" in page(part)["claims"][0], "the page so far is there"
    assert run_experiment(part)
    assert sorted(band.played) == [(name, seed) for name in ("full-averaging", "local") for seed in range(3)], "once"
    assert run_experiment(whole)
    assert page(part) == page(whole)


def test_a_figure_that_compares_lines_is_extended(band: Band, tmp_path: Path) -> None:
    whole, part = (
        replace(wanted(tmp_path / name, "default"), experiment=CONVERGING.experiment()) for name in ("whole", "part")
    )
    assert run_experiment(replace(part, seeds=2))
    assert run_experiment(replace(part, only=(labelled("0", "mini-batches", 1),))), "one line first"
    assert run_experiment(part)
    assert len(band.played) == 6, "nothing was played again"
    assert run_experiment(whole)
    assert page(part) == page(whole)


def test_what_a_paper_leaves_open_can_be_chosen_otherwise(band: Band, tmp_path: Path) -> None:
    """Another choice is another run, with a folder and a page of its own."""
    usual = wanted(tmp_path, "quick")
    other = replace(usual, overrides={"loss": "squared-error", "start": "uniform:1"})
    learning = [cell.variants[""].federation.learning for cell in other.cells]
    assert {(str(each.loss), str(each.start)) for each in learning} == {("squared-error", "uniform:1")}
    assert run_experiment(usual)
    assert run_experiment(other)
    assert len(band.played) == 8, "nothing of the usual runs counts"
    assert played(tmp_path, "fig0", "quick") == [usual.folder, other.folder]
    assert other.folder.name == "fig0-quick-squared-error-uniform-1"
    text = table_page(read_json(other.folder / RESULTS))
    assert "Chosen otherwise: loss squared-error, start uniform:1." in text
    assert "](fig0-quick-squared-error-uniform-1.svg)" in text


def test_data_that_a_paper_leaves_open_can_be_chosen_otherwise(tmp_path: Path) -> None:
    chosen = {"dataset": "digits", "split": "blocks:40", "normalise": "standard", "start": "torch"}
    (usual, *_), (other, *_) = (replace(wanted(tmp_path), overrides=each).cells for each in ({}, chosen))
    federation = other.variants[""].federation
    simulation = federation.simulation
    assert (str(simulation.dataset), [str(each) for each in simulation.split or ()]) == ("digits", ["blocks:40"])
    assert simulation.normalise == "standard"
    assert str(federation.learning.start) == "torch"
    assert federation.learning.rounds == usual.variants[""].federation.learning.rounds


def test_a_point_is_the_median_and_its_bar_goes_from_two_to_three_fifths(band: Band, tmp_path: Path) -> None:
    assert run_experiment(wanted(tmp_path))
    data = read_json(wanted(tmp_path).folder / "results.json")
    local, full = lines_of(data)
    assert [local.name, full.name] == ["0", "100"]
    assert [x for x, _ in local.points] == [1, 2, 4]
    scores = sorted(100 * accuracy("local", seed, 4) for seed in range(5))
    assert local.points[-1][1].median == pytest.approx(statistics.median(scores))
    # Five runs: 40 % of the way from the first to the last lies between the second and the third.
    assert local.points[-1][1].low == pytest.approx(scores[1] + 0.6 * (scores[2] - scores[1]))
    assert local.points[-1][1].high == pytest.approx(scores[2] + 0.4 * (scores[3] - scores[2]))
    text = table_page(data)
    assert "| 0 | 24.0 (22.8–26.0) |" in text
    assert "![A figure](fig0-full.svg)" in text
    assert "**held**" in text


def test_the_picture_has_each_point_and_the_book_has_the_picture(band: Band, tmp_path: Path) -> None:
    assert run_experiment(wanted(tmp_path))
    data = read_json(wanted(tmp_path).folder / "results.json")
    svg = figure_picture(data)
    assert "mini-batches" in svg
    assert svg.count("<use ") >= 6, "a marker a point"
    html = book([data, data])
    assert html.count(svg) == 2
    assert "2 of 2 claims held" in html
    assert "<img" not in html


def test_more_lines_than_colours_are_told_apart_and_the_legend_hides_no_point(band: Band, tmp_path: Path) -> None:
    assert run_experiment(wanted(tmp_path))
    data = read_json(wanted(tmp_path).folder / "results.json")
    places = {
        f"line {number}; {x}": {"line": f"line {number}", "x": float(x)}
        for number in range(PALETTE + 1)
        for x in (1, 2)
    }
    found = {**data, "places": places, "measured": [{**data["measured"][0], "label": label} for label in places]}
    svg = figure_picture(found)
    assert "stroke-dasharray" in svg, "the last has the colour of the first"
    assert "stroke-dasharray" not in figure_picture(data)
    top = re.search(r'id="patch_2">\s*<path d="M \S+ \S+ \s*L \S+ \S+ \s*L \S+ (\S+)', svg)
    names = {name: float(y) for y, name in re.findall(r'<text [^>]*\by="([\d.]+)"[^>]*>(line \d)<', svg)}
    assert top is not None
    assert len(names) == PALETTE + 1
    assert max(names.values()) < float(top[1])


def test_what_an_earlier_version_was_asked_for_is_known_by_what_it_asked(band: Band, tmp_path: Path) -> None:
    """A setting that was added later has its default in requests that were stored before."""
    options = wanted(tmp_path, "quick")
    assert run_experiment(options)
    for path in tmp_path.rglob("cell.json"):
        cell = read_json(path)
        del cell["asked"]["federation"]["gossip"]["every"]
        write_json(path, cell)
    assert len(found(options)) == 4
    assert run_experiment(options)
    assert len(band.played) == 4, "nothing was played again"
    for path in tmp_path.rglob("cell.json"):
        cell = read_json(path)
        cell["asked"]["federation"]["gossip"]["no-such-thing"] = 1
        write_json(path, cell)
    assert not found(options)


# ------------------------------------------------------------------------------------------------------------- claims


def cells(**values: tuple[float, ...]) -> dict[str, Measured]:
    return {
        name: Measured(
            label=name,
            variant="",
            seeds=tuple(range(len(each))),
            rounds=1,
            peers=2,
            per_seed={"PM": each},
            sent=0,
            seconds=0,
        )
        for name, each in values.items()
    }


def test_the_middle_of_many_runs() -> None:
    values = np.random.default_rng(0).normal(size=1001)
    middle = Middle.of(values.tolist())
    assert (values < middle.low).mean() == pytest.approx(0.4, abs=2e-3)
    assert (values < middle.high).mean() == pytest.approx(0.6, abs=2e-3)
    assert middle.median == np.median(values)
    assert Middle.of([0.5]) == Middle(0.5, 0.5, 0.5)


def test_highest_compares_medians_and_if_asked_bars() -> None:
    results = cells(a=(0.90, 0.91, 0.10), b=(0.89, 0.90, 0.91), c=(0.80, 0.81, 0.82), d=(0.5, 0.89, 0.95))
    assert highest("", ["a"], ["c"], "PM").check(results).held, "the median is 0.90, whatever one run did"
    assert not highest("", ["c"], ["b"], "PM").check(results).held
    assert highest("", ["a"], ["b"], "PM").check(results).held is False, "a tie is not above"
    assert highest("", ["a", "c"], ["c", "d"], "PM").check(results).held, "the best of several"
    assert highest("", ["b"], ["c"], "PM", apart=True).check(results).held
    verdict = highest("", ["b"], ["d"], "PM", apart=True).check(results)
    assert verdict.held is False
    assert "bars touch" in verdict.words
    assert highest("", ["d"], ["b"], "PM", by=-2.5).check(results).held
    assert highest("", ["a"], ["nothing"], "PM").check(results).held is None


def test_lowest_is_below_every_other() -> None:
    scores = {"a": (0.1, 0.5, 0.6), "b": (0.4, 0.6, 0.9), "c": (0.2, 0.55, 0.9), "d": (0.0, 0.5, 1.0)}
    results = cells(**scores)
    verdict = lowest("", "a", ["b", "c"], "PM").check(results)
    assert verdict.held, "0.50 beside 0.60 and 0.55"
    assert re.fullmatch(r"-5\.0 points \(mean -15\.0, -\S+ to \+\S+\), a to c", verdict.words)
    assert verdict.p == pytest.approx(max(stats.ttest_rel(scores["a"], scores[other]).pvalue for other in "bc"))
    assert lowest("", "c", ["a", "b"], "PM").check(results).held is False, "below one, above the other"
    assert lowest("", "a", ["b", "d"], "PM").check(results).held is False, "a tie is not below"
    assert lowest("", "a", ["nothing"], "PM").check(results).held is None


@pytest.mark.parametrize("name", ["flights", "crossed"])
def test_what_is_best_of_all_is_held_against_all(name: str, listed: Listed) -> None:
    """A line's label begins with its place; lines about another test part are apart."""
    labels = [cell.label for cell in listed(name, "full") if not cell.label.endswith("autumn as the test part")]
    claims = [claim for claim in experiment(name).claims if claim.text.endswith("of all")]
    assert claims
    for claim in claims:
        place = claim.text.partition(":")[0] + ", "
        assert set(claim.needs) == {label for label in labels if label.startswith(place)}, claim.text


@pytest.mark.parametrize("name", ["fig11", "fig12", "fig13"])
def test_every_scheme_of_whole_layers_is_all_but_levels_0_and_80(name: str, listed: Listed) -> None:
    labels = {cell.label for cell in listed(name, "full")}
    claims = [claim for claim in experiment(name).claims if "every scheme" in claim.text]
    assert len(claims) == 6
    for claim in claims:
        place = claim.needs[0].partition("; ")[2]
        there = {label for label in labels if label.partition("; ")[2] == place}
        assert there - set(claim.needs) == {f"0; {place}"}


@pytest.mark.parametrize("name", FIGURES)
def test_what_is_best_or_worst_is_held_against_all_at_its_place(name: str, listed: Listed) -> None:
    labels = {cell.label for cell in listed(name, "full")}
    for claim in experiment(name).claims:
        if re.search(r"\b(is|are) (best|worst|first|last)\b|the best level", claim.text):
            (place,) = {label.partition("; ")[2] for label in claim.needs}
            assert set(claim.needs) == {label for label in labels if label.partition("; ")[2] == place}, claim.text


def test_leads_compares_means_over_points_run_by_run() -> None:
    results = cells(a1=(0.5, 0.9, 0.6), a2=(0.7, 0.5, 0.8), b1=(0.9, 0.9, 0.1), b2=(0.2, 0.5, 0.9), c=(0.69, 0.1, 0.1))
    verdict = leads("", ["a1", "a2"], [["b1", "b2"], ["c"]], "PM").check(results)
    assert verdict.held
    assert re.fullmatch(r"\+15\.00 points \(mean \+8\.33, \S+ to \S+\) to the nearest", verdict.words), (
        "0.70 to 0.55, of three runs"
    )
    assert leads("", ["b1", "b2"], [["a1", "a2"]], "PM").check(results).held is False
    assert leads("", ["a1"], [["a1"]], "PM").check(results).held is False, "a tie does not lead"
    assert leads("", ["a1", "gone"], [["b1"]], "PM").check(results).held is None


def test_leads_compares_runs_of_the_same_seed_wherever_the_lines_have_others_too() -> None:
    """A line that was extended or paused has other seeds than the next one; equally many other seeds are no pairs."""
    whole = cells(a1=(0.5, 0.9, 0.6), a2=(0.7, 0.5, 0.8), b=(0.1, 0.4, 0.3))
    both = {
        name: replace(each, seeds=(0, 2), per_seed={"PM": each.per_seed["PM"][::2]}) for name, each in whole.items()
    }
    wanted = leads("", ["a1", "a2"], [["b"]], "PM")
    same = wanted.check(both)
    assert same.held
    for results in ({**whole, "b": both["b"]}, {**whole, "a2": both["a2"]}, {**both, "b": whole["b"]}):
        assert wanted.check(results) == same
    last = {
        name: replace(each, seeds=(2, 0), per_seed={"PM": each.per_seed["PM"][::-1]}) for name, each in both.items()
    }
    assert wanted.check({**both, "b": last["b"]}) == same, "whatever their order"
    assert wanted.check({**both, "b": replace(both["b"], seeds=(0, 1))}).runs == 1
    apart = wanted.check({**both, "b": replace(both["b"], seeds=(1, 3))})
    assert (apart.held, apart.words) == (None, "a1 and b have no seed in common")


def test_falls_in_points_and_in_percent() -> None:
    results = cells(before=(0.8, 0.8), after=(0.3, 0.3))
    assert falls("", "before", "after", "PM", least=49.9).check(results).held
    assert not falls("", "before", "after", "PM", least=50.1).check(results).held
    assert falls("", "before", "after", "PM", least=62.4, most=62.6, part=True).check(results).held
    assert not falls("", "before", "after", "PM", most=5).check(results).held
    assert falls("", "after", "before", "PM", most=-49.9).check(results).held, "a rise is a negative fall"
    noisy = cells(before=(0.8, 0.7, 0.9), after=(0.6, 0.6, 0.6))
    bounds = falls("", "before", "after", "PM", least=5, most=40).check(noisy)
    lost = np.array([20.0, 10.0, 30.0])
    assert bounds.p == pytest.approx(max(stats.ttest_1samp(each, 0).pvalue for each in (lost - 5, 40 - lost)))
    assert (
        falls("", "before", "after", "PM", least=5, part=True)
        .check(noisy)
        .words.startswith("-25.0 % of 80.0 (mean -24.2, -")
    )


def test_what_decides_by_medians_is_tested_by_pairs() -> None:
    results = cells(a=(0.90, 0.91, 0.10), c=(0.80, 0.81, 0.82))
    verdict = highest("", ["a"], ["c"], "PM").check(results)
    assert verdict.held, "the median is above"
    assert verdict.p == 1.0, "the mean is not, because of one run"


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if experiment(name).figure is not None])
def test_a_figures_claims_are_favoured_by_the_medians_that_its_page_prints(name: str) -> None:
    """The last run of every cell is moved by a random amount, which changes means and no median."""
    draws = np.random.default_rng(0)

    def favoured(claim: PaperClaim, value_CS: NDArray[np.float64]) -> bool | None:
        return claim.check(
            {label: whole(label, value_S) for label, value_S in zip(claim.needs, value_CS, strict=True)}
        ).held

    for claim in experiment(name).claims:
        for _ in range(5):
            value_CS = 0.5 + 0.001 * draws.normal(size=(len(claim.needs), 1)) + np.array([0.0, 0.01, 0.02, 0.03, 0.04])
            moved_CS = value_CS.copy()
            moved_CS[:, -1] += draws.exponential(size=len(moved_CS))
            assert favoured(claim, moved_CS) == favoured(claim, value_CS), claim.text


def whole(label: str, value_S: NDArray[np.float64]) -> Measured:
    """Return a cell with these values of every metric that a figure shows."""
    (made,) = cells(**{label: tuple(map(float, value_S))}).values()
    return replace(made, statistics=dict.fromkeys(METRICS, made.per_seed["PM"]))


# ------------------------------------------------------------------------------------------------ what is on the list


def all_cells(cells: Sequence[Cell]) -> dict[str, Cell]:
    made = {cell.label: cell for cell in cells}
    assert len(made) == len(cells), "every label once"
    return made


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_whole(name: str, listed: Listed) -> None:
    """The small size is part of the others, claims name cells that exist, and all partial models are valid."""
    few, default, full = (all_cells(listed(name, size)) for size in ("quick", "default", "full"))
    assert few.keys() <= default.keys()
    assert default.keys() == full.keys()
    for claim in experiment(name).claims:
        assert set(claim.needs) <= default.keys(), claim.text
    for cell in default.values():
        assert cell.place is not None
        (request,) = cell.variants.values()
        request.federation.models()
        assert cell.read is None or (
            isinstance(cell.read, AtRound) and cell.read.round <= request.federation.learning.rounds
        )


@pytest.mark.parametrize("name", FIGURES)
def test_something_is_claimed_of_the_small_size(name: str, listed: Listed) -> None:
    few = all_cells(listed(name, "quick"))
    assert any(set(claim.needs) <= few.keys() for claim in experiment(name).claims)


def test_levels_are_the_papers() -> None:
    """Section V.1: 784-L1-L2-k; level 0 is local, level 100 is one model."""
    assert {number: FIRST[number] for number in FIRST} == {0: 0, 15: 50, 30: 100, 60: 200, 80: 250, 100: 300}
    assert (level(0).method, level(100).method) == ("local", "full-averaging")
    models = level(80).models
    assert models is not None
    assert models["everyone"]["neurons"] == {"input": "all", "hidden1": 250, "hidden2": 80, "output": "all"}


def test_the_groups_of_the_semi_local_figures_are_those_of_equal_tasks(listed: Listed) -> None:
    """Figure 20: the groups are the elements of S_3, with two consecutive peers each.

    Dependent semi-local models also share the weights between them and the common model.
    """
    fig20 = all_cells(listed("fig20", "default"))
    (request,) = fig20[labelled("80 + 20 dependent", "mini-batch size", 50)].variants.values()
    models = {model.name: model for model in request.federation.models()}
    groups = [model.members for name, model in models.items() if name != "everyone"]
    assert groups == [(f"peer{first}", f"peer{first + 1}") for first in range(1, 13, 2)]
    assert all(model.depends_on == ("everyone",) for name, model in models.items() if name != "everyone")
    (independent,) = fig20[labelled("80 + 20", "mini-batch size", 50)].variants.values()
    assert not any(model.depends_on for model in independent.federation.models())
