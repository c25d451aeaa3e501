"""Experiments: kept results, the choice of variants, claims, and the content of a page."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedpeer.config.choice import Choice, ChoiceError
from fedpeer.config.methods import method_of
from fedpeer.data.dataset import DataError
from fedpeer.data.registry import DATASETS
from fedpeer.experiments import executors as playing
from fedpeer.experiments import runner
from fedpeer.experiments.claims import above, in_order, keeps, part_of, reaches
from fedpeer.experiments.columns import COLUMNS
from fedpeer.experiments.events import Begun, CellDone, OfRun
from fedpeer.experiments.executors import WantedRun
from fedpeer.experiments.experiment import SEARCH_VALIDATION, Cell, Experiment, RunSize, SizeName
from fedpeer.experiments.registry import EXPERIMENTS, experiment
from fedpeer.experiments.results import CellResults, ClaimVerdict, Measured, validation_score
from fedpeer.experiments.runner import ExperimentOptions, found, request_digest, run_experiment
from fedpeer.experiments.short_requests import experiment_options, passes
from fedpeer.experiments.table import page_data, table_page
from fedpeer.runs.disk import dumps, read_json, write_json
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.events import RoundDone, RunBegun
from fedpeer.sims.request import SimulationRequest
from tests.experiments.conftest import Listed

SIMULATION = {"dataset": "digits", "split": "blocks:40,shuffle=true,test=50"}


def request(method: str, size: RunSize, **learning: Any) -> SimulationRequest:
    return experiment_options(
        method,
        size,
        learning={**passes(size, 10), "optimizer": "sgd,lr=0.5", **learning},
        simulation=SIMULATION,
        network="mlp:64+8+10",
    )


def tiny(size: RunSize) -> tuple[Cell, ...]:
    rates = {f"lr={lr}": request("fedavg", size, optimizer=f"sgd,lr={lr}") for lr in (0.5, 0.1)}
    return (
        Cell(label="Local", variants={"": request("local", size)}, published={"PM": "90.0 ± 0.1"}),
        Cell(label="FedAvg", variants=rates, judged="GM"),
    )


SIZES: Mapping[SizeName, RunSize] = {
    "quick": RunSize(peers=3, rounds=2, seeds=1, minutes=1),
    "default": RunSize(peers=3, rounds=2, seeds=2, minutes=1, searches=True, differs="All of it is small."),
    "full": RunSize(peers=3, rounds=2, seeds=1, minutes=1),
}
TINY = Experiment(
    name="tiny",
    title="A tiny table",
    source="Nobody 2026, table 0",
    paper="Nobody, Nothing, 2026",
    data=("digits",),
    columns=("PM", "GM"),
    sizes=SIZES,
    cells=tiny,
    claims=(
        reaches("alone they reach 0.1", "Local", "PM", 0.1),
        above("it helps", "FedAvg", ("Local",), "PM", by=99),
        above("nothing beats it", "FedAvg", ("Nothing",), "PM"),
    ),
)


def wanted(root: Path, size: SizeName = "default", **more: Any) -> ExperimentOptions:
    return ExperimentOptions(
        experiment=TINY, size_name=size, root=root, workers=1, command="fedpeer experiment run tiny", **more
    )


class Lab:
    """Replacement for the engines: writes the given measurements of each run at once, and remembers which were run."""

    def __init__(self) -> None:
        self.played: list[tuple[str, str, int, float]] = []
        self.folds: list[int] = []
        self.stop_before = 10**9
        self.scores: Callable[[str, str], dict[str, float]] = lambda method, optimizer: {}

    def prepare_simulation(self, request: SimulationRequest, *, dataset: object) -> SimpleNamespace:
        return SimpleNamespace(request=request)

    def begin_record(self, folder: Path, simulation: SimpleNamespace, command: str) -> RunFolder:
        return RunFolder.create(folder, name="digits", settings={"command": command}, environment={})

    def run_prepared(
        self, simulation: SimpleNamespace, run: RunFolder, on_event: object, stop: threading.Event
    ) -> None:
        options: SimulationRequest = simulation.request
        learning, (method,), (seed,) = options.federation.learning, options.methods, options.seeds
        if len(self.played) == self.stop_before:
            stop.set()
            run.finish({"methods": {}}, "interrupted")
            return
        validation = options.federation.simulation.validation or 0.0
        self.played.append((str(method), str(learning.optimizer), seed, validation))
        self.folds.append(options.federation.simulation.fold)
        scores = self.scores(method.name, str(learning.optimizer))
        row = {
            "method": str(method),
            "seed": seed,
            "round": learning.rounds,
            "seconds": 0.1,
            "accuracy": [0.5, 0.6, 0.7 + seed / 10],
            "loss": [0.0] * 3,
            "tested": [1, 1, 2],
            "bytes_sent": [1, 2, 3],
            "messages_sent": [0] * 3,
            "disagreement": {},
            "weight": {},
            "server_accuracy": [0.4] * 3,
            "statistics": {"update bytes": [0, 1000 + seed, 3000 + seed]},
            **{name: [score] * 3 for name, score in scores.items() if validation or "validation" not in name},
            **{name.replace("accuracy", "loss"): [0.5] * 3 for name in scores if validation and "validation" in name},
        }
        run.record(row)
        run.finish({"methods": {}})


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab()
    for name in ("prepare_simulation", "begin_record", "run_prepared"):
        monkeypatch.setattr(playing, name, getattr(made, name))
    return made


def test_a_variant_is_chosen_on_what_was_kept_back_and_never_on_test_examples(lab: Lab, tmp_path: Path) -> None:
    """The variant worse on test examples is better on examples kept back, by the metric of the cell and no other."""
    lab.scores = lambda method, optimizer: {
        "validation_server_accuracy": 0.9 if "0.1" in optimizer else 0.5,
        "validation_accuracy": 0.1 if "0.1" in optimizer else 0.9,
        "server_accuracy": 0.2 if "0.1" in optimizer else 0.99,
    }
    assert run_experiment(wanted(tmp_path))
    fedavg = found(wanted(tmp_path))["FedAvg"]
    assert fedavg.variant == "lr=0.1"
    assert fedavg.tried == pytest.approx({"lr=0.5": 0.5, "lr=0.1": 0.9})
    assert fedavg.per_seed["GM"] == pytest.approx((0.2, 0.2))
    searched = [(optimizer, seed) for method, optimizer, seed, back in lab.played if back == SEARCH_VALIDATION]
    assert searched == [("sgd,lr=0.5", 0), ("sgd,lr=0.1", 0)], "one seed each, for the one cell that has a choice"
    final = [(optimizer, seed) for method, optimizer, seed, back in lab.played if method == "fedavg" and not back]
    assert final == [("sgd,lr=0.1", 0), ("sgd,lr=0.1", 1)], "all seeds, on all training examples"


def test_a_size_that_does_not_search_takes_the_first(lab: Lab, tmp_path: Path) -> None:
    assert run_experiment(wanted(tmp_path, "quick"))
    assert [(method, optimizer) for method, optimizer, _, _ in lab.played] == [
        ("local", "sgd,lr=0.5"),
        ("fedavg", "sgd,lr=0.5"),
    ]


def test_a_search_can_be_left_out_and_the_page_says_so(lab: Lab, tmp_path: Path) -> None:
    assert run_experiment(wanted(tmp_path, search=False))
    assert [optimizer for _, optimizer, _, validation in lab.played if not validation] == ["sgd,lr=0.5"] * 4
    text = table_page(read_json(wanted(tmp_path).folder / "results.json"))
    assert "All of it is small. No search" in text
    assert run_experiment(wanted(tmp_path, "quick", search=False))
    assert "No search" not in table_page(read_json(wanted(tmp_path, "quick").folder / "results.json"))

    lab.scores = lambda method, optimizer: {"validation_server_accuracy": 0.9 if "0.1" in optimizer else 0.5}
    assert run_experiment(wanted(tmp_path))
    assert found(wanted(tmp_path, search=False))["FedAvg"].variant == "lr=0.1", "an earlier search counts"


def test_without_a_search_what_an_earlier_one_found_is_taken(lab: Lab, tmp_path: Path) -> None:
    known = replace(TINY, cells=lambda size: (replace(tiny(size)[1], found="lr=0.1"),))
    options = replace(wanted(tmp_path, search=False), experiment=known)
    assert run_experiment(options)
    assert [optimizer for _, optimizer, _, _ in lab.played] == ["sgd,lr=0.1"] * 2
    lab.scores = lambda method, optimizer: {"validation_server_accuracy": 0.9 if "0.5" in optimizer else 0.5}
    assert run_experiment(replace(options, search=True))
    assert found(options)["FedAvg"].variant == "lr=0.5", "a finished search on this machine counts for more"


def test_a_trial_that_is_a_seeds_own_run_is_counted_once(lab: Lab, tmp_path: Path) -> None:
    """As in virtual-table2, all of whose runs hold examples out: a variant's trial is its run with the first seed."""

    def holding_out(size: RunSize) -> tuple[Cell, ...]:
        cell = tiny(size)[1]
        settings = {name: each.to_json() for name, each in cell.variants.items()}
        for each in settings.values():
            each["federation"]["simulation"]["validation"] = 0.25
        return (replace(cell, variants={name: SimulationRequest.from_json(each) for name, each in settings.items()}),)

    lab.scores = lambda method, optimizer: {"validation_server_accuracy": 0.9 if "0.1" in optimizer else 0.5}
    options, told = replace(wanted(tmp_path), experiment=replace(TINY, cells=holding_out)), list[object]()
    assert run_experiment(options, told.append)
    assert [(optimizer, seed) for _, optimizer, seed, _ in lab.played] == [
        ("sgd,lr=0.5", 0), ("sgd,lr=0.1", 0), ("sgd,lr=0.1", 1)
    ]  # fmt: skip
    assert [each.runs for each in told if isinstance(each, Begun)] == [3]
    for path in tmp_path.rglob("run.json"):
        write_json(path, {**read_json(path), "seconds": 60.0})
    assert found(options)["FedAvg"].seconds == 180.0


