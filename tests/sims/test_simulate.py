"""A whole simulation: its records and events, stopping and resuming it, and that its seed determines a run."""

from __future__ import annotations

import itertools
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from fedpeer.algorithms.answer_metrics import ece, f1
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.config.choice import ChoiceError, parse_choice
from fedpeer.config.problems import ConfigError
from fedpeer.config.settings import EngineName
from fedpeer.data.dataset import Dataset
from fedpeer.learning.holdings import load_dataset
from fedpeer.learning.models import load_model
from fedpeer.networks.registry import NetworkError
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.history import histories
from fedpeer.runs.summary import summarise
from fedpeer.sims import api, record
from fedpeer.sims.events import MethodDone, MethodStarted, Remark, RoundDone, SimulationEvent, SimulationStarted
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.simulate import run_prepared, unused_settings
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.vector.gossip_rounds import GossipRounds
from fedpeer.sims.world import World, build_world
from tests.sims.worlds import federation, start_of


def request(**settings: Any) -> SimulationRequest:
    return SimulationRequest(federation=federation(**settings), seeds=(0, 1), device="cpu", workers=1)


def two_methods() -> SimulationRequest:
    """Return a request of twelve rounds: for each seed, three without and three with averaging."""
    return replace(request(), methods=(parse_choice("local"), parse_choice("partial-averaging")))


def folder(root: Path, options: SimulationRequest) -> RunFolder:
    return RunFolder.create(root, name="test", settings=options.to_json(), environment={})


def measured(run: RunFolder) -> list[dict[str, Any]]:
    """Return all rows without the measured seconds."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in run.rows()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Return an uninterrupted run of two methods by two workers; tests only read it."""
    options = replace(two_methods(), workers=2)
    run = folder(tmp_path_factory.mktemp("whole"), options)
    run_prepared(prepare_simulation(options), run)
    return run


def test_metrics_are_those_of_the_models_that_are_kept(tmp_path: Path) -> None:
    """Each engine leaves models, and metrics are measured on them, so a test of one engine is enough."""
    settings = {"simulation__metrics": ["f1", "ece,bins=5"], "simulation__validation": 0.25}
    options = replace(request(**settings), seeds=(0,), methods=(parse_choice("local"),))
    run = folder(tmp_path, options)
    summary = run_prepared(prepare_simulation(options), run)
    world = build_world(options.federation, load_dataset(options.federation.simulation.dataset), 0)
    rows, tensors = run.rows(), run.models("local", 0)
    assert [row["round"] for row in rows if "metrics" in row] == [3], "of the last models alone"
    confused = np.zeros((10, 10), np.int64)
    for number, peer in enumerate(world.peers):
        model = load_model(tensors, tensors.with_suffix(".json"), peer, pytest.fail)
        x, y = world.held(number).tested(world.dataset)
        answers = model.answers(x)
        assert rows[-1]["metrics"]["f1"][number] == pytest.approx(f1(y, answers))
        assert rows[-1]["metrics"]["ece,bins=5"][number] == pytest.approx(ece(y, answers, bins=5))
        kept_back, right = world.held(number).tested(world.dataset, validation=True)
        assert len(right)
        assert rows[-1]["validation_metrics"]["f1"][number] == pytest.approx(f1(right, model.answers(kept_back)))
        np.add.at(confused, (y.astype(np.int64), answers.argmax(1)), 1)
    per_peer = rows[-1]["metrics"]["f1"]
    assert summary["methods"]["local"]["metrics"]["f1"]["mean"] == pytest.approx(np.mean(per_peer))
    described = run.read("answers")
    assert described is not None
    assert described["local"]["confusion"] == confused.tolist()
    assert sum(count for *_, count in described["local"]["reliability"]) == confused.sum()


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("engine", ["vector", "network", pytest.param("processes", marks=pytest.mark.slow)])
def test_every_run_counts_the_confusions_of_its_last_models(engine: EngineName, tmp_path: Path) -> None:
    """Right answers are on the diagonal, so each peer's accuracy follows from the matrix. No metric is asked for."""
    options = request(learning__rounds=2, simulation__peers=2)
    options = replace(options, engine=engine, seeds=(0,), methods=(parse_choice("local"), parse_choice("fedavg")))
    run = folder(tmp_path, options)
    run_prepared(prepare_simulation(options), run)
    answers = run.read("answers")
    assert answers is not None
    last = {row["method"]: row for row in run.rows() if row["round"] == 2}
    assert answers.keys() == last.keys() == {"local", "fedavg"}
    for method, row in last.items():
        assert answers[method].keys() == {"classes", "confusion"}
        confusion_CC = np.array(answers[method]["confusion"])
        assert np.diag(confusion_CC).sum() == pytest.approx(np.dot(row["accuracy"], row["tested"]))
        assert confusion_CC.sum() == sum(row["tested"])
        assert "metrics" not in row


