"""`fedpeer start` with several files reports all mistakes at once, starts a process for each, and names their ends."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from fedpeer.algorithms import warm_up
from fedpeer.cli import peer_config
from fedpeer.cli import start as command
from fedpeer.cli.peer_config import PeerConfig, load_peer, load_peers
from fedpeer.cli.start import _alone, _import_once, _load_once
from fedpeer.config.choice import Choice, parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.peer_file import DataSettings
from fedpeer.data.dataset import Dataset
from fedpeer.exit_codes import EXIT_TEMPORARY
from fedpeer.learning import holdings
from fedpeer.learning.holdings import load_dataset
from fedpeer.peer.runtime import prepared, supervisor
from fedpeer.peer.runtime import process as runtime_process
from fedpeer.peer.runtime.prepared import Prepared
from fedpeer.peer.state.events import Stop
from fedpeer.peer.wire.roster import RosterError
from fedpeer.sims.processes.settling import free_ports
from fedpeer.sims.request import cores
from tests.cli.conftest import Fedpeer
from tests.forked import fedpeer_command
from tests.ipv6 import needs_ipv6

#: Time limit in seconds for processes to start, pause and end, on a machine with other load.
PATIENCE = 120.0


@pytest.fixture
def configs(fedpeer: Fedpeer) -> list[str]:
    """Return the files of three peers of one federation."""
    assert fedpeer("init", "fed", "--peers", "3", "--port", str(free_ports(3))).code == 0
    return [f"fed/peer{number}/peer{number}.yaml" for number in (1, 2, 3)]


def starting(configs: list[str], *options: str) -> list[str]:
    return ["start", *(word for config in configs for word in ("--config", config)), *options]


def test_mistakes_of_all_files_are_told_at_once(fedpeer: Fedpeer, configs: list[str]) -> None:
    for config, (old, new) in zip(configs, [("device: auto", "device: tpu"), ("id: peer2", "id: peer1")], strict=False):
        path = Path(config)
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    outcome = fedpeer(*starting(configs))
    assert outcome.code == 2
    assert "nothing was started" in " ".join(outcome.err.split())
    assert "device" in outcome.err
    assert "peer1.yaml line" in outcome.err
    assert "peer2.yaml line" in outcome.err


def test_two_processes_cannot_have_one_place(fedpeer: Fedpeer, configs: list[str]) -> None:
    first, second = (Path(config) for config in configs[:2])
    own = re.search(r"^listen: .*$", first.read_text(encoding="utf-8"), re.MULTILINE)
    assert own is not None
    second.write_text(re.sub(r"(?m)^listen: .*$", own[0], second.read_text(encoding="utf-8")), encoding="utf-8")
    outcome = fedpeer(*starting([str(first), str(second)]))
    assert outcome.code == 2
    assert "listen" in outcome.err
    assert f"used by {first} too" in " ".join(outcome.err.split())
    outcome = fedpeer(*starting([configs[2], configs[2]]))
    assert outcome.code == 2
    assert "named twice" in outcome.err


@pytest.mark.parametrize(
    ("changed", "imported"),
    [
        ({"learning": {"batch_size": 1}}, ["load_compiled_loop"]),
        ({"learning": {"batch_size": 10}}, []),
        ({"learning": {"optimizer": "adam,lr=0.01"}}, ["import_optimizers"]),
        ({"network": "transformer", "partial_models": {}}, ["import_optimizers"]),
        ({"network": "mlp:64+20+10", "partial_models": {}, "learning": {"batch_size": 1}}, ["load_compiled_loop"]),
    ],
    ids=["single examples", "batches", "adam", "transformer", "mlp"],
)
def test_what_training_needs_is_imported_once_for_all(
    fedpeer: Fedpeer, configs: list[str], monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], imported: list[str]
) -> None:
    done = []
    for name in ("load_compiled_loop", "import_optimizers"):
        monkeypatch.setattr(warm_up, name, lambda name=name: done.append(name))
    peers = load_peers([Path(config) for config in configs])
    data = peers[0].federation.model_dump(mode="json")
    federation = Federation.model_validate(
        {**data, **changed, "learning": {**data["learning"], **changed.get("learning", {})}}
    )
    _import_once([replace(peer, federation=federation) for peer in peers])
    assert sorted(set(done)) == imported


def test_a_data_set_is_loaded_and_the_network_built_once_for_all_who_train_in_turns(
    fedpeer: Fedpeer, configs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor does the peers' work in one process; each peer stops as soon as it is prepared.

    Files are read once as well, and again only for a peer that is started again.
    """
    read = list[Path]()
    loaded, imported, prepared = list[Choice](), list[Sequence[PeerConfig]](), list[Prepared]()
    turns = [nullcontext() for _ in configs]
    taken, places, again = list[object](), list[object](), nullcontext()

    def load(choice: Choice) -> Dataset:
        loaded.append(choice)
        return load_dataset(choice)

    def process(one: Prepared, *, turn: object, **_: object) -> object:
        prepared.append(one)
        taken.append(turn)
        raise RosterError("unknown_peer", "enough")

    monkeypatch.setattr(holdings, "load_dataset", load)
    monkeypatch.setattr(runtime_process, "PeerProcess", process)
    monkeypatch.setattr(command, "_import_once", imported.append)

    def load_one(path: Path, consequence: str = "") -> PeerConfig:
        read.append(path)
        return load_peer(path, consequence)

    monkeypatch.setattr(peer_config, "load_peer", load_one)

    def watch_over(
        starts: Mapping[str, supervisor.Start], ended: Callable[[str, int], None], **settings: object
    ) -> int:
        places.append(settings["places"])
        code = max(start(turn) for start, turn in zip(starts.values(), turns, strict=True))
        assert read == [Path(config) for config in configs]
        ended("peer2", EXIT_TEMPORARY)
        starts["peer2"](again)
        return code

    monkeypatch.setattr(supervisor, "watch_over", watch_over)
    threads = torch.get_num_threads()
    try:
        assert fedpeer(*starting(configs)).code == 2
    finally:
        torch.set_num_threads(threads)
    assert len(loaded) == len(imported) == 1
    assert read == [Path(config) for config in (*configs, configs[1])]
    assert len(prepared) == 4
    assert all(one.outfit.dataset is prepared[0].outfit.dataset for one in prepared)
    assert all(one.outfit.assembly is prepared[0].outfit.assembly for one in prepared)
    assert taken == [*turns, again]
    assert places == [cores()]
    parts = [set(one.outfit.held.train_M.tolist()) for one in prepared[:3]]
    assert sum(map(len, parts)) == len(set.union(*parts)), "each has its own part of it"