def test_a_search_may_hold_out_each_part_in_turn(lab: Lab, tmp_path: Path) -> None:
    """One variant is better on two of three parts, the other one in the mean."""
    parts = {"sgd,lr=0.5": (0.9, 0.1, 0.1), "sgd,lr=0.1": (0.2, 0.2, 0.2)}
    lab.scores = lambda method, optimizer: {"validation_server_accuracy": parts[optimizer][lab.folds[-1]]}
    known = replace(TINY, cells=lambda size: (replace(tiny(size)[1], folds=3),))
    options = replace(wanted(tmp_path), experiment=known)
    assert run_experiment(options)
    searched = lab.played[:6]
    assert [optimizer for _, optimizer, _, _ in searched] == [optimizer for optimizer in parts for _ in range(3)]
    assert [back for *_, back in searched] == pytest.approx([1 / 3] * 6)
    assert lab.folds == [0, 1, 2, 0, 1, 2, 0, 0]
    assert found(options)["FedAvg"].tried == pytest.approx({"lr=0.5": 1.1 / 3, "lr=0.1": 0.2})
    assert found(options)["FedAvg"].variant == "lr=0.5"
    text = table_page(read_json(options.folder / "results.json"))
    assert "(mean of 3 parts)" in text


def test_a_variant_may_be_chosen_by_a_further_metric() -> None:
    kept_back: dict[str, Any] = {"round": 2, "validation_accuracy": [0.1] * 3, "validation_loss": [0.5] * 3}
    rows = [{**kept_back, "validation_metrics": {"auc": [0.6, None, 0.8]}}]
    assert validation_score(rows, "auc") == pytest.approx(0.7), "over the peers for which it is defined"
    lost = {**rows[0], "validation_loss": [0.5, None, 0.5]}
    assert validation_score([lost], "auc") == pytest.approx(0.4 / 3), (
        "of a model without numbers it is not defined either"
    )
    lost["validation_metrics"] = {"auc": [None] * 3}
    assert validation_score([*rows, lost], "auc") == pytest.approx(-0.15)