def test_confusions_cost_one_look_at_few_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last seed's matrix is kept; the answers of a large simulation would take minutes."""
    options = replace(request(learning__rounds=1, simulation__peers=2), seeds=(0, 1), methods=(parse_choice("local"),))
    asked = []

    def answers_of(world: World, *others: Any, **more: Any) -> record.Answered:
        asked.append(world.seed)
        return record.Answered(values={}, failed={}, described={})

    monkeypatch.setattr(record, "answers_of", answers_of)
    made = prepare_simulation(options)
    run_prepared(made, folder(tmp_path / "few", options))
    assert asked == [1]
    tested = sum(len(share.test_M) for share in made.worlds[1].split.shares)
    monkeypatch.setattr(record, "ANSWERS_MAX", tested - 1)
    run_prepared(prepare_simulation(options), folder(tmp_path / "many", options))
    assert asked == [1]


def test_many_classes_are_counted_only_where_metrics_are_asked_for(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    y = np.tile(np.arange(17), 8)
    data = Dataset(name="letters", x=draws.normal(size=(len(y), 4)).astype(np.float32), y=y, task="classification",
                   input_kind="features", classes=tuple("abcdefghijklmnopq"))  # fmt: skip
    for metrics, kinds in (((), None), (("f1",), {"classes", "confusion", "reliability"})):
        settings = {"simulation": {"peers": 2, "split": "iid", "metrics": list(metrics)}, "learning": {"rounds": 1}}
        found = api.simulate(data, "mlp:4+5+17", federation=settings, methods=["local"], device="cpu", workers=1,
                             out=tmp_path)  # fmt: skip
        answers = RunFolder(found.folder).read("answers")
        assert (answers and answers["local"].keys()) == kinds


def test_calibration_is_measured_where_an_algorithm_is_bayesian_and_targets_decide_what_fits() -> None:
    methods = tuple(map(parse_choice, ("fedavg", "virtual", "pfedvem", "pfedvem-gossip")))
    options = replace(request(simulation__metrics=["f1", "ece"]), seeds=(0,), methods=methods)
    found = {name: list(metrics) for name, metrics in prepare_simulation(options).metrics.items()}
    bayesian = ["f1", "ece", "log-loss", "brier"]
    assert found == {"fedavg": ["f1", "ece"], **dict.fromkeys(("virtual", "pfedvem", "pfedvem-gossip"), bayesian)}
    with pytest.raises(ChoiceError, match="r2 is for regression"):
        prepare_simulation(request(simulation__metrics=["r2"]))
    with pytest.raises(ConfigError, match='did you mean "auc"'):
        request(simulation__metrics=["acu"])


def test_a_request_survives_its_settings_file() -> None:
    options = request(
        partial_models={"a": {"neurons": {"hidden1": 3, "input": "all", "output": [1, 2]}, "members": ["peer1"]}}
    )
    assert SimulationRequest.from_json(options.to_json()) == options


def test_everything_is_recorded_told_and_saved(tmp_path: Path) -> None:
    options, events = request(), list[SimulationEvent]()
    run = folder(tmp_path, options)
    summary = run_prepared(prepare_simulation(options), run, events.append)
    assert isinstance(events[0], SimulationStarted)
    assert events[0].cells == tuple((m, s) for s in (0, 1) for m in ("local", "partial-averaging", "full-averaging"))
    assert [type(each) for each in events[1:]] == [MethodStarted, RoundDone, RoundDone, RoundDone, MethodDone] * 6
    rows = run.rows()
    assert [(row["method"], row["seed"], row["round"]) for row in rows] == [
        (method, seed, number)
        for method, seed in [(m, s) for s in (0, 1) for m in summary["methods"]]
        for number in (1, 2, 3)
    ]
    last = {(row["method"], row["seed"]): row for row in rows}
    told = {(e.method, e.seed): e for e in events if isinstance(e, RoundDone)}
    for key, row in last.items():
        assert told[key].score_P == tuple(row["accuracy"])
        models = load_file(run.path / "models" / f"{key[0]}-seed{key[1]}.safetensors")
        assert models["peer6/hidden1.weight"].shape == (12, 64)
    for method, found in summary["methods"].items():
        per_peer = np.mean([last[method, seed]["accuracy"] for seed in (0, 1)], axis=0)
        assert found["accuracy_per_peer"] == pytest.approx(per_peer.tolist())
    assert run.status == "finished"
    graphs = run.read("graphs")
    assert graphs is not None, "the report draws them"
    assert [len(graph["edges"]) for graph in graphs["groups"]] == [6]
    assert summary["methods"]["local"]["bytes_sent"] == 0
    # Six peers on a ring, two neighbors, two exchanges, three rounds; a share is all of 64-12-10, its
    # head and its acknowledgement.
    sent = 6 * 2 * 2 * 3
    assert summary["methods"]["full-averaging"]["messages_sent"] == sent
    assert summary["methods"]["full-averaging"]["bytes_sent"] == sent * (4 * (65 * 12 + 13 * 10) + 300)


@pytest.mark.slow
def test_a_run_is_its_seed(tmp_path: Path, whole: RunFolder) -> None:
    options = two_methods()
    again = folder(tmp_path, options)
    run_prepared(prepare_simulation(options), again)
    assert measured(again) == measured(whole)
    by_seed = {row["seed"]: row for row in measured(whole) if (row["method"], row["round"]) == ("local", 3)}
    assert by_seed[0]["accuracy"] != by_seed[1]["accuracy"]


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(1, marks=pytest.mark.soak, id="in a method that does not average"),
        pytest.param(4, id="in a method that averages"),
        pytest.param(6, marks=pytest.mark.slow, id="between two seeds"),
    ],
)
def test_stopped_and_resumed_it_gives_the_numbers_of_an_uninterrupted_run(
    tmp_path: Path, after: int, whole: RunFolder
) -> None:
    options = two_methods()
    broken = folder(tmp_path, options)
    stop, rounds = threading.Event(), 0

    def on_event(event: SimulationEvent) -> None:
        nonlocal rounds
        rounds += isinstance(event, RoundDone)
        if rounds == after:
            stop.set()

    partial = run_prepared(prepare_simulation(options), broken, on_event, stop)
    assert broken.status == "interrupted"
    assert partial["methods"]
    again = RunFolder.open(tmp_path, broken.id)
    assert list(run_prepared(prepare_simulation(options), again)["methods"]) == ["local", "partial-averaging"]
    assert measured(again) == measured(whole)
    assert again.read("answers") == whole.read("answers")
    assert again.status == "finished"


