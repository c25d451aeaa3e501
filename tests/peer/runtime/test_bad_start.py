"""Reaction of `fedpeer start` to a machine that is not ready, and reaction of the service manager to its exit code.

Each peer here is a real process that logs to standard error. Disks and addresses belong to namespaces that each test
makes for itself. Exit codes are compared with the unit files themselves. Ids are those of the table of bad inputs.
"""

from __future__ import annotations

import configparser
import json
import os
import queue
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedpeer.cli.main import run
from fedpeer.peer.runtime.dashboard.access import DashboardAddress, read_token
from fedpeer.peer.runtime.dashboard.ask import ask
from fedpeer.peer.runtime.listener import bind_socket
from tests.docs.pages import ROOT, blocks
from tests.forked import python
from tests.peer.runtime.test_bad_machine import change, settled

pytestmark = pytest.mark.slow

#: Seconds after which something counts as hanging, on a busy machine.
PATIENCE = 120.0
#: An address that no interface of a new network namespace has.
ABSENT = "10.99.0.1"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A peer's file, and all files that it names."""
    return settled(tmp_path / "wards")


# ---------------------------------------------------------------------------------------------------------- the service


class Unit:
    """Rules of systemd after a process of a unit has ended, by systemd.service(5)."""

    def __init__(self, text: str) -> None:
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.read_string(text)
        self.service = unit["Service"]

    def restarts(self, code: int) -> bool:
        """Return whether systemd restarts the process; `code` is its exit code, or minus the number of its signal."""
        assert self.service["Restart"] == "on-failure"
        clean = {0, -signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM, -signal.SIGPIPE}
        prevented = set(map(int, self.service.get("RestartPreventExitStatus", "").split()))
        return code not in clean | prevented

    @property
    def pause(self) -> float:
        """Seconds before systemd restarts it; without a number systemd gives up after five starts in ten seconds."""
        return float(self.service.get("RestartSec", "0.1"))


TEMPLATE = Unit((ROOT / "examples" / "deploy" / "fedpeer@.service").read_text(encoding="utf-8"))
PAGE = Unit(next(text for text in blocks(ROOT / "docs" / "peers.md", "ini") if "[Service]" in text))
UNITS = pytest.mark.parametrize("unit", [TEMPLATE, PAGE], ids=["template", "page"])


@UNITS
def test_a_unit_starts_again_after_what_may_pass_and_not_after_what_a_person_must_mend(unit: Unit) -> None:
    assert [code for code in (0, 1, 2, 75, -signal.SIGKILL, -signal.SIGTERM) if unit.restarts(code)] == [
        1,
        75,
        -signal.SIGKILL,
    ]
    assert unit.pause >= 5.0


# ----------------------------------------------------------------------------------------------------- a real process


