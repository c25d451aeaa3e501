"""Trackers: each writes its events by its library's own calls, and no failure of one stops a run."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpeer.runs.trackers import guarded
from fedpeer.runs.trackers import mlflow as mlflow_tracker
from fedpeer.runs.trackers.guarded import GuardedTrackers
from fedpeer.runs.trackers.mlflow import mlflow
from fedpeer.runs.trackers.registry import TRACKERS, check_installed
from fedpeer.runs.trackers.tensorboard import tensorboard
from fedpeer.runs.trackers.tracker import Series, Tracker, TrackingError, flattened
from fedpeer.runs.trackers.wandb import wandb
from tests.runs.trackers import Recorder
from tests.runs.trackers import library as fake_library

PARAMETERS = {"learning.rounds": 3, "learning.optimizer": "sgd,lr=0.1", "name": "wards"}


def series(home: Path, first: int = 1) -> Series:
    return Series(id="run-1/local-seed0", name="local-seed0", group="run-1", home=home, first=first)


def told(tracker: Tracker, home: Path, rounds: range, first: int = 1) -> None:
    log = tracker.open(series(home, first), PARAMETERS)
    for number in rounds:
        log.add({"accuracy/mean": number / 4, "bytes_sent": 100.0 * number}, number)
    log.close()


# ------------------------------------------------------------------------------------------------------------- guarded


def test_all_trackers_get_all_calls_in_order(tmp_path: Path) -> None:
    one, two = Recorder(), Recorder()
    trackers = GuardedTrackers({"one": one, "two": two})
    trackers.open(series(tmp_path), PARAMETERS)
    for number in (1, 2):
        trackers.add("run-1/local-seed0", {"loss": 1 / number}, number)
    trackers.open(series(tmp_path, 3), PARAMETERS)
    trackers.close()
    assert one.told == two.told
    assert [each[0] for each in one.told] == ["open", "add", "add", "close", "open", "close"]
    assert one.rows("local-seed0") == [(1, {"loss": 1.0}), (2, {"loss": 0.5})]
    assert trackers.warnings() == []
    assert trackers.seconds > 0


@pytest.mark.parametrize("where", ["open", "add", "close"])
@pytest.mark.parametrize("error", [ConnectionError("server away\nsecond line"), SystemExit(1)])
def test_one_that_fails_is_left_out_with_one_warning(where: str, error: BaseException, tmp_path: Path) -> None:
    def fail(what: str) -> None:
        if what == where:
            raise error

    bad, good = Recorder(fail=fail), Recorder()
    trackers = GuardedTrackers({"bad": bad, "good": good})
    trackers.open(series(tmp_path), PARAMETERS)
    for number in (1, 2, 3):
        trackers.add("run-1/local-seed0", {"loss": 1.0}, number)
    trackers.end("run-1/local-seed0")
    trackers.close()
    (warning,) = trackers.warnings()
    assert warning.startswith(f"the tracker bad failed ({type(error).__name__}: ")
    assert "second line" not in warning
    assert len(good.rows("local-seed0")) == 3
    assert len(bad.rows("local-seed0")) == (3 if where == "close" else 0)


def test_one_that_hangs_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "WAITING_MAX", 3)
    free = threading.Event()
    slow, stuck = (Recorder(fail=lambda what: free.wait()) for _ in range(2))
    trackers = GuardedTrackers({"slow": slow}, patience=0.01)
    trackers.open(series(tmp_path), PARAMETERS)
    for number in range(1, 9):
        trackers.add("run-1/local-seed0", {"loss": 1.0}, number)
    trackers.close()
    assert trackers.warnings() == ["the tracker slow does not keep up; everything else goes on without it"]
    trackers = GuardedTrackers({"stuck": stuck}, patience=0.01)
    trackers.open(series(tmp_path), PARAMETERS)
    trackers.close()
    assert trackers.warnings() == ["the tracker stuck has not finished in time; everything else goes on without it"]
    free.set()


def test_what_is_not_installed_is_told_with_its_extra() -> None:
    check_installed([], "simulation.tracking")
    check_installed(["torch"], "simulation.tracking")
    with pytest.raises(
        TrackingError, match=r"tracking: no_such_library is not installed; .*fedpeer\[no_such_library\]"
    ):
        check_installed(["torch", "no_such_library"], "tracking")


def test_settings_are_parameters_by_dotted_path() -> None:
    settings = {"name": "wards", "learning": {"rounds": 3, "class_weights": {"ill": 2.0}}, "methods": ["a", "b"]}
    assert flattened(settings) == {
        "name": "wards", "learning.rounds": 3, "learning.class_weights.ill": 2.0, "methods": "a, b"
    }  # fmt: skip


def test_each_tracker_has_an_extra_of_its_name() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f'\n{name} = ["{name}' in text for name in TRACKERS)


# --------------------------------------------------------------------------------------------------------- TensorBoard


def test_tensorboard_writes_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told(tensorboard(), tmp_path, range(1, 4))
    told(tensorboard(), tmp_path, range(3, 6), first=3)
    events = EventAccumulator(str(tmp_path / "tensorboard/local-seed0"))
    events.Reload()
    found = [(each.step, each.value) for each in events.Scalars("accuracy/mean")]
    assert found == [(number, number / 4) for number in range(1, 6)], "the third round counts once"
    (text,) = events.Tensors("settings/text_summary")
    assert b"| learning.optimizer | sgd,lr=0.1 |" in text.tensor_proto.string_val[0]


def test_tensorboard_has_a_folder_of_the_users_own(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    told(tensorboard(folder=str(tmp_path / "all")), tmp_path, range(1, 2))
    (file,) = (tmp_path / "all/run-1/local-seed0").glob("events.out.*")
    values = [[value.tag for value in event.summary.value] for event in EventFileLoader(str(file)).Load()]
    assert ["accuracy/mean", "bytes_sent"] in values, "a round is one event, which costs a fraction of one a number"


# -------------------------------------------------------------------------------------------------------------- MLflow


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_a_run_for_each_series(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    told(mlflow(uri=uri, experiment="wards"), tmp_path, range(1, 3))
    told(mlflow(uri=uri, experiment="wards"), tmp_path, range(3, 5), first=3)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("wards")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("local-seed0", "FINISHED")
    assert run.data.params == {name: str(value) for name, value in PARAMETERS.items()}
    history = client.get_metric_history(run.info.run_id, "accuracy/mean")
    assert sorted((each.step, each.value) for each in history) == [(n, n / 4) for n in range(1, 5)]


class FakeMlflow:
    """The calls of MLflow's client that its documentation names, and nothing else."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.runs: list[Any] = []

    def client(self, tracking_uri: str | None = None) -> FakeMlflow:
        self.calls.append(("MlflowClient", tracking_uri))
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="7") if self.runs else None

    def create_experiment(self, name: str) -> str:
        self.calls.append(("create_experiment", name))
        return "7"

    def search_runs(self, experiment_ids: list[str], filter_string: str = "", *, max_results: int = 1000) -> list[Any]:
        return [run for run in self.runs if f"'{run.tag}'" in filter_string]

    def create_run(self, experiment_id: str, *, tags: dict[str, str], run_name: str) -> Any:
        self.runs.append(SimpleNamespace(info=SimpleNamespace(run_id=run_name), tag=tags["fedpeer.series"]))
        return self.runs[-1]

    def update_run(self, run_id: str, status: str) -> None:
        self.calls.append(("update_run", run_id, status))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self.calls.append(("log_batch", run_id, list(metrics), list(params)))

    def set_terminated(self, run_id: str) -> None:
        self.calls.append(("set_terminated", run_id))