def test_the_best_models_are_the_same_if_the_run_was_stopped(tmp_path: Path) -> None:
    """A large learning rate makes rounds that are worse than earlier ones, so that the last is not always the best."""
    settings = {"simulation__validation": 0.3, "learning__rounds": 8, "learning__optimizer": "sgd,lr=2"}
    options = replace(request(**settings), seeds=(0,), methods=(parse_choice("partial-averaging"),))
    complete, broken = folder(tmp_path / "complete", options), folder(tmp_path / "broken", options)
    run_prepared(prepare_simulation(options), complete)
    stop = threading.Event()

    def on_event(event: SimulationEvent) -> None:
        if isinstance(event, RoundDone) and event.round == 7:
            stop.set()

    run_prepared(prepare_simulation(options), broken, on_event, stop)
    assert broken.status == "interrupted"
    run_prepared(prepare_simulation(options), broken)
    one, other = (run.models("partial-averaging", 0, best=True) for run in (complete, broken))
    rounds = json.loads(one.with_name(f"{one.stem}-rounds.json").read_text())
    assert rounds == json.loads(other.with_name(f"{other.stem}-rounds.json").read_text())
    mine, theirs = load_file(one), load_file(other)
    assert mine.keys() == theirs.keys()
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    rows = complete.rows()
    for number, peer in enumerate(rounds):
        best = max(rows, key=lambda row: (row["validation_accuracy"][number], -row["validation_loss"][number]))
        assert rounds[peer]["round"] == best["round"]
    assert min(found["round"] for found in rounds.values()) < 8, "for some the best was before the stop"
    told = summarise(rows)["partial-averaging"]["best_models"]
    assert told["per_peer"] == [rows[each["round"] - 1]["accuracy"][n] for n, each in enumerate(rounds.values())]
    assert (told["mean"], told["peers"]) == (pytest.approx(np.mean(told["per_peer"])), len(rounds))


