"""Real peers on `Hosts`: a federation made by `fedpeer init`, its folders copied, its peers started and watched.

Tests treat a peer only as a person does: by commands, by signals, and by reading the files that it writes. Nothing here
sleeps for a fixed time; each wait polls until its condition holds, and a limit ends it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpeer.sims.processes.watch import JsonLinesReader
from tests.forked import KILL, STOP, fedpeer_command
from tests.net.hosts import Hosts

#: Limit in seconds for anything that takes some seconds on an idle machine.
PATIENCE_S = 120.0
#: Seconds between two polls.
LOOK_S = 0.05
#: Niceness of a peer that steps aside: it gets a tenth of the time of other processes that want it.
ASIDE = 10
#: Several peers share few cores; threads of the linear algebra would only be in each other's way.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "COLUMNS": "80"}


def until(done: Callable[[], bool], what: str | Callable[[], str], limit_s: float = PATIENCE_S) -> None:
    """Poll until the condition holds."""
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(LOOK_S)


@dataclass
class Peer:
    """One peer: its host, its file, and the process that runs it now or ran it last."""

    hosts: Hosts
    host: str
    id: str
    file: Path
    process: subprocess.Popen[bytes] | None = None
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._metrics = JsonLinesReader(self.state / "metrics.jsonl")
        self._log = JsonLinesReader(self.state / "log.jsonl")

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def state(self) -> Path:
        return self.folder / f"{self.id}-state"

    @property
    def pid(self) -> int:
        """Number of the process that did the rounds: the program itself, not the client that started it."""
        return int((self.state / "lock").read_text())

    # ------------------------------------------------------------------------------------------------------ commands

    def start(self, *options: str) -> None:
        command = fedpeer_command("start", "--config", self.file.name, *options)
        with (self.folder / "terminal.log").open("ab") as terminal:
            self.process = self.hosts.start(self.host, command, folder=self.folder, err=terminal, env=ENVIRONMENT)

    def run(self, *words: str, limit_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run a command of fedpeer on this host, in the peer's folder."""
        return run(self.hosts, self.host, self.folder, *words, limit_s=limit_s)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None, "it was started"
        self.process.send_signal({signal.SIGKILL: KILL, signal.SIGSTOP: STOP}.get(number, number))

    def steps_aside(self) -> None:
        """Lower the peer's priority below everything else: a peer that never ends takes all of a machine's time."""
        os.setpriority(os.PRIO_PGRP, self.pid, ASIDE)

    def kill(self) -> None:
        """Kill the peer at once, as a power cut does."""
        self.signal(signal.SIGKILL)
        assert self.process is not None, "it was started"
        self.process.wait()

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ended(self, limit_s: float = PATIENCE_S) -> int:
        """Wait until the peer has ended; return its exit code."""
        until(lambda: not self.runs, lambda: f"{self.id} ends; it said:\n{self.said}", limit_s)
        assert self.process is not None, "it was started"
        return self.process.returncode

    # --------------------------------------------------------------------------------------------------------- files

    def look(self) -> None:
        """Read the rows and lines that the peer wrote since the last call."""
        for row in self._metrics.new():
            self.rows[row["round"]] = row
        self.lines += self._log.new()

    @property
    def done(self) -> int:
        """The last round that the peer finished."""
        self.look()
        return max(self.rows, default=0)

    def reaches(self, round: int, limit_s: float = PATIENCE_S) -> None:
        def told() -> str:
            return f"{self.id} reaches round {round}; it is in {self.done} and said:\n{self.said}"

        until(lambda: self.done >= round, told, limit_s)

    def logged(self, what: str, text: str = "") -> list[str]:
        """Return the texts of the log lines of this name that contain this text."""
        self.look()
        return [line["text"] for line in self.lines if line["what"] == what and text in line["text"]]

    def logs(self, what: str, text: str = "", limit_s: float = PATIENCE_S) -> str:
        """Wait for such a log line; return the text of the first."""
        until(
            lambda: bool(self.logged(what, text)),
            lambda: f'{self.id} logs {what} with "{text}"; it said:\n{self.said}',
            limit_s,
        )
        return self.logged(what, text)[0]

    @property
    def accuracy(self) -> float:
        """The accuracy that the peer last measured."""
        self.look()
        return float(
            self.rows[max(round for round, row in self.rows.items() if row["accuracy"] is not None)]["accuracy"]
        )

    @property
    def said(self) -> str:
        """The end of the peer's terminal output."""
        path = self.folder / "terminal.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""


def run(
    hosts: Hosts, host: str, folder: Path, *words: str, limit_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    """Run a command of fedpeer on a host, as a person does."""
    command = fedpeer_command(*words)
    process = hosts.start(host, command, folder=folder, out=subprocess.PIPE, err=subprocess.PIPE, env=ENVIRONMENT)
    out, err = process.communicate(timeout=limit_s)
    return subprocess.CompletedProcess(command, process.returncode, out.decode(), err.decode())


def settle(
    hosts: Hosts, folder: Path, tables: dict[str, Path], federation: str, label: str, *options: str
) -> dict[str, Peer]:
    """Run `fedpeer init` on the first host, and copy each peer's folder and table to where its host has them."""
    (folder / "template.yaml").write_text(federation, encoding="utf-8")
    made = run(
        hosts,
        next(iter(hosts.address)),
        folder,
        *("init", "office", "--peers", ",".join(tables)),
        *("--hosts", ",".join(hosts.address[peer] for peer in tables)),
        *("--federation", "template.yaml", "--data", f"csv:{{id}}.csv,label={label}", *options),
    )
    assert made.returncode == 0, made.stderr
    found = {}
    for peer, table in tables.items():
        place = folder / "machines" / peer
        shutil.copytree(folder / "office" / peer, place)
        shutil.copy(table, place / f"{peer}.csv")
        found[peer] = Peer(hosts, peer, peer, place / f"{peer}.yaml")
    return found


def finish(peers: Sequence[Peer], limit_s: float = PATIENCE_S) -> None:
    """Wait until all of these peers have ended with exit code 0."""
    for peer in peers:
        code = peer.ended(limit_s)
        assert code == 0, f"{peer.id} ended with {code}:\n{peer.said}"


def mean_accuracy(peers: Sequence[Peer]) -> float:
    return sum(peer.accuracy for peer in peers) / len(peers)


def status_of(peer: Peer) -> dict[str, Any]:
    """Return what `fedpeer status --json` prints on the peer's host."""
    shown = peer.run("status", "--config", peer.file.name, "--json")
    assert shown.returncode == 0, shown.stderr
    found: dict[str, Any] = json.loads(shown.stdout)
    return found
