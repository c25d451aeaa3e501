"""Changes of a running peer's own file: taken up at the next round, and ignored where they are mistakes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedpeer.config.peer_file import DataSettings, PeerFile
from fedpeer.data.dataset import DataError
from fedpeer.learning.holdings import held_by
from fedpeer.learning.models import BestRound, best_round
from fedpeer.peer.runtime.data_refresh import DataRefresh
from fedpeer.peer.runtime.job_runner import JobRunner
from fedpeer.peer.runtime.prepared import Prepared, initial_status
from tests.peer.runtime.alone import alone_at
from tests.peer.runtime.whole import whole

FEDERATION: dict[str, Any] = {
    "network": "mlp:2+3+2",
    "learning": {"algorithm": "local", "batch_size": 8, "steps_between_averaging": 2, "rounds": 1_000_000},
    "gossip": {"gather": 0.0, "tick": 0.001},
}
DRAWS, SECONDS = np.random.default_rng(0), itertools.count(1_700_000_000)


def rows(count: int) -> str:
    values = DRAWS.normal(5, 2, (count, 2))
    return "".join(f"{a:.3f},{b:.3f},{'ill' if n % 2 else 'well'}\n" for n, (a, b) in enumerate(values))


def put(path: Path, text: str) -> None:
    """Replace a file at once, as a careful program does, with a time of its own."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    now = 1_000_000_000 * next(SECONDS)
    os.utime(beside, ns=(now, now))
    beside.replace(path)


def ann(folder: Path, text: str, **settings: Any) -> Prepared:
    path = folder / "ward.csv"
    put(path, text)
    data = {"csv": str(path), "label": "outcome", "refresh": True, **settings}
    return alone_at(folder, FEDERATION, data=data)


def test_a_running_peer_trains_on_rows_that_were_appended(tmp_path: Path) -> None:
    """The peer splits them as it would after a restart."""
    text, path = "a,b,outcome\n" + rows(40), tmp_path / "ward.csv"
    peer = ann(tmp_path, text)
    with whole(peer) as running:
        assert running.process._jobs._trainer.examples == 30
        put(path, text + rows(40))
        line = running.line("data_taken")
        assert (line.level, line.text) == ("info", "the data have changed: 60 training examples, 30 before")
        found = running.inside(lambda: running.process._jobs._outfit)
        _, afresh = held_by(peer.file, peer.federation)
        assert np.array_equal(found.held.train_M, afresh.train_M)
        assert np.array_equal(found.held.test_M, afresh.test_M)
        assert found.held.inputs is not None
        assert afresh.inputs is not None
        assert np.array_equal(found.held.inputs.shift_F, afresh.inputs.shift_F)
        assert found.local_task.batches(7).index.max() >= 40
        assert running.process._jobs._trainer.local_task is found.local_task


def test_the_best_round_is_sought_anew_on_other_examples(tmp_path: Path) -> None:
    """Otherwise a round that was lucky with few examples would stay the best one for good."""
    text, path = "a,b,outcome\n" + rows(40), tmp_path / "ward.csv"
    with whole(ann(tmp_path, text, validation=0.1)) as running:
        jobs = running.process._jobs

        def kept() -> BestRound:
            found = best_round(jobs._folder / "best.json")
            assert found is not None
            return found

        running.line("evaluated")
        before = running.inside(lambda: jobs._held_out)
        assert kept().examples == before
        put(path, text + rows(400))
        running.line("data_taken")
        now = running.inside(lambda: jobs._held_out)
        assert now != before
        running.line("evaluated", since=len(running.lines))
        running.line("evaluated", since=len(running.lines))
        assert kept().examples == now


def test_the_best_round_is_sought_anew_on_another_scale(tmp_path: Path) -> None:
    """A folder has one card, so the best model would be used with a scale that it was not trained on."""
    lines, path = ["a,b,outcome\n", *rows(40).splitlines(keepends=True)], tmp_path / "ward.csv"
    peer = ann(tmp_path, "".join(lines), validation=0.1)
    jobs = JobRunner(peer, tmp_path, initial_status(peer), lambda what, text: None)
    before, held = jobs._held_out, peer.outfit.held
    lines[1 + held.train_M[0]] = "9999," + lines[1 + held.train_M[0]].partition(",")[2]
    put(path, "".join(lines))
    jobs._refresh()
    assert np.array_equal(jobs._outfit.held.valid_M, held.valid_M)
    assert before != jobs._held_out