@pytest.mark.parametrize("engine", ["vector", "network"])
def test_of_a_table_each_engine_holds_the_same_rows_out_by_default(tmp_path: Path, engine: EngineName) -> None:
    rows = [f"{n % 7},{n % 3},{'ill' if n % 5 == 0 else 'well'}" for n in range(300)]
    (tmp_path / "ward.csv").write_text("\n".join(["a,b,outcome", *rows]) + "\n")
    settings = {"simulation": {"peers": 2, "split": "iid", "dataset": f"csv:{tmp_path}/ward.csv,label=outcome"},
                "learning": {"rounds": 1}}  # fmt: skip
    found = api.simulate(federation=settings, methods=["local"], engine=engine, workers=1, device="cpu", out=tmp_path)
    [row] = RunFolder(found.folder).rows()
    held_out = [peer["held_out"] for peer in (RunFolder(found.folder).read("split") or {})["peers"]]
    assert held_out == [11, 11]
    assert len(row["validation_accuracy"]) == 2


@pytest.mark.parametrize("method", ["partial-averaging", "fedavg"])
def test_peers_with_too_few_examples_hold_none_out(tmp_path: Path, method: str) -> None:
    """Two of three peers have two examples to train on, of which a tenth is none."""
    draws = np.random.default_rng(0)
    user_N = np.repeat([0, 1, 2], [40, 3, 3])
    x, y = draws.normal(size=(46, 4)).astype(np.float32), np.tile([0, 1], 23)
    data = Dataset(name="wards", x=x, y=y, task="classification", input_kind="features", classes=("well", "ill"),
                   user_N=user_N, user_names=("big", "small", "tiny"))  # fmt: skip
    settings = {"simulation": {"peers": 3, "split": "user", "validation": 0.1},
                "learning": {"rounds": 2, "batch_size": 2}}  # fmt: skip
    said: list[SimulationEvent] = []
    found = api.simulate(data, "mlp:4+5+2", federation=settings, methods=[method], device="cpu", workers=1,
                         out=tmp_path, on_event=said.append)  # fmt: skip
    assert "2 of 3 peers have too few examples to hold one out for validation" in [
        each.text for each in said if isinstance(each, Remark)
    ]
    for row in RunFolder(found.folder).rows():
        assert [score is None for score in row["validation_accuracy"]] == [False, True, True]
        assert None not in row["accuracy"]
    assert found.summary["methods"][method]["scores"]["PM"]["best_by"] == "validation"
    assert found.state_dict(method, "peer1", best=True)
    with pytest.raises(KeyError, match="no best model of peer2: it holds out no example"):
        found.state_dict(method, "peer2", best=True)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["evaluate", "disagreement", "close"])