def test_a_variant_that_diverged_is_not_taken() -> None:
    """A model without numbers answers with the first class, and is right where there is no other one."""

    def row(number: int, scores: list[float | None], losses: list[float | None]) -> dict[str, Any]:
        return {"round": number, "validation_accuracy": scores, "validation_loss": losses}

    assert validation_score([row(1, [0.3, 1.0], [0.5, None])], "PM") == pytest.approx((0.3 - 1) / 2)
    assert validation_score([row(1, [0.3, None], [0.5, None])], "PM") == 0.3, "the second peer holds out no example"
    early = [row(0, [1.0], [0.5]), row(9, [0.25, 0.75], [0.5, 0.5])]
    assert validation_score(early, "PM") == 0.5, "the last round counts"


def test_what_is_finished_is_kept_and_more_seeds_are_added_to_it(lab: Lab, tmp_path: Path) -> None:
    lab.scores = lambda method, optimizer: {"validation_server_accuracy": 0.5}
    lab.stop_before = 3
    stop = threading.Event()
    assert not run_experiment(wanted(tmp_path), stop=stop)
    assert list(found(wanted(tmp_path))) == ["Local"], "the second cell is not finished"
    data = read_json(wanted(tmp_path).folder / "results.json")
    assert "Not finished: FedAvg." in table_page(data)

    lab.stop_before = 10**9
    told: list[Any] = []
    assert run_experiment(wanted(tmp_path), told.append)
    assert len(lab.played) == len(set(lab.played)) == 6, "nothing twice"
    assert told[0] == Begun(runs=6, finished=3)
    assert [event.measured.label for event in told if isinstance(event, CellDone)] == ["Local", "FedAvg"]
    begun = [event.run for event in told if isinstance(event, OfRun) and isinstance(event.event, RunBegun)]
    assert begun == ["FedAvg, trying lr=0.1", "FedAvg, seed 0", "FedAvg, seed 1"]

    assert run_experiment(wanted(tmp_path))
    assert len(lab.played) == 6, "all of it was there"
    assert run_experiment(wanted(tmp_path, seeds=3, only=("Local",)))
    assert lab.played[6:] == [("local", "sgd,lr=0.5", 2, 0.0)]
    more = found(wanted(tmp_path, seeds=3))
    assert (more["Local"].seeds, more["FedAvg"].seeds) == ((0, 1, 2), (0, 1))
    data = read_json(wanted(tmp_path).folder / "results.json")
    assert "Seeds so far, of 3: FedAvg 2." in table_page(data)
    assert run_experiment(wanted(tmp_path, seeds=3))
    data = read_json(wanted(tmp_path).folder / "results.json")
    assert [each["seeds"] for each in data["measured"]] == [[0, 1, 2]] * 2, "what was known in between is not kept"