def test_a_peers_own_data_are_loaded_by_itself(configs: list[str]) -> None:
    (first, *others) = load_peers([Path(config) for config in configs])
    own = DataSettings.model_validate({"csv": "own.csv", "label": "y"})
    changed = replace(first, file=first.file.model_copy(update={"data": own}))
    assert _load_once([changed]) == {}
    assert list(_load_once([changed, *others])) == [str(first.federation.simulation.dataset)]


def test_nobodys_code_is_run_before_a_peers_file_has_allowed_it(configs: list[str]) -> None:
    """Each peer's file decides whether a federation's own data set may be imported."""
    peers = load_peers([Path(config) for config in configs])
    simulation = peers[0].federation.simulation.model_copy(update={"dataset": parse_choice("python:antigravity:data")})
    federation = peers[0].federation.model_copy(update={"simulation": simulation})
    assert _load_once([replace(peer, federation=federation) for peer in peers]) == {}


@pytest.mark.parametrize("terminal", [False, True])
def test_the_last_line_has_the_form_of_the_others(
    fedpeer: Fedpeer, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    text = "learning: {rounds: 1, steps_between_averaging: 1}\nsimulation: {peers: 1, split: iid}\n"
    Path("federation.yaml").write_text(text, encoding="utf-8")
    made = fedpeer("init", "fed", "--peers", "1", "--port", str(free_ports(1)), "--federation", "federation.yaml")
    assert made.code == 0
    frozen = list[bool]()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    outcome = fedpeer("start", "--config", "fed/peer1/peer1.yaml")
    assert outcome.code == 0
    assert frozen, "the collector leaves alone what was loaded"
    *lines, last = outcome.err.splitlines()
    if terminal:
        assert last == "peer1: finished all 1 rounds"
        assert " peer1  listening on " in lines[0]
        return
    told = json.loads(last)
    assert {**told, "t": 0} == {
        "peer": "peer1",
        "t": 0,
        "level": "info",
        "what": "stopped",
        "text": "finished all 1 rounds",
        "fields": {"code": 0},
    }
    assert all(json.loads(line)["t"] <= told["t"] for line in lines)


@pytest.mark.parametrize(
    ("number", "count", "at"),
    [(signal.SIGTERM, 1, (prepared, "prepare_peer")), (signal.SIGINT, 2, (command, "_import_once"))],
)
def test_a_signal_before_peers_listen_is_a_pause(
    fedpeer: Fedpeer,
    configs: list[str],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    count: int,
    at: tuple[object, str],
) -> None:
    """It ended them without a line, and a service starts a peer again that ended with 130."""
    files, unhandled = configs[:count], signal.signal(signal.SIGTERM, signal.default_int_handler)
    Path("fed/peer1/peer1-state").mkdir()
    monkeypatch.setattr(*at, lambda *_: os.kill(os.getpid(), number))
    try:
        outcome = fedpeer(*starting(files))
    finally:
        signal.signal(signal.SIGTERM, unhandled)
    assert outcome.code == 0
    told = [json.loads(line) for line in outcome.err.splitlines()]
    assert [line["peer"] for line in told] == [Path(file).stem for file in files]
    assert {(line["what"], line["text"].partition(";")[0]) for line in told} == {
        ("stopped", "paused before it could begin")
    }
    logged = json.loads(Path("fed/peer1/peer1-state/log.jsonl").read_text(encoding="utf-8"))
    assert logged["what"] == "stopped"


def test_a_peer_that_is_to_leave_does_so_under_the_next_contract_too(
    fedpeer: Fedpeer, configs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on learning instead: a finished peer with a later contract in its folder changes to that at once.

    The process before is gone by then, with its data.
    """
    stops, leaves = iter([Stop(0, "changes to contract 1", again=True), Stop(0, "left")]), list[bool]()
    lived = list[weakref.ref[object]]()

    class Process:
        """Process that ends for a new contract the first time."""

        training = pause_requested = False

        def __init__(self, prepared: object, *, leave: bool = False, **_: object) -> None:
            self.itself = self  # as a real one by its callbacks
            leaves.append(leave)
            lived.append(weakref.ref(self))
            self.leave_requested = leave

        async def run(self) -> Stop:
            await asyncio.sleep(0)
            assert all(each() is None for each in lived[:-1])
            return next(stops)

    monkeypatch.setattr(prepared, "prepare_peer", lambda *_: None)
    monkeypatch.setattr(runtime_process, "PeerProcess", Process)
    assert fedpeer("leave", "--config", configs[0]).code == 0
    assert leaves == [True, True]


@pytest.mark.parametrize(
    ("several", "shell"),
    [
        pytest.param(False, "2> /dev/full", marks=pytest.mark.soak),
        pytest.param(True, "2> /dev/full", marks=pytest.mark.slow),
        pytest.param(False, ">&- 2>&-", marks=pytest.mark.slow),
    ],
)
def test_a_peer_does_not_depend_on_its_standard_error(fedpeer: Fedpeer, several: bool, shell: str) -> None:
    """Where standard error is on a full disk, or is closed, peers finish, and exit with the usual code."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, as Linux has it")
    count = 2 if several else 1
    text = f"learning: {{rounds: 2, steps_between_averaging: 1}}\nsimulation: {{peers: {count}, split: iid}}\n"
    Path("federation.yaml").write_text(text, encoding="utf-8")
    made = fedpeer("init", "fed", f"--peers={count}", f"--port={free_ports(count)}", "--federation=federation.yaml")
    assert made.code == 0
    files = [f"fed/peer{number}/peer{number}.yaml" for number in range(1, count + 1)]
    # Closed streams need a Python that starts with them; a full disk behind a stream does not.
    command = fedpeer_command(*starting(files)) if several else [sys.executable, "-m", "fedpeer", *starting(files)]
    ended = subprocess.run(["sh", "-c", f"{shlex.join(command)} {shell}"], timeout=PATIENCE, check=False)
    assert ended.returncode == 0
    log = Path("fed/peer1/peer1-state/log.jsonl").read_text(encoding="utf-8").splitlines()
    assert any(json.loads(line)["what"] == "finished" for line in log)


@pytest.mark.slow
def test_a_mistake_ends_with_its_code_wherever_it_is_told() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, as Linux has it")
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "fedpeer", *starting(["missing.yaml"])]
        assert subprocess.run(command, stderr=full, timeout=PATIENCE, check=False).returncode == 2