def test_a_stop_within_a_round_loses_no_row(
    tmp_path: Path, phase: str, monkeypatch: pytest.MonkeyPatch, whole: RunFolder
) -> None:
    options = two_methods()
    broken = folder(tmp_path, options)
    of = GossipRounds if phase == "close" else VectorEngine
    stop, original, calls = threading.Event(), getattr(of, phase), itertools.count()

    def stopping(self: Any, *arguments: Any) -> Any:
        if next(calls) == 2:
            stop.set()
        return original(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(of, phase, stopping)
        run_prepared(prepare_simulation(options), broken, stop=stop)
    assert len(broken.rows()) < len(whole.rows())
    run_prepared(prepare_simulation(options), RunFolder.open(tmp_path, broken.id))
    assert measured(broken) == measured(whole)


def test_a_run_that_was_killed_before_its_models_were_saved_has_them_when_it_is_carried_on(
    tmp_path: Path, whole: RunFolder
) -> None:
    """All rows of the first method are there, and its models are not."""
    options = two_methods()
    killed = folder(tmp_path, options)
    for row in whole.rows()[:3]:
        killed.record(row)
    run_prepared(prepare_simulation(options), killed)
    assert measured(killed) == measured(whole)
    for method in ("local", "partial-averaging"):
        mine, theirs = (load_file(run.models(method, 0)) for run in (killed, whole))
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("stop_after", [2, 4, 5])
def test_a_history_is_the_same_whenever_the_run_was_stopped(tmp_path: Path, stop_after: int) -> None:
    """Every third of seven rounds is evaluated, and the last one: none is missing, and none is there twice."""
    settings = {"learning__rounds": 7, "learning__evaluate_every": 3}
    options = replace(request(**settings), seeds=(0,), methods=(parse_choice("partial-averaging"),))
    complete, broken = folder(tmp_path / "complete", options), folder(tmp_path / "broken", options)
    run_prepared(prepare_simulation(options), complete)
    stop = threading.Event()

    def on_event(event: SimulationEvent) -> None:
        if isinstance(event, RoundDone) and event.round == stop_after:
            stop.set()

    run_prepared(prepare_simulation(options), broken, on_event, stop)
    assert broken.status == "interrupted"
    run_prepared(prepare_simulation(options), broken)
    assert measured(broken) == measured(complete)
    assert [row["round"] for row in broken.rows()] == list(range(1, 8))
    one, other = (histories(run.rows())["partial-averaging"] for run in (complete, broken))
    assert one.round_R.tolist() == other.round_R.tolist() == [3, 6, 7]
    np.testing.assert_array_equal(one.score_RP, other.score_RP)
    np.testing.assert_array_equal(one.bytes_T, other.bytes_T)


@pytest.mark.slow
def test_rows_after_the_last_checkpoint_of_a_killed_run_are_done_again(tmp_path: Path, whole: RunFolder) -> None:
    options = two_methods()
    killed = folder(tmp_path, options)
    for row in whole.rows()[:5]:
        killed.record(row)
    run_prepared(prepare_simulation(options), killed)
    assert measured(killed) == measured(whole)


def test_regression_is_scored_in_the_units_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "line.csv"
    draws = np.random.default_rng(0)
    x = draws.normal(size=(200, 3))
    y = 1000 + 50 * (x @ [1.0, -2.0, 0.5])
    path.write_text("a,b,c,y\n" + "\n".join(",".join(map(str, [*row, value])) for row, value in zip(x, y, strict=True)))
    options = SimulationRequest(
        federation=federation(
            network="mlp:3+12+1,activation=tanh",
            learning__start="torch",
            learning__optimizer="sgd,lr=0.05",
            learning__rounds=12,
            simulation={"dataset": f"csv:{path},label=y,task=regression", "split": "iid", "peers": 4},
        ),
        methods=(parse_choice("full-averaging"),),
        device="cpu",
        workers=1,
    )
    found = run_prepared(prepare_simulation(options), folder(tmp_path, options))["methods"]["full-averaging"]
    assert 0 < found["error_mean"] < 0.3 * y.std()  # a third of the best constant's error; 1000 unless scaled back
    assert found["error_worst"] == max(found["error_per_peer"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "dataset", "words"),
    [
        ("cnn:4,hidden=8,kernel=3,norm=batch", "images", "conv1"),
        ("lstm:6,embedding=4,vocabulary=17", "tokens", "recurrent"),
        ("mlp:64+12+10,dropout=0.5", "digits", "hidden1"),
    ],
)
def test_other_networks_learn_slice_by_slice(tmp_path: Path, network: str, dataset: str, words: str) -> None:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = {"images": x.reshape(-1, 1, 8, 8) / 16, "tokens": x.astype(np.int64), "digits": x / 16}[dataset]
    np.savez(tmp_path / "digits.npz", x=x, y=y)
    kind = {"images": "image", "tokens": "tokens", "digits": "features"}[dataset]
    options = SimulationRequest(
        federation=federation(
            network=network,
            learning__start="torch",
            simulation={
                "dataset": f"npz:{tmp_path / 'digits.npz'},kind={kind}",
                "split": "iid",
                "peers": 3,
                "normalise": "none",
            },
        ),
        methods=(parse_choice("partial-averaging"),),
        device="cpu",
        workers=1,
    )
    run = folder(tmp_path, options)
    run_prepared(prepare_simulation(options), run)
    plan = run.read("plan")
    assert plan is not None
    parts = {part["name"]: part for part in plan["kinds"][0]["parts"]}
    assert 0 < parts[words]["owned"]["everyone"] < parts[words]["size"]
    assert plan["groups"][0]["members"] == ["peer1", "peer2", "peer3"]


def test_batch_normalisation_of_single_examples_is_refused_before_the_run() -> None:
    options = SimulationRequest(
        federation=federation(network="python:tests.sims.test_simulate:normalised", learning__batch_size=1),
        device="cpu",
    )
    with pytest.raises(NetworkError, match="batch_size = 1"):
        prepare_simulation(options)


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))


