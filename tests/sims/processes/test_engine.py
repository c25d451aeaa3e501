"""Real processes under an engine: killed, stopped, orphaned. Their parity is in `tests/sims/test_parity.py`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.sims.processes import settling
from fedpeer.sims.processes.engine import ProcessesEngine
from fedpeer.sims.vector.pool import EngineError, Stopped
from fedpeer.sims.world import World
from tests.sims import worlds
from tests.sims.worlds import relative

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

METHOD = "partial-averaging"
#: Prints its process number and runs `fedpeer`, whose programs are forks, too, by the tests' own `sys.executable`.
PROGRAM = """
import os, sys
print(os.getpid(), flush=True)
sys.executable = sys.argv.pop(1)
from fedpeer.cli.main import main
main()
"""
#: Seconds within which stopped processes have ended, on a busy machine.
PATIENCE = 60.0
#: Rounds of some tens of milliseconds: more than peers run before a test's action after the first one takes effect.
ROUNDS = 20


def world(peers: int = 3, rounds: int = ROUNDS) -> World:
    return worlds.world(
        worlds.federation(
            learning__rounds=rounds, simulation__peers=peers, gossip__tick=0.3, gossip__deadline=120.0,
            gossip__topology="complete",
        )
    )  # fmt: skip


def engine(made: World, folder: Path, **more: Any) -> ProcessesEngine:
    choice = parse_choice(METHOD)
    return ProcessesEngine(made, choice, folder=folder, **more)


def play(running: ProcessesEngine, rounds: int) -> None:
    while running.round < rounds:
        running.step()


def processes_of(running: ProcessesEngine) -> list[psutil.Process]:
    """Return the processes that still run: after its last round a peer waits a little for others and then ends."""
    found = []
    for number in running.process_ids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(number))
    return found


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE)
    return not alive


def test_the_default_graph_fits_few_peers(tmp_path: Path) -> None:
    few = worlds.federation(simulation__peers=3)
    gossip = few.gossip.model_copy(update={"topology": Federation().gossip.topology})
    made = worlds.world(few.model_copy(update={"gossip": gossip}))
    assert list(settling.settle(tmp_path / "made", made, parse_choice(METHOD), "cpu")) == ["peer1", "peer2", "peer3"]


def test_an_algorithm_that_averages_nothing_is_compared_with_one_whose_slices_have_gossip_of_their_own(
    tmp_path: Path,
) -> None:
    model = {"neurons": {"input": "all", "output": "all"}, "gossip": {"every": 2}, "outer": "nesterov"}
    made = worlds.world(worlds.federation(partial_models={"everyone": model}, simulation__peers=2))
    assert [*settling.settle(tmp_path / "made", made, parse_choice("local"), "cpu")] == ["peer1", "peer2"]


def test_a_killed_peer_is_named_and_started_again_and_nothing_is_lost(tmp_path: Path) -> None:
    made = world()
    seen: list[tuple[str, str]] = []
    remarks: list[str] = []
    with engine(
        made,
        tmp_path / "peers",
        logs=tmp_path / "logs",
        remark=remarks.append,
        replaced=lambda *who: seen.append(who),
    ) as running:
        running.step()
        processes = processes_of(running)
        os.kill(running.process_ids[1], signal.SIGKILL)
        play(running, ROUNDS)
        assert seen == [("peer2", "signal 9 (SIGKILL)")]
        assert relative(running.x_Pn, worlds.played(made, ROUNDS)) <= 1e-5, remarks
        processes += processes_of(running)
    assert gone(processes)
    assert not (tmp_path / "peers").exists()
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"peer1.jsonl", "peer2.jsonl", "peer3.jsonl"}


def test_a_peer_that_dies_again_and_again_ends_the_run_with_its_last_words(tmp_path: Path) -> None:
    """The peer's key is gone from its folder, so each new start fails in the same way."""
    made = world(rounds=1000)
    with engine(made, tmp_path / "peers") as running:
        running.step()
        (tmp_path / "peers" / "peers" / "peer2" / "keys" / "peer2.key").unlink()
        os.kill(running.process_ids[1], signal.SIGKILL)
        with pytest.raises(EngineError) as caught:
            play(running, 1000)
    words = "".join(str(caught.value).split())  # its last words are broken into lines at any place
    assert "peer2endedwithexitcode2:" in words
    assert "peer2.key" in words


def test_stopped_it_pauses_all_and_goes_on_where_it_was(tmp_path: Path) -> None:
    made, stop = world(), threading.Event()
    with engine(made, tmp_path / "peers", stop=stop) as running:
        running.step()
        running.step()
        processes = processes_of(running)
        tensors, state = running.snapshot()
        stop.set()
        with pytest.raises(Stopped):
            play(running, ROUNDS)
    assert gone(processes)
    assert (tmp_path / "peers").exists()
    made_at = (tmp_path / "peers" / "federation.yaml").stat().st_mtime_ns
    with engine(made, tmp_path / "peers") as again:
        again.restore(tensors, state)
        assert again.round == 2
        assert (tmp_path / "peers" / "federation.yaml").stat().st_mtime_ns == made_at, "the same peers"
        play(again, ROUNDS)
        assert relative(again.x_Pn, worlds.played(made, ROUNDS)) <= 1e-5


def test_ports_that_are_taken_meanwhile_are_given_up_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(peers=2, rounds=1)
    free: Callable[[int], int] = settling.free_ports
    taken = socket.create_server((settling.HOST, free(2)))
    answers = iter([taken.getsockname()[1]])
    monkeypatch.setattr(settling, "free_ports", lambda count: next(answers, None) or free(count))
    with taken, engine(made, tmp_path / "peers") as running:
        running.step()
        assert running.round == 1
        assert next(answers, None) is None, "the taken ones were tried"


def test_no_process_outlives_the_one_that_was_killed(tmp_path: Path) -> None:
    """`fedpeer simulate` gets SIGKILL; the processes that it started notice this and pause."""
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        sys.executable,
        "simulate",
        "--engine",
        "processes",
        "--peers",
        "2",
        "--rounds",
        "10000",
    ]
    command += ["--network", "mlp:64+20+10", "--compare", METHOD, "--out", str(tmp_path), "--json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        number = int(process.stdout.readline())
        assert any("round " in line for line in process.stderr), "it has begun to learn"
        peers = [psutil.Process(int(lock.read_text())) for lock in tmp_path.rglob("peer*-state/lock")]
        parents = [each.parent() for each in peers]
        family = {*peers, *(each for each in parents if each is not None)}
        assert (len(peers), len(family)) == (2, 3), "a parent and two peers"
        os.kill(number, signal.SIGKILL)
        process.communicate()
    assert gone([*family])