class AllAtOnce:
    """An executor that finishes its runs in any order, as a cluster may."""

    free, at_once = True, 99

    def __init__(self, lab: Lab, root: Path, last_first: bool) -> None:
        self.lab, self.root, self.last_first = lab, root, last_first
        self.waiting: list[WantedRun] = []
        self.handed: list[list[str]] = []

    def begin(self, wanted: WantedRun) -> None:
        self.waiting.append(wanted)

    def finished(self) -> dict[str, RunFolder]:
        if not self.waiting:
            return {}
        self.handed.append(sorted(wanted.name for wanted in self.waiting))
        wanted = self.waiting.pop(-1 if self.last_first else 0)
        run = RunFolder.create(self.root, name="digits", settings={}, environment={})
        self.lab.run_prepared(SimpleNamespace(request=wanted.request), run, None, threading.Event())
        run.describe("cell", wanted.note)
        return {wanted.digest: run}


@pytest.mark.parametrize("last_first", [False, True])
def test_all_that_is_ready_is_begun_at_once_and_seeds_wait_for_their_search(
    last_first: bool, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.scores = lambda method, optimizer: {"validation_server_accuracy": 0.9 if "0.1" in optimizer else 0.5}
    options = wanted(tmp_path, cluster="")
    many, told = AllAtOnce(lab, options.folder, last_first), list[Any]()
    monkeypatch.setattr(runner, "executor_for", lambda *_: nullcontext(many))
    assert run_experiment(options, told.append)
    assert many.handed[0] == ["FedAvg, trying lr=0.1", "FedAvg, trying lr=0.5", "Local, seed 0", "Local, seed 1"]
    assert {name for handed in many.handed for name in handed if "FedAvg, seed" in name} == {
        "FedAvg, seed 0",
        "FedAvg, seed 1",
    }
    assert len(lab.played) == len(set(lab.played)) == 6, "each once"
    seeds = [optimizer for method, optimizer, _, back in lab.played if method == "fedavg" and not back]
    assert seeds == ["sgd,lr=0.1"] * 2, "those of the variant that the search chose"
    cells = [event.measured.label for event in told if isinstance(event, CellDone)]
    assert cells == (["FedAvg", "Local"] if last_first else ["Local", "FedAvg"]), "as they are finished"
    assert list(found(options)) == ["Local", "FedAvg"]


def test_a_changed_definition_is_another_run() -> None:
    size = SIZES["quick"]
    one = request("fedavg", size)
    assert request_digest(one) == request_digest(replace(one, device="cuda", workers=7)), (
        "where it is played is the same"
    )
    others = [request("fedprox", size), request("fedavg", size, batch_size=20), replace(one, seeds=(1,))]
    assert len({request_digest(each) for each in (one, *others)}) == 4


def test_the_users_mistakes(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match='no cell "FedProx"; it has: Local; FedAvg'):
        run_experiment(wanted(tmp_path, only=("FedProx",)))
    with pytest.raises(ChoiceError, match="no experiment"):
        experiment("pfedvem-table9")
    monkeypatch.setattr(runner, "describe_dataset", lambda name: SimpleNamespace(here=False))
    with pytest.raises(DataError, match=r"digits is not on this machine.*fedpeer data prepare digits"):
        run_experiment(wanted(tmp_path))
    assert not lab.played
    assert not list(tmp_path.iterdir()), "a mistake leaves nothing behind"


def cell(label: str, per_seed: tuple[float, ...], seeds: tuple[int, ...] = (), metric: str = "PM") -> Measured:
    seeds = seeds or tuple(range(len(per_seed)))
    scores = {metric: per_seed}
    return Measured(
        label=label, variant="", seeds=seeds, rounds=1, peers=2, per_seed=scores, sent=2e6, seconds=1.0, best={}
    )


def results(*cells: Measured) -> CellResults:
    return {each.label: each for each in cells}


def test_claims_compare_pairs_of_the_same_seed() -> None:
    one, two = cell("A", (0.9, 0.7), seeds=(0, 1)), cell("B", (0.6, 0.65, 0.8), seeds=(1, 2, 0))
    claim = above("A is above B", "A", ("B",), "PM", by=9.9)
    assert claim.check(results(one, two)).held
    assert claim.check(results(one, two)).words == "+10.00 points in each run to B", "0.9 - 0.8 and 0.7 - 0.6"
    assert not above("", "A", ("B",), "PM", by=10.1).check(results(one, two)).held
    assert above("", "B", ("A",), "error", more=False, by=-10.1).check(results(one, two)).held
    assert not above("", "B", ("A",), "error", more=False, by=-9.9).check(results(one, two)).held
    nearest = above("", "A", ("B", "C"), "PM").check(results(one, two, cell("C", (0.95, 0.7))))
    half = stats.t.ppf(0.975, 1) * 2.5
    assert nearest.held is False
    assert nearest.words == f"-2.50 points ({-2.5 - half:+.2f} to {-2.5 + half:+.2f}) to C, the nearest"
    assert claim.check(results(one)).held is None
    assert claim.check(results(one)).words == "B was not run"
    assert claim.check(results(one, cell("B", (0.5,), seeds=(7,)))).held is None


def test_claims_of_a_value_and_of_the_papers_numbers() -> None:
    here = results(cell("A", (0.9, 0.92)), cell("B", (0.5,)))
    assert reaches("", "A", "PM", 91.0).check(here).held
    half = stats.t.ppf(0.975, 1)
    assert reaches("", "A", "PM", 91.0).check(here).words == f"91.0 ({91 - half:.1f} to {91 + half:.1f}) beside 91"
    assert not reaches("", "A", "PM", 91.1).check(here).held
    assert reaches("", "A", "error", 9.0, more=False).check(here).held
    assert not reaches("", "A", "error", 8.9, more=False).check(here).held
    assert reaches("", "A", "GM", 1.0).check(here).held is None
    kept = keeps("", ("A", "B", "C"), "PM", (92.0, 50.9, 10.0), within=1.0).check(here)
    assert kept.held is True
    assert kept.words.startswith("2 of 3 judged, the least: A -1.0 points (")
    lost = keeps("", ("A", "B"), "PM", (92.0, 51.1), within=1.0).check(here)
    assert (lost.held, lost.words) == (False, "2 of 2 judged, the least: B -1.1 points; below by more: B -1.1")
    assert keeps("", ("C",), "PM", (1.0,), within=1.0).check(here).held is None
    assert part_of("", "B", "A", "PM", most=0.55).check(here) == ClaimVerdict(True, "54.9 %", 1.0, 1)
    assert part_of("", "B", "A", "sent", most=1.0).check(here) == ClaimVerdict(True, "100.0 %"), "bytes are counted"
    assert not part_of("", "B", "A", "PM", most=0.54).check(here).held
    assert part_of("", "A", "B", "GM", most=1.0).check(here).held is None


def test_an_order_is_tested_by_pairs_on_both_sides() -> None:
    a, b, c = (0.90, 0.93, 0.95, 0.91), (0.89, 0.91, 0.94, 0.90), (0.5, 0.7, 0.6, 0.4)
    here = results(cell("A", a), cell("B", b), cell("C", c))
    found = in_order("", ("A", "B"), "error", more=False).check(here)
    chance = stats.ttest_rel(a, b).pvalue
    assert (found.held, found.runs) == (True, 4)
    assert found.p == pytest.approx(chance)
    backwards = in_order("", ("B", "A"), "error", more=False).check(here)
    assert (backwards.held, backwards.p) == (False, 1.0)
    both = in_order("", ("A", "B", "C"), "PM", more=True).check(here)
    assert both.p == pytest.approx(max(chance, stats.ttest_rel(b, c).pvalue)), "each step must hold"
    same = in_order("", ("A", "B"), "PM", more=True).check(results(cell("A", (0.9, 0.9)), cell("B", (0.9, 0.9))))
    assert not same.held


def test_columns_are_in_percent_and_megabytes() -> None:
    one = replace(cell("A", (0.75, 0.5)), best={"PM": (0.8, 0.01)})
    assert COLUMNS["PM"].values(one) == (75.0, 50.0)
    assert COLUMNS["error"].values(one) == (25.0, 50.0)
    assert COLUMNS["error"].best(one) == pytest.approx((20.0, 1.0))
    assert COLUMNS["sent"].values(one) == (2.0,)
    assert COLUMNS["all"].values(replace(one, rounds=5)) == (10.0,)
    assert COLUMNS["S"].values(one) is None
    assert Measured.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_whole(name: str, listed: Listed) -> None:
    """All cells can be requested, claims name cells that exist, and the paper's numbers have a column.

    Sizes differ in numbers only, so the default size alone is read back from JSON.
    """
    found = experiment(name)
    assert found.name == name
    assert list(found.sizes) == ["quick", "default", "full"]
    assert set(found.data) <= set(DATASETS)
    for size_name, size in found.sizes.items():
        cells = listed(name, size_name)
        assert len({cell.label for cell in cells}) == len(cells)
        for each in cells:
            assert set(each.published) <= set(found.columns)
            for one in each.variants.values():
                assert one.federation.simulation.dataset.name in found.data
                assert one.seeds == tuple(range(size.seeds))
                (method,) = one.methods
                method_of(method)
                if size_name == "default":
                    data = one.to_json()
                    assert SimulationRequest.from_json(data).to_json() == data
    labels = {each.label for each in listed(name, "full")}
    assert all(labels.issuperset(claim.needs) for claim in found.claims)
    made = {"packages": {}, "device": "cpu", "processors": 2, "python": "CPython", "git": None}
    where = {"command": "fedpeer", "environment": made, "workers": 1}
    nothing = page_data(found, found.sizes["default"], "default", listed(name, "default"), {}, where)
    assert f"# {found.title}" in table_page(nothing)
    assert f"{COLUMNS[found.columns[0]].title}: {COLUMNS[found.columns[0]].meant}" in table_page(nothing)


def test_a_page_says_what_was_measured(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "source_commit", lambda: "0123456789ab, changed")
    lab.scores = lambda method, optimizer: {
        "validation_server_accuracy": 0.5,
        "server_accuracy": 0.25 if method == "fedavg" else 0.75,
    }
    assert run_experiment(wanted(tmp_path))
    data = read_json(wanted(tmp_path).folder / "results.json")
    text = table_page(data)
    mean = float(np.mean([[50, 60, 70], [50, 60, 80]]))
    assert f"| Local | 90.0 ± 0.1 | {mean:.1f} ± 1.7 | 75.0 ± 0.0 |" in text
    assert "All of it is small." in text
    assert "alone they reach" not in text, "the paper's numbers are judged at the paper's size"
    assert "nothing beats it" not in text, "that cell is not in this size"
    assert "| it helps | **not held** |" in text
    assert "| FedAvg | lr=0.5 | lr=0.5: 50.0, lr=0.1: 50.0 |" in text
    assert "$ fedpeer experiment run tiny" in text
    assert text.endswith(", revision 0123456789ab, changed.\n"), "fedpeer's own, not that of the working folder"
    assert "best round" not in text, "where nothing was kept back none is chosen"
    assert table_page(json.loads(json.dumps(data))) == text
    assert run_experiment(wanted(tmp_path, "full"))
    text = table_page(read_json(wanted(tmp_path, "full").folder / "results.json"))
    assert "| alone they reach 0.1 | not judged | 60.0 beside 0.1; one run cannot be told from noise |" in text


def test_statistics_are_of_those_who_have_them(lab: Lab, tmp_path: Path) -> None:
    lab.scores = lambda method, optimizer: {"validation_server_accuracy": 0.5}
    assert run_experiment(wanted(tmp_path))
    local = found(wanted(tmp_path))["Local"]
    assert COLUMNS["update"].values(local) == (2.0, 2.001), "the first was never asked; in KB"
    assert COLUMNS["sent"].values(local) == (3e-6,), "6 bytes in two rounds of which one was recorded"


def test_the_worst_tenth_is_at_least_one_peer(lab: Lab, tmp_path: Path) -> None:
    lab.scores = lambda method, optimizer: {"validation_server_accuracy": 0.5}
    assert run_experiment(wanted(tmp_path))
    assert COLUMNS["worst"].values(found(wanted(tmp_path))["Local"]) == (50.0, 50.0)
    row = {"method": "local", "seed": 0, "round": 1, "accuracy": [0.9, None, *[0.1 * p for p in range(10)]]}
    rows = [{**row, "loss": [0.0] * 12, "tested": [1] * 12, "bytes_sent": [0] * 12, "messages_sent": [0] * 12}]
    made = Measured.of("A", [{**rows[0], "seconds": 0.1, "disagreement": {}}], variant="", tried={}, seconds=0.0)
    assert made.statistics["worst tenth"] == (0.0,), "two of twelve: the one without a score, and the one with 0"


@pytest.mark.slow
def test_real_runs_go_on_to_the_same_numbers(tmp_path: Path) -> None:
    """An experiment that is stopped within a run and continued has the numbers of an undisturbed one."""

    class Stopping(threading.Event):
        def __call__(self, event: object) -> None:
            match event:
                case OfRun(event=RoundDone(method="fedavg", round=1)):
                    self.set()

    stop = Stopping()
    assert not run_experiment(wanted(tmp_path / "stopped", "quick"), stop, stop)
    assert run_experiment(wanted(tmp_path / "stopped", "quick"))
    assert run_experiment(wanted(tmp_path / "whole", "quick"))
    stopped, whole = (found(wanted(tmp_path / each, "quick")) for each in ("stopped", "whole"))
    assert {label: each.per_seed for label, each in stopped.items()} == {k: each.per_seed for k, each in whole.items()}
    assert set(whole["FedAvg"].per_seed) == {"PM", "MT", "GM", "S"}
    assert set(whole["Local"].per_seed) == {"PM", "MT"}
    assert not list(tmp_path.glob("**/models")), "no table looks at them"
    assert Choice("digits") == request("local", SIZES["quick"]).federation.simulation.dataset


def test_beside_the_last_round_is_the_mean_of_the_last_ten_if_all_were_evaluated() -> None:
    def row(seed: int, round: int) -> dict[str, Any]:
        scores = {"accuracy": [0.5, 0.5], "server_accuracy": [0.01 * round + seed / 10] * 2, "tested": [1, 3]}
        return {"method": "A", "seed": seed, "round": round, "seconds": 1.0, "loss": [0.0] * 2, "disagreement": {},
                "bytes_sent": [0, 0], "messages_sent": [0, 0], "weight": {}, **scores}  # fmt: skip

    def measured(rows: list[dict[str, Any]]) -> Measured:
        return Measured.of("A", rows, variant="", tried={}, seconds=1.0)

    rows = [row(seed, number) for seed in (1, 0) for number in range(1, 13)]
    made = measured(rows)
    assert COLUMNS["late GM"].values(made) == pytest.approx((7.5, 17.5)), "rounds 3 to 12"
    assert COLUMNS["GM"].values(made) == pytest.approx((12.0, 22.0))
    assert COLUMNS["late GM"].best(made) is None
    assert Measured.from_json(json.loads(json.dumps(made.to_json()))) == made
    unknown = {"accuracy": None, "server_accuracy": None}
    assert measured([each | (unknown if each["round"] == 4 else {}) for each in rows]).late == {}
    assert measured([each for each in rows if each["round"] <= 9]).late == {}, "there are no ten"


def test_further_metrics_are_means_over_the_peers_that_have_them() -> None:
    row = {"method": "A", "seed": 0, "round": 1, "seconds": 1.0, "accuracy": [0.5] * 3, "loss": [0.0] * 3,
           "tested": [1] * 3, "bytes_sent": [0] * 3, "messages_sent": [0] * 3, "disagreement": {},
           "metrics": {"auc": [0.5, None, 0.75]}}  # fmt: skip
    made = Measured.of("A", [row], variant="", tried={}, seconds=0.0)
    assert COLUMNS["auc"].values(made) == (0.625,)


def test_what_a_seed_that_diverged_lacks_is_left_out_and_the_page_can_be_read_again() -> None:
    row = {"method": "A", "seed": 0, "round": 1, "seconds": 1.0, "accuracy": [0.5] * 2, "loss": [0.1] * 2,
           "server_accuracy": [0.5] * 2, "tested": [1] * 2, "bytes_sent": [0] * 2, "messages_sent": [0] * 2,
           "disagreement": {"low": 0.25, "top": 0.5}, "metrics": {"auc": [0.75] * 2}}  # fmt: skip
    lost = row | {"seed": 1, "loss": [None] * 2, "server_accuracy": [None] * 2, "metrics": {"auc": [None] * 2}}
    lost["disagreement"] = {"low": None, "top": None}
    one, two = (Measured.of("A", rows, variant="", tried={}, seconds=0.0) for rows in ([row], [row, lost]))
    assert [COLUMNS[name].values(one) for name in ("disagreement", "auc", "GM", "PM")] == [(50,), (0.75,), (50,), (50,)]
    read = Measured.from_json(json.loads(dumps(two.to_json())))
    assert [COLUMNS[name].values(read) for name in ("disagreement", "auc", "GM", "PM")] == [None, None, None, (50, 50)]


def test_a_column_that_no_line_has_is_left_out(lab: Lab, tmp_path: Path) -> None:
    lab.scores = lambda method, optimizer: {"validation_server_accuracy": 0.5}
    options = replace(wanted(tmp_path), experiment=replace(TINY, columns=("PM", "auc", "late GM")))
    assert run_experiment(options)
    text = table_page(read_json(options.folder / "results.json"))
    assert "AUC" not in text
    assert "last 10 rounds" not in text


def test_the_loss_is_that_of_the_round_that_is_best_on_examples_kept_back() -> None:
    def row(seed: int, round: int, loss: list[float], kept_back: list[float | None] | None) -> dict[str, Any]:
        validation = {} if kept_back is None else {"validation_accuracy": [0.5, 0.5], "validation_loss": kept_back}
        score = {"accuracy": [0.5, 0.5], "tested": [10, 30], "disagreement": {}, "bytes_sent": [0, 0]}
        return {"method": "A", "seed": seed, "round": round, "loss": loss, "seconds": 1.0, **score, **validation}

    def measured(rows: list[dict[str, Any]]) -> Measured:
        return Measured.of("A", [{"messages_sent": [0, 0], "weight": {}, **each} for each in rows],
                           variant="", tried={}, seconds=1.0)  # fmt: skip

    rows = [row(0, 1, [0.4, 0.2], [0.3, 0.1]), row(0, 2, [0.1, 0.1], [0.5, 0.5]), row(1, 2, [0.6, 0.2], [0.2, 0.2])]
    assert measured(rows[:2]).statistics["loss"] == pytest.approx((0.3,))
    assert measured(rows[:2]).statistics["loss by examples"] == pytest.approx((0.25,))
    both = [*rows[:2], row(1, 1, [9.0, 9.0], [9.0, 9.0]), rows[2]]
    assert measured(both).statistics["loss"] == pytest.approx((0.3, 0.4))
    small = [row(0, 1, [0.4, 0.2], [0.3, None]), row(0, 2, [0.1, 0.1], [0.5, None])]
    assert measured(small).statistics["loss"] == pytest.approx((0.3,)), "the second peer holds out no example"
    last = [row(0, 1, [0.1, 0.1], None), row(0, 2, [0.4, 0.2], None)]
    assert measured(last).statistics["loss"] == pytest.approx((0.3,))
    judged = {**rows[1], "metrics": {"auc": [0.7, 0.9]}}
    assert measured([judged]).statistics["auc"] == pytest.approx((0.8,))
    assert measured([judged]).statistics["auc by examples"] == pytest.approx((0.85,))
    judged["metrics"] = {"auc": [None, 0.9]}  # the first peer's test part has one class
    assert measured([judged]).statistics["auc by examples"] == pytest.approx((0.9,))