def test_a_users_own_network_starts_as_it_was_built() -> None:
    options = federation(network="python:tests.sims.test_simulate:normalised")
    module = normalised()
    made = build_world(options, load_dataset(options.simulation.dataset), 0, module)
    x_Pn = start_of(made)
    assert torch.equal(x_Pn, made.layout.flatten(module).expand_as(x_Pn))


def of_width(shape: tuple[int, ...], outputs: int, *, width: int, scale: float) -> nn.Module:
    assert isinstance(scale, float)
    return nn.Sequential(nn.Linear(shape[0], width), nn.ReLU(), nn.Linear(width, outputs))


def failing() -> nn.Module:
    raise KeyError("no weights here")


@pytest.mark.parametrize(
    "network",
    [
        "python:tests.sims.test_simulate:of_width,width=7,scale=0.5",
        {"python": {"function": "tests.sims.test_simulate:of_width", "width": 7, "scale": 0.5}},
    ],
)
def test_a_users_function_gets_its_settings_as_numbers(network: Any) -> None:
    options = federation(network=network)
    made = build_world(options, load_dataset(options.simulation.dataset), 0)
    assert made.module[0].out_features == 7  # type: ignore[index]


def test_a_users_function_that_fails_is_the_users_mistake() -> None:
    options = federation(network="python:tests.sims.test_simulate:failing")
    with pytest.raises(NetworkError, match="KeyError: 'no weights here'"):
        build_world(options, load_dataset(options.simulation.dataset), 0)


def test_a_mistake_of_one_of_several_algorithms_names_it() -> None:
    options = replace(request(), methods=tuple(map(parse_choice, ("fedavg", "fedprox,mu=-1", "ditto"))))
    with pytest.raises(AlgorithmError, match=r"^fedprox: mu = -1: write 0 or more"):
        prepare_simulation(options)


@pytest.mark.parametrize(
    ("engine", "method", "words"),
    [
        ("network", "virtual,exponent=n/N", "unknown here; write 1/K"),
        ("vector", "virtual,beta=13", "steps overshoot"),  # for the peers with the fewest examples
    ],
)
def test_what_an_algorithm_cannot_learn_from_is_found_before_a_run(engine: EngineName, method: str, words: str) -> None:
    options = replace(request(simulation__split="dirichlet:0.5"), engine=engine, methods=(parse_choice(method),))
    with pytest.raises(AlgorithmError, match=words):
        prepare_simulation(options)


@pytest.mark.parametrize(
    ("settings", "methods", "words"),
    [
        ({"learning__participation": 0.5}, ["local", "full-averaging"], ["participation 0.5"]),
        ({"learning__participation": 0.5}, ["local"], ["participation 0.5"]),
        ({"learning__everyone_trains": True}, ["full-averaging"], ["everyone_trains"]),
        ({"learning__everyone_trains": True}, ["full-averaging", "fedavg"], []),
        (
            {"gossip__topology": "ring", "gossip__exchanges": 3, "gossip__drift": 0.1, "gossip__wire": "int8"},
            ["local", "fedavg"],
            ["gossip.topology, gossip.exchanges, gossip.drift, gossip.wire: for algorithms without a server"],
        ),
        ({"gossip__topology": "ring"}, ["partial-averaging", "fedavg"], []),
        (
            {"learning__weights": "samples", "learning__buffers": "local", "learning__optimizer_state": "reset"},
            ["fedavg"],
            [
                "learning.weights, learning.buffers, gossip.topology, gossip.exchanges: for algorithms without",
                "learning.optimizer_state: for algorithms without a server",
            ],
        ),
        ({"learning__optimizer_state": "reset"}, ["local", "full-averaging", "fedavg"], []),
        (
            {"gossip__protocol": "exact", "gossip__topology": "ring", "gossip__exchanges": 3},
            ["partial-averaging"],
            ["gossip.topology, gossip.exchanges: protocol exact takes the mean"],
        ),
        (
            {
                "gossip__protocol": "exact",
                "gossip__topology": "k-regular:4",
                "gossip__exchanges": None,
                "gossip__tolerance": 1e-4,
            },
            ["partial-averaging"],
            [],
        ),
        ({"gossip__every": 9}, ["partial-averaging"], ["gossip.every 9 is above the 3 rounds"]),
    ],
)
def test_settings_that_no_method_uses_are_remarked(
    settings: dict[str, Any], methods: list[str], words: list[str]
) -> None:
    options = replace(request(learning__rounds=3, **settings), methods=tuple(map(parse_choice, methods)))
    found = unused_settings(options)
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True)), found


