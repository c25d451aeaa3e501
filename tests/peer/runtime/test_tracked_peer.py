"""A running peer in trackers: the numbers of its `metrics.jsonl`, and a warning where a tracker fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpeer.peer.runtime.prepared import Prepared
from fedpeer.peer.runtime.process import PeerProcess
from fedpeer.peer.runtime.rows import Rows
from fedpeer.peer.state.events import Evaluated
from fedpeer.runs.trackers.tracker import TrackingError
from tests.peer.runtime.alone import alone_at
from tests.runs.trackers import Recorder, known_as

FEDERATION: dict[str, Any] = {
    "name": "ward",
    "network": "mlp:64+4+10",
    "learning": {"algorithm": "local", "steps_between_averaging": 3, "rounds": 4, "evaluate_every": 2},
    "gossip": {"gather": 0.0, "tick": 0.001},
    "simulation": {"peers": 2, "split": "blocks:20,test=10"},
}
Finished = Callable[[Prepared], list[dict[str, Any]]]


def finished(prepared: Prepared) -> list[dict[str, Any]]:
    """Run the peer to the end of its rounds; return its log."""
    asyncio.run(PeerProcess(prepared, quiet=True).run())
    return [json.loads(line) for line in (prepared.folder / "log.jsonl").read_text().splitlines()]


def ann(folder: Path, **settings: Any) -> Prepared:
    return alone_at(
        folder, FEDERATION, **{"data": {"simulation": 1}, "tracking": "recorder", "metrics": "f1"} | settings
    )


def test_each_row_is_tracked_once_it_has_its_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    known_as(monkeypatch, "recorder", recorder)
    peer = ann(tmp_path)
    finished(peer)
    (opened,) = [each for each in recorder.told if each[0] == "open"]
    series, parameters = opened[1:]
    assert (series.name, series.group[:5], series.home, series.first) == ("ann", "ward-", peer.folder, 1)
    assert parameters["learning.rounds"] == 4
    assert parameters["examples"] == 20
    rows = [json.loads(line) for line in (peer.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [number for number, _ in recorder.rows("ann")] == [1, 2, 3, 4]
    for row, (_, numbers) in zip(rows, recorder.rows("ann"), strict=True):
        scores = {name: row[name] for name in ("accuracy", "loss") if row[name] is not None}
        assert {name: numbers[name] for name in ("accuracy", "loss") if name in numbers} == scores
        assert numbers.get("f1") == (row.get("metrics") or {}).get("f1")
        assert numbers["bytes_sent"] == row["bytes_sent"]
    assert recorder.told[-1] == ("close", "ann")


def test_a_round_without_an_evaluation_is_written_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds 2 and 4 are evaluated. A process that is killed before that has the rows of 1 and 3."""
    peer = ann(tmp_path, tracking=[])
    file, there, evaluated = peer.folder / "metrics.jsonl", dict[int, list[int]](), Rows.evaluated

    def look(rows: Rows, event: Evaluated) -> None:
        lines = file.read_text().splitlines() if file.exists() else []
        there[event.round] = [json.loads(line)["round"] for line in lines]
        evaluated(rows, event)

    monkeypatch.setattr(Rows, "evaluated", look)
    finished(peer)
    assert there == {2: [1], 4: [1, 2, 3]}


def test_a_tracker_that_fails_is_one_warning_and_the_peer_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(what: str) -> None:
        if what == "add":
            raise ConnectionError("no route to host")

    known_as(monkeypatch, "recorder", Recorder(fail=fail))
    log = finished(ann(tmp_path))
    (warning,) = [line for line in log if line["what"] == "tracking"]
    assert (warning["level"], "no route to host" in warning["text"]) == ("warning", True)
    assert len((tmp_path / "state/metrics.jsonl").read_text().splitlines()) == 4


def test_a_missing_library_is_told_before_the_peer_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpeer.runs.trackers.registry.find_spec", lambda name: None)
    with pytest.raises(TrackingError, match="tracking: tensorboard is not installed"):
        ann(tmp_path, tracking="tensorboard")
    assert not (tmp_path / "state").exists()
