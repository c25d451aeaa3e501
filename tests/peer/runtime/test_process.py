"""The process of one peer: what ends it, and what must not."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedpeer.peer.runtime.carrier import Carrier
from fedpeer.peer.runtime.discovery import DiscoveryError
from fedpeer.peer.runtime.prepared import _unproven
from fedpeer.peer.runtime.process import _AGAIN_S, WAITING_MAX, PeerProcess
from fedpeer.peer.runtime.store import DuplicatePeerError, Store
from fedpeer.peer.state.events import Stop
from fedpeer.peer.state.saving import Recovered
from fedpeer.peer.wire.roster import RosterEntry
from fedpeer.rejection import Rejection
from tests.peer.runtime.alone import alone_at
from tests.peer.runtime.whole import whole

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
    """The error used to be on standard error alone, as "Task exception was never retrieved", and long after."""
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
    first = {line["text"]: line for line in reversed(lines)}  # where the process lives long, later ones are shorter
    assert all("test_process.py" in "".join(line["fields"]["traceback"]) for line in first.values())
    assert "never retrieved" not in capfd.readouterr().err


def test_a_quiet_peer_prints_warnings_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    process = process_at(tmp_path)
    monkeypatch.setattr(process, "_look_for_callers", lambda: process._warn("metric_failed", "the metric x failed"))
    assert asyncio.run(process.run()).code == 0
    printed = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert {(line["level"], line["text"]) for line in printed} == {("warning", "the metric x failed")}
    assert logged(tmp_path, "started"), "the log has the rest"


def test_the_log_says_how_the_process_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    stop = asyncio.run(process_at(good).run())
    for thread in threading.enumerate():
        if thread.name == "fedpeer-train":
            thread.join(10.0)
            assert not thread.is_alive(), "it would keep the peer's data in memory"
    [last] = logged(good, "stopped")
    assert (last["text"], last["fields"]) == (stop.text, {"code": 0})
    process = process_at(bad)
    monkeypatch.setattr(process, "_look_for_callers", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(process.run())
    [failed] = logged(bad, "failed")
    assert (failed["level"], failed["text"]) == ("error", "ZeroDivisionError: division by zero")


def test_a_second_start_writes_nothing_into_the_log_of_the_first(tmp_path: Path) -> None:
    """Its last line said that the peer had failed."""
    process = process_at(tmp_path)
    with Store.open(tmp_path / "state"):
        with pytest.raises(DuplicatePeerError):
            asyncio.run(process.run())
        assert not (tmp_path / "state" / "log.jsonl").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("asked_before", [False, True], ids=["the first", "one after that which paused it"])
def test_a_signal_while_it_ends_does_not_change_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_before: bool
) -> None:
    """All is saved by then; yet the peer used to report that it was stopped at once, with the exit code for that."""
    process, close = process_at(tmp_path), Carrier.close
    decided = []

    async def closed(carrier: Carrier) -> None:
        loop, handled = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR2, handled.set)
        decided.append(process._stopped)
        if asked_before:
            process._pause_asked_at = loop.time() - 2 * _AGAIN_S
        for each in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(os.getpid(), each)
        await handled.wait()
        await close(carrier)

    monkeypatch.setattr(Carrier, "close", closed)
    stop = asyncio.run(process.run())
    assert [stop] == decided
    assert stop.code == 0
    assert process.pause_requested, "so it does not start again by itself"
    assert process.leave_requested, "so it leaves if it does"


def test_rejections_do_not_pile_up_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other peers repeat what is rejected, since no buffer is free, for as long as the disk is full."""
    process = cast(Any, process_at(tmp_path))
    monkeypatch.setattr(process, "_say", lambda effect: None)
    process._pipeline = SimpleNamespace(full=True)
    for _ in range(WAITING_MAX + 10):
        process._rejected(Rejection("too_many_requests", "", "bob"))
    assert len(process._waiting) == WAITING_MAX


def test_claims_of_a_newcomer_are_verified_while_its_roster_waits_for_a_save(tmp_path: Path) -> None:
    """By the earlier roster they seemed forged; five seconds later the peer that passed them on was blocked for it."""
    process = cast(Any, process_at(tmp_path))
    node = process._make_node(Recovered(snapshot=None, entries=()))
    process._steps = SimpleNamespace(node=node)
    newcomer = RosterEntry(id="cas", key=bytes(32), address="http://127.0.0.1:1")
    roster = process._members.roster
    later = replace(roster, number=roster.number + 1, entries=(*roster.entries, newcomer))
    node.state.peer_groups = replace(node.state.peer_groups, roster=later)
    assert node.state.verify("cas", b"a claim", _unproven("cas", b"a claim"))


def test_a_finished_peer_that_is_started_to_leave_does_not_just_stop(tmp_path: Path) -> None:
    """Nobody needs it, so it stopped by itself before it was told to leave, with "finished all 2 rounds"."""
    usual_tick = {**FEDERATION, "gossip": {"gather": 0.0}}
    prepared = alone_at(tmp_path, usual_tick, data={"simulation": 1})
    with whole(prepared) as peer:
        peer.line("finished")
    stop = asyncio.run(PeerProcess(prepared, quiet=True, leave=True).run())
    assert stop == Stop(0, "left; what was held is handed over")


def test_who_lacks_the_library_for_discovery_is_told_so_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    process = PeerProcess(alone_at(tmp_path, FEDERATION, data={"simulation": 1}, discovery=True), quiet=True)
    monkeypatch.setattr("fedpeer.peer.runtime.discovery.importlib.util.find_spec", lambda name: None)
    with pytest.raises(DiscoveryError):
        asyncio.run(process.run())
    del process
    gc.collect()
    assert "Unclosed" not in capfd.readouterr().err