def test_a_best_model_goes_when_no_examples_are_held_out_any_more(tmp_path: Path) -> None:
    """Otherwise `predict` would take it for good, as the better one of two that nobody compares."""
    text, path = "a,b,outcome\n" + rows(160), tmp_path / "ward.csv"
    with whole(ann(tmp_path, text)) as running:
        running.line("evaluated")
        folder = running.inside(lambda: running.process._jobs._folder)
        assert running.inside(lambda: running.process._jobs._trainer.examples) == 108, "of 120, a tenth is held out"
        assert best_round(folder / "best.json") is not None
        put(path, "a,b,outcome\n" + rows(40))
        assert "no examples are held out any more" in running.line("best_model_forgotten").text
        running.line("evaluated", since=len(running.lines))
        assert not list(folder.glob("best.*"))
        assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda text: text + "1.0,much,ill\n", "much"),
        (lambda text: text.replace("a,b,", "a,c,"), "its columns are a, c, and were a, b"),
        (lambda text: text + "1.0,2.0,dead\n", "its classes are "),
        (lambda text: "", "is empty"),
    ],
)
def test_a_broken_file_changes_nothing_and_is_told_once(
    changed: Callable[[str], str], said: str, tmp_path: Path
) -> None:
    text, path = "a,b,outcome\n" + rows(40), tmp_path / "ward.csv"
    peer = ann(tmp_path, text)
    with whole(peer) as running:
        put(path, changed(text))
        line = running.line("data_not_taken")
        assert line.level == "warning"
        assert said in line.text
        assert "?" not in line.text
        round = running.state.durable.round
        assert running.inside(lambda: running.process._jobs._trainer.examples) == 30
        put(path, text + rows(40))
        running.line("data_taken")
        assert running.state.durable.round >= round
        assert [each.what for each in running.lines].count("data_not_taken") == 1
        assert running.process._jobs._trainer.examples == 60


def look_at(folder: Path) -> tuple[DataRefresh, Prepared, Path]:
    peer = ann(folder, "a,b,outcome\n" + rows(40))
    assert peer.refresh is not None
    return peer.refresh, peer, folder / "ward.csv"


def test_a_file_that_is_being_written_waits_for_the_next_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refresh, peer, path = look_at(tmp_path)
    text = path.read_text()
    put(path, text + "1.0")
    read = held_by

    def slowly(*arguments: Any) -> Any:
        put(path, text + rows(8))  # the rest is written while it is read
        return read(*arguments)

    monkeypatch.setattr("fedpeer.peer.runtime.data_refresh.held_by", slowly)
    assert refresh.look(peer.outfit) is None
    monkeypatch.undo()
    found = refresh.look(peer.outfit)
    assert found is not None
    assert found.local_task.examples == 36
    assert refresh.look(found) is None


def test_a_file_that_has_gone_is_told_once_and_may_come_back(tmp_path: Path) -> None:
    refresh, peer, path = look_at(tmp_path)
    text = path.read_text()
    path.unlink()
    with pytest.raises(DataError, match="not there any more"):
        refresh.look(peer.outfit)
    assert refresh.look(peer.outfit) is None
    put(path, text)
    assert refresh.look(peer.outfit) is not None


def normalised(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 3), nn.BatchNorm1d(3), nn.Linear(3, outputs))


def test_data_on_which_the_network_cannot_be_trained_are_a_mistake_too(tmp_path: Path) -> None:
    """The peer ended, and every later start of it, until the file was mended."""
    own = {**FEDERATION, "network": f"python:{__name__}:normalised"}
    path, text = tmp_path / "ward.csv", "a,b,outcome\n"
    put(path, text + rows(40))
    data = {"csv": str(path), "label": "outcome", "classes": ["ill", "well"], "test_fraction": 0.5, "refresh": True}
    peer = alone_at(tmp_path, own, data=data, allow_python=["tests"])
    assert peer.refresh is not None
    put(path, text + "".join(rows(4).splitlines(keepends=True)[::2]))  # one row to train on
    with pytest.raises(DataError, match="batch_size = 1"):
        peer.refresh.look(peer.outfit)
    assert peer.refresh.look(peer.outfit) is None


@pytest.mark.parametrize("data", [{"simulation": 1}, "digits", {"images": "scans"}])
def test_only_files_can_be_refreshed(data: Any) -> None:
    whole_data = {**data, "refresh": True} if isinstance(data, dict) else f"{data},refresh=true"
    with pytest.raises(ValueError, match=r"refresh is for files|takes only a number"):
        PeerFile.model_validate({"federation": "f.yaml", "id": "ann", "data": whole_data})


def test_the_setting_is_written_as_it_is_read() -> None:
    found = DataSettings.model_validate({"csv": "ward.csv", "label": "outcome", "refresh": True})
    assert found.refresh
    assert found.model_dump() == {"csv": "ward.csv", "label": "outcome", "refresh": True}
    assert "refresh" not in DataSettings.model_validate({"csv": "ward.csv", "label": "outcome"}).model_dump()