class Started:
    """A process of `fedpeer start`, and the lines of its log as they come."""

    def __init__(self, file: Path, before: Sequence[str] = (), memory: int | None = None) -> None:
        def limited() -> None:
            if memory is not None:
                resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

        program = python() if memory is None else [sys.executable]  # a forked process has the limits of its parent
        self.process = subprocess.Popen(
            [*before, *program, "-m", "fedpeer", "start", "--config", str(file)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            text=True,
            preexec_fn=limited,
        )
        self._lines = queue.SimpleQueue[str | None]()
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def next(self) -> str:
        """Return the next line, or "" at the end."""
        line = self._lines.get(timeout=PATIENCE)
        self.said.append(line or "")
        return line or ""

    def line(self, what: str) -> dict[str, Any]:
        """Return the next line of the log with this name."""
        while text := self.next():
            if text.startswith("{") and (line := json.loads(text))["what"] == what:
                assert isinstance(line, dict)
                return line
        raise AssertionError(f"it ended without {what}: {self.said}")

    def code(self) -> int:
        """Wait for the end of the process and return its exit code."""
        while self.next():
            pass
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        """Kill the process and release all that belongs to it."""
        self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def inside(self, path: Path) -> Path:
        """Return a path through `/proc` to what the process sees at `path`."""
        return Path(f"/proc/{self.process.pid}/root{path}")

    def carries_out(self, *words: str) -> None:
        """Run a command in the process's namespaces."""
        subprocess.run(["nsenter", "--target", str(self.process.pid), "--mount", "--net", *words], check=True)


@contextmanager
def started(file: Path, before: Sequence[str] = (), memory: int | None = None) -> Iterator[Started]:
    peer = Started(file, before, memory)
    try:
        yield peer
    finally:
        peer.end()


def apart(kind: str, script: str) -> list[str]:
    """Return the words that run a command in a new namespace of this kind, after the script has run in it."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "mount", "ip"))):
        pytest.skip("namespaces need root, and unshare, nsenter, mount and ip")
    kinds = ["--mount", "--propagation", "private"] if kind == "mount" else ["--net"]
    if subprocess.run(["unshare", *kinds, "true"], capture_output=True).returncode:
        pytest.skip(f"this machine makes no {kind} namespace")
    return ["unshare", *kinds, "sh", "-c", f'{script} && exec "$@"', "sh"]


def fill(path: Path) -> None:
    """Fill all room that is left on a disk."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def with_dashboard(file: Path) -> DashboardAddress:
    """Give the peer a dashboard on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    token = file.parent / "keys" / "peer1.token"
    change(file, dashboard={"listen": f"127.0.0.1:{port}", "token_file": str(token)})
    return DashboardAddress(f"http://127.0.0.1:{port}", read_token(token))


@pytest.mark.parametrize("how", [pytest.param("full", id="D06-full"), pytest.param("read-only", id="D06-read-only")])
def test_a_disk_that_cannot_be_written_is_said_at_once_and_waited_for(file: Path, how: str) -> None:
    state = file.parent / "peer1-state"
    state.mkdir(mode=0o700)
    door, filler = with_dashboard(file), state / "filler"
    mounted = {
        "full": f"mount -t tmpfs -o size=1m,mode=700 none {state} && (cat /dev/zero > {filler} 2> /dev/null || true)",
        "read-only": f"mount --bind {state} {state} && mount -o remount,bind,ro {state}",
    }
    with started(file, apart("mount", mounted[how])) as peer:
        first = json.loads(peer.next())
        assert first["what"] == "persist_failed", "before anything else"
        assert {"full": "No space left", "read-only": "Read-only file system"}[how] in first["text"]
        seen = ask(door)
        assert seen["state"] == "waiting"
        assert [row["code"] for row in seen["refusals"]] == ["persist_failed"]
        assert seen["log"][0]["text"] == first["text"]
        assert peer.process.poll() is None
        if how == "full":
            peer.inside(filler).unlink()
        else:
            peer.carries_out("mount", "-o", "remount,bind,rw", str(state))
        peer.line("started")
        if how == "full":
            fill(peer.inside(filler))
        peer.process.send_signal(signal.SIGTERM)
        if how == "full":
            peer.line("persist_failed")
            assert peer.process.poll() is None, "a pause that is not saved is none"
            peer.inside(filler).unlink()
            peer.line("saving_again")
        assert peer.code() == 0
        assert not TEMPLATE.restarts(0), "it was told to pause"


def test_a_peer_that_waits_can_be_told_to_stop_and_lives_no_second_time(file: Path) -> None:
    state = file.parent / "peer1-state"
    state.mkdir(mode=0o700)
    script = f"mount --bind {state} {state} && mount -o remount,bind,ro {state}"
    with started(file, apart("mount", script)) as peer:
        peer.line("persist_failed")
        peer.process.send_signal(signal.SIGTERM)
        assert "paused before it could begin" in peer.line("stopped")["text"]
        assert peer.code() == 0
    assert not list(state.iterdir())


@pytest.mark.parametrize("host", [pytest.param(ABSENT, id="D04-address-absent")])
def test_an_address_that_is_not_there_yet_is_waited_for(file: Path, host: str) -> None:
    change(file, listen=f"{host}:7401")
    with started(file, apart("net", "ip link set lo up")) as peer:
        line = peer.line("not_listening")
        assert f"cannot listen on {host}:7401" in line["text"]
        assert "bring up the interface that has it" in line["text"]
        peer.carries_out("ip", "address", "add", f"{host}/32", "dev", "lo")
        assert f"listening on {host}:7401" in peer.line("started")["text"]


@pytest.mark.parametrize("setting", ["listen", "dashboard"], ids=["D04-port-taken", "D04-dashboard-taken"])
def test_a_port_in_use_is_for_another_start(file: Path, setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    door = with_dashboard(file)
    with bind_socket("127.0.0.1", int(door.url.rpartition(":")[2]) if setting == "dashboard" else 0) as taken:
        if setting == "listen":
            change(file, listen=f"127.0.0.1:{taken.getsockname()[1]}", dashboard=None)
        code = run(["start", "--quiet", "--config", str(file)])
    said = " ".join(capsys.readouterr().err.split())
    assert re.fullmatch(
        rf"cannot listen on 127\.0\.0\.1:\d+ \(another process has the port\); change `{setting}(\.listen)?`, "
        "or stop the process that has the port",
        said,
    )
    assert code == 75
    assert TEMPLATE.restarts(code)
    assert PAGE.restarts(code)


@pytest.mark.parametrize("dashboard", [pytest.param(True, id="D08"), pytest.param(False, id="D08-no-dashboard")])
def test_a_second_start_is_told_which_process_runs(
    file: Path, dashboard: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second start names the running process, and the first process is not affected."""
    door = with_dashboard(file) if dashboard else None
    with started(file) as peer:
        peer.line("started")
        code = run(["start", "--quiet", "--config", str(file)])
        said = " ".join(capsys.readouterr().err.split())
        (lock,) = file.parent.rglob("lock")
        assert f"another process ({lock.read_text()}) already runs this peer" in said
        assert psutil.pid_exists(int(lock.read_text()))
        assert code == 2
        assert not TEMPLATE.restarts(code)
        assert door is None or ask(door)["state"] != "waiting"
        peer.process.send_signal(signal.SIGTERM)
        assert peer.code() == 0


@pytest.mark.parametrize("mega", [pytest.param(400, id="D07-memory")])
def test_too_little_memory_is_for_another_start(file: Path, mega: int) -> None:
    """The memory is too small even for the libraries, and the exit code asks for another start."""
    with started(file, memory=mega << 20) as peer:
        code = peer.code()
    assert code == 75, peer.said
    assert "there is too little memory" in " ".join("".join(peer.said).split())
    assert TEMPLATE.restarts(code)
    assert PAGE.restarts(code)


@UNITS
def test_a_mistake_of_a_person_is_not_tried_again(file: Path, unit: Unit, capsys: pytest.CaptureFixture[str]) -> None:
    change(file, listen="no-such-host.invalid:7401", roster="nowhere.json")
    code = run(["start", "--quiet", "--config", str(file)])
    assert "nowhere.json" in capsys.readouterr().err
    assert not unit.restarts(code)
