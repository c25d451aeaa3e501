"""The process of one peer: what ends it, and what must not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fedpeer.peer.runtime.process import PeerProcess
from tests.peer.runtime.alone import alone_at

FEDERATION = {
    "name": "ward",
    "network": "mlp:64+4+10",
    "learning": {"algorithm": "local", "steps_between_averaging": 1, "rounds": 2},
    "gossip": {"gather": 0.0, "tick": 0.001},
    "simulation": {"peers": 2, "split": "blocks:20,test=10"},
}


def process_at(folder: Path) -> PeerProcess:
    return PeerProcess(alone_at(folder, FEDERATION, data={"simulation": 1}), quiet=True)


def logged(folder: Path, what: str) -> list[dict[str, Any]]:
    """Return the lines of this name in the peer's log."""
    (log,) = (folder / "state").rglob("log.jsonl")
    return [line for line in map(json.loads, log.read_text(encoding="utf-8").splitlines()) if line["what"] == what]


def test_a_fault_in_a_task_or_a_callback_for_which_nobody_waits_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was on standard error alone, as "Task exception was never retrieved", long after."""
    process, kept = process_at(tmp_path), set[asyncio.Task[None]]()

    async def task() -> None:
        raise KeyError("of a task")

    def callback() -> None:
        raise KeyError("of a callback")

    def look() -> None:
        if not kept:
            kept.add(asyncio.create_task(task()))
            asyncio.get_running_loop().call_soon(callback)
            asyncio.get_running_loop().call_soon(kept.clear)

    monkeypatch.setattr(process, "_look_for_callers", look)
    assert asyncio.run(process.run()).code == 0
    lines = logged(tmp_path, "failed_beside")
    assert {line["text"].partition("'")[2] for line in lines} == {
        "of a task'; please report it",
        "of a callback'; please report it",
    }
    assert all("test_process.py" in "".join(line["fields"]["traceback"]) for line in lines)
    assert "never retrieved" not in capfd.readouterr().err
