"""A simulation in trackers: settings once, numbers by round, and a failure becomes a remark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeer.cli.main import run
from fedpeer.config.problems import ConfigError
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.trackers.tracker import TrackingError
from fedpeer.sims import api, tracked
from fedpeer.sims.events import Remark, SimulationEvent
from fedpeer.sims.results import Results
from fedpeer.sims.tracked import of_peers
from tests.runs.trackers import Recorder, known_as

SETTINGS: dict[str, Any] = {
    "learning": {"rounds": 3, "steps_between_averaging": 4, "evaluate_every": 2},
    "simulation": {"peers": 3, "split": "blocks:20,test=10"},
}


def simulated(out: Path, tracking: object = "recorder", **more: Any) -> Results:
    given = {"federation": SETTINGS, "methods": ["local", "full-averaging"], "workers": 1, "device": "cpu", **more}
    return api.simulate("digits", "mlp:64+5+10", out=out, tracking=tracking, **given)


@pytest.mark.slow
def test_each_method_has_a_series_of_all_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, remarks = Recorder(), list[SimulationEvent]()
    known_as(monkeypatch, "recorder", recorder)
    found = simulated(tmp_path, seeds=[5], on_event=remarks.append)
    rows = RunFolder(found.folder).rows()
    for method in ("local", "full-averaging"):
        (opened,) = [each for each in recorder.told if each[0] == "open" and each[1].name == f"{method}-seed5"]
        parameters = opened[2]
        assert parameters["learning.rounds"] == 3
        assert (parameters["methods"], parameters["seed"], parameters["network"]) == (method, 5, "mlp:64+5+10")
        numbers = dict(recorder.rows(f"{method}-seed5"))
        own = [row for row in rows if row["method"] == method]
        assert list(numbers) == [1, 2, 3]
        for row in own:
            got = numbers[row["round"]]
            assert got["bytes_sent"] == sum(row["bytes_sent"])
            if row["accuracy"] is None:
                assert not any(name.startswith(("accuracy", "loss")) for name in got)
                continue
            assert [got[f"accuracy/peer{number}"] for number in (1, 2, 3)] == row["accuracy"]
            assert got["accuracy/mean"] == pytest.approx(np.mean(row["accuracy"]))
            assert got["loss/mean"] == pytest.approx(np.mean(row["loss"]))
        assert ("close", f"{method}-seed5") in recorder.told
    assert not any("tracker" in each.text for each in remarks if isinstance(each, Remark))


@pytest.mark.slow
def test_a_tracker_that_fails_is_a_remark_and_changes_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(what: str) -> None:
        raise ConnectionError("no route to host")

    known_as(monkeypatch, "recorder", Recorder(fail=fail))
    told = list[SimulationEvent]()
    found = simulated(tmp_path, on_event=told.append)
    texts = [each.text for each in told if isinstance(each, Remark) and "tracker" in each.text]
    assert texts == [
        "the tracker recorder failed (ConnectionError: no route to host); everything else goes on without it"
    ]
    monkeypatch.setattr(tracked, "GuardedTrackers", pytest.fail)
    assert simulated(tmp_path, tracking=()).score("local") == found.score("local")


@pytest.mark.parametrize("given", ["tensorbord", ["recorder", "recorder"], {"recorder": {"folder": "x"}}, 3])
def test_what_cannot_be_tracked_is_refused_with_its_place(
    given: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_as(monkeypatch, "recorder", Recorder())
    with pytest.raises(ConfigError) as caught:
        simulated(tmp_path, tracking=given)
    assert [problem.path for problem in caught.value.problems] == [("tracking",)]
    assert not list(tmp_path.iterdir())


def test_a_missing_library_is_told_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedpeer.runs.trackers.registry.find_spec", lambda name: None)
    with pytest.raises(TrackingError, match=r"pip install 'fedpeer\[mlflow\]'"):
        simulated(tmp_path, tracking={"mlflow": {"experiment": "wards"}})
    assert run(["simulate", "--tracking", "wandb,mode=offline", "--out", str(tmp_path)]) == 2
    assert "--tracking: wandb is not installed; run  pip install 'fedpeer[wandb]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_line_and_a_file_track(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder()
    known_as(monkeypatch, "recorder", recorder)
    settings = {**SETTINGS, "simulation": {**SETTINGS["simulation"], "tracking": [{"recorder": {"place": "here"}}]}}
    file = tmp_path / "federation.yaml"
    file.write_text(json.dumps(settings))
    words = ["simulate", "--config", str(file), "--compare", "local", "--out", str(tmp_path / "runs"), "--quiet"]
    assert run(words) == 0
    assert len(recorder.rows("local-seed0")) == 3
    assert run([*words, "--tracking", "recorder,place=there"]) == 0
    assert len(recorder.rows("local-seed0")) == 6
    assert "simulation.tracking" not in recorder.told[0][2], "it may name a password"
    capsys.readouterr()


def test_of_many_peers_only_the_range_is_tracked() -> None:
    peers = [f"peer{number}" for number in range(101)]
    assert of_peers("loss", peers, [float(number) for number in range(101)]) == {
        "loss/mean": 50.0, "loss/least": 0.0, "loss/greatest": 100.0
    }  # fmt: skip
    assert of_peers("loss", peers[:2], [1.0, 3.0]) == {"loss/mean": 2.0, "loss/peer0": 1.0, "loss/peer1": 3.0}