def test_each_has_its_share_of_the_cores(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        assert _alone(tmp_path / "missing.yaml", before + 1, {}, {}, [], nullcontext(), quiet=True) == 2
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_several_peers_start_pause_and_are_named_when_they_die(configs: list[str]) -> None:
    with subprocess.Popen(fedpeer_command(*starting(configs)), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        evaluated: set[str] = set()
        while len(evaluated) < 3:
            line = json.loads(process.stderr.readline())
            if line["what"] == "evaluated":
                evaluated.add(line["peer"])
        killed = int(Path("fed/peer2/peer2-state/lock").read_text(encoding="ascii"))
        command = psutil.Process(killed).parent()
        assert command is not None
        children = {child.pid: child for child in command.children()}
        assert len(children) == len(configs), "each is a child of the one command"
        os.kill(killed, signal.SIGKILL)
        seen = ""
        while "SIGKILL" not in seen:
            seen = process.stderr.readline()
        assert json.loads(seen)["peer"] == "peer2"
        process.send_signal(signal.SIGINT)
        lines = process.communicate(timeout=PATIENCE)[1].splitlines()
    assert process.returncode == 128 + signal.SIGKILL
    ends = [json.loads(line) for line in lines if '"what": "ended"' in line]
    assert {(end["peer"], end["fields"]["code"]) for end in ends} == {("peer1", 0), ("peer3", 0)}
    stops = [line for line in map(json.loads, lines) if line["what"] == "stopped"]
    assert {(stop["peer"], stop["text"], stop["fields"]["code"]) for stop in stops} >= {
        ("peer1", "paused; everything is kept", 0),
        ("peer3", "paused; everything is kept", 0),
    }
    assert not [child for child in children.values() if child.is_running() and child.status() != "zombie"]


@pytest.mark.slow
@needs_ipv6
def test_peers_meet_average_and_finish_over_ipv6(fedpeer: Fedpeer) -> None:
    rounds = 3
    learning = f"learning: {{algorithm: full-averaging, rounds: {rounds}, steps_between_averaging: 2}}"
    text = f"{learning}\ngossip: {{gather: {PATIENCE}}}\nsimulation: {{peers: 2, split: iid}}\n"
    Path("federation.yaml").write_text(text, encoding="utf-8")
    first = free_ports(2)
    addresses = (f"--address=peer{number}=https://[::1]:{first + number - 1}" for number in (1, 2))
    made = fedpeer("init", "fed", *addresses, "--federation", "federation.yaml", "--dashboard-host", "[::1]")
    assert made.code == 0, made.err
    files = [f"fed/peer{number}/peer{number}.yaml" for number in (1, 2)]
    with ExitStack() as running:
        one = running.enter_context(_started(files[0]))
        assert one.stderr is not None
        line = json.loads(one.stderr.readline())
        board = f"http://[::1]:{first + 100}"
        assert line["text"] == f"listening on [::1]:{first}; dashboard at {board}"
        # peer1 waits for peer2 in its first round, so it can be queried.
        token = Path("fed/peer1/keys/peer1.token")
        for where in (["--config", files[0]], ["--url", board, "--token-file", str(token)]):
            seen = fedpeer("status", "--json", *where)
            assert seen.code == 0, seen.err
            addressed = {peer["id"]: peer["address"] for peer in json.loads(seen.out)["peers"]}
            assert addressed == {f"peer{number}": f"https://[::1]:{first + number - 1}" for number in (1, 2)}
        shown = fedpeer("dashboard", "--config", files[0])
        assert shown.out == f"{board}/?token={token.read_text(encoding='ascii').strip()}\n"
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(shown.out.strip(), timeout=PATIENCE) as page:
            assert b"<html" in page.read()
        two = running.enter_context(_started(files[1]))
        ends = [each.communicate(timeout=PATIENCE)[1] for each in (one, two)]
    assert [one.returncode, two.returncode] == [0, 0], ends
    for number, end in enumerate(ends, 1):
        assert f"finished all {rounds} rounds" in end
        rows = Path(f"fed/peer{number}/peer{number}-state/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(row)["round"] for row in rows] == [1, 2, 3]
    one_model, other = (load_file(f"fed/peer{n}/peer{n}-state/model.safetensors") for n in (1, 2))
    for name, value in one_model.items():  # before an averaging they differ by 0.01 or more
        torch.testing.assert_close(value, other[name], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_two_peers_to_which_nobody_can_connect_average_through_a_third(fedpeer: Fedpeer) -> None:
    rounds = 3
    learning = f"learning: {{algorithm: full-averaging, rounds: {rounds}, steps_between_averaging: 2}}"
    text = f"{learning}\ngossip: {{gather: {PATIENCE}, topology: complete}}\nsimulation: {{peers: 3, split: iid}}\n"
    Path("federation.yaml").write_text(text, encoding="utf-8")
    options = ("--peers", "3", "--port", str(free_ports(3)), "--address", "peer2=none", "--address", "peer3=none")
    made = fedpeer("init", "fed", *options, "--federation", "federation.yaml")
    assert made.code == 0, made.err
    with ExitStack() as running:
        peers = [running.enter_context(_started(f"fed/peer{number}/peer{number}.yaml")) for number in (1, 2, 3)]
        ends = [each.communicate(timeout=PATIENCE)[1] for each in peers]
    assert [each.returncode for each in peers] == [0, 0, 0], ends
    told = [[json.loads(line) for line in end.splitlines()] for end in ends]
    assert next(line["text"] for line in told[1] if line["what"] == "started").startswith("outbound only")
    carried = [line["text"] for lines in told[1:] for line in lines if line["what"] == "carried"]
    assert any(
        text in carried for text in ("peer1 carries the connection to peer3", "peer1 carries the connection to peer2")
    )
    assert "peer1 carries connections of other peers to this one" in carried
    first, *others = (load_file(f"fed/peer{n}/peer{n}-state/model.safetensors") for n in (1, 2, 3))
    for name, value in first.items():
        for other in others:
            torch.testing.assert_close(value, other[name], atol=1e-5, rtol=0)


def _started(file: str) -> subprocess.Popen[str]:
    return subprocess.Popen(fedpeer_command(*starting([file])), stderr=subprocess.PIPE, text=True)