def test_mlflow_is_called_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMlflow()
    monkeypatch.setattr(mlflow_tracker, "SENT_EVERY_S", math.inf)  # rounds that follow one another at once
    fake_library(monkeypatch, "mlflow", MlflowClient=fake.client)
    fake_library(
        monkeypatch, "mlflow.entities", Param=lambda *p: p, Metric=lambda key, value, time, step: (key, value, step)
    )
    told(mlflow(uri="http://host:5000"), tmp_path, range(1, 2))
    told(mlflow(uri="http://host:5000"), tmp_path, range(2, 4), first=2)
    name, numbers = "local-seed0", {"accuracy/mean": 0.25, "bytes_sent": 100.0}
    assert fake.calls == [
        ("MlflowClient", "http://host:5000"),
        ("create_experiment", "fedpeer"),
        ("log_batch", name, [], [(key, str(value)) for key, value in PARAMETERS.items()]),
        ("log_batch", name, [("accuracy/mean", 0.25, 1), ("bytes_sent", 100.0, 1)], []),
        ("set_terminated", name),
        ("MlflowClient", "http://host:5000"),
        ("update_run", name, "RUNNING"),
        ("log_batch", name, [(key, n * value, n) for n in (2, 3) for key, value in numbers.items()], []),
        ("set_terminated", name),
    ]


# ---------------------------------------------------------------------------------------------------- Weights & Biases


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_a_run_offline(tmp_path: Path) -> None:
    library = pytest.importorskip("wandb")
    told(wandb(mode="offline"), tmp_path, range(1, 4))
    library.teardown()  # as at the end of a process; before that, its files may lack the end
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    (file,) = run.glob("run-*.wandb")
    content = file.read_bytes()
    assert b"accuracy/mean" in content
    assert b"learning.optimizer" in content


def test_wandb_is_called_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Run:
        def log(self, data: dict[str, Any], step: int | None = None) -> None:
            calls.append(("log", data, step))

        def finish(self) -> None:
            calls.append(("finish",))

    def init(**given: Any) -> Run:
        calls.append(("init", given))
        return Run()

    fake_library(monkeypatch, "wandb", init=init, Settings=lambda **given: given)
    told(wandb(project="wards", mode="offline"), tmp_path, range(1, 2))
    (name, given), *rest = calls
    assert name == "init"
    assert given["config"] == PARAMETERS
    assert len(given.pop("id")) == 16
    expected = {"project": "wards", "mode": "offline", "name": "local-seed0", "group": "run-1", "dir": str(tmp_path)}
    assert given.items() >= expected.items()
    assert rest == [("log", {"accuracy/mean": 0.25, "bytes_sent": 100.0}, 1), ("finish",)]