def test_a_loss_that_is_lost_is_said_once(tmp_path: Path) -> None:
    options = SimulationRequest(
        federation=federation(learning__optimizer="sgd,lr=1e30"),
        methods=(parse_choice("local"),),
        device="cpu",
        workers=1,
    )
    events = list[SimulationEvent]()
    run_prepared(prepare_simulation(options), folder(tmp_path, options), events.append)
    remarks = [event.text for event in events if isinstance(event, Remark)]
    assert len(remarks) == 1
    assert "smaller learning rate" in remarks[0]


def test_objects_handed_over_in_python_are_normalised_like_files(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(1000, 50, (60, 4)).astype(np.float32)
    results = api.simulate(
        (x, (x[:, 0] > 1000).astype(np.int64)),
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)),
        federation={
            "learning": {"rounds": 10, "steps_between_averaging": "pass", "batch_size": 2},
            "simulation": {"peers": 2, "split": "iid"},
        },
        methods=["full-averaging"],
        device="cpu",
        workers=1,
        out=tmp_path,
    )
    settings = RunFolder.open(tmp_path, "last").read("settings")
    assert settings is not None
    assert settings["simulation"]["normalise"] == "standard"
    assert settings["simulation"]["dataset"] != "digits"
    assert settings["objects"] == ["data", "network"]
    assert results.score("full-averaging") > 0.8
    assert results.state_dict("full-averaging", "peer2")["0.weight"].shape == (8, 4)
    with pytest.raises(KeyError, match=r'no peer "north" in .*; there are peer1, peer2'):
        results.state_dict("full-averaging", "north")
    with pytest.raises(FileNotFoundError, match=r"run it with simulation\.validation"):
        results.state_dict("full-averaging", "peer2", best=True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"learning__mode": "asynchronous"}, "learning.mode: asynchronous, nor a slice of this mode"),
        ({"gossip__wire": "int8/zstd"}, "gossip.wire = int8/zstd"),
    ],
)
def test_what_only_whole_peers_can_play_is_refused_with_the_way_out(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        prepare_simulation(SimulationRequest(federation=federation(**settings)))
    assert f'{said}; use engine="network"' in " ".join(str(refusal.value).split())


@pytest.mark.parametrize("engine", ["network", "processes"])
def test_what_whole_peers_have_no_room_to_tell_is_played_by_matrices_only(engine: EngineName) -> None:
    many = federation(partial_models={f"partial-model-{number:02}": {} for number in range(40)})
    request = SimulationRequest(
        federation=many, methods=(parse_choice("local"), parse_choice("partial-averaging")), engine=engine
    )
    with pytest.raises(ConfigError) as refusal:
        prepare_simulation(request)
    assert {problem.path for problem in refusal.value.problems} == {("partial_models",)}
    assert 'or use engine="vector"' in refusal.value.problems[0].text
    prepare_simulation(replace(request, engine="vector"))
    prepare_simulation(replace(request, methods=(parse_choice("local"), parse_choice("full-averaging"))))


@pytest.mark.parametrize(
    ("methods", "unused"),
    [(["partial-averaging", "local"], True), (["partial-averaging", "fedavg"], False), (["local"], True)],
)
def test_that_all_take_part_without_a_server_is_said(methods: list[str], unused: bool, tmp_path: Path) -> None:
    options = SimulationRequest(
        federation=federation(learning__participation=0.5, learning__rounds=1),
        methods=tuple(map(parse_choice, methods)),
        device="cpu",
        workers=1,
    )
    events = list[SimulationEvent]()
    run_prepared(prepare_simulation(options), folder(tmp_path, options), events.append)
    said = [event.text for event in events if isinstance(event, Remark)]
    assert any("participation 0.5" in text for text in said) == unused
