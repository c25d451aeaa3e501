"""Real peers on such hosts: a federation made by `fedpeer init`, its folders copied, its peers started and watched.

A peer is only ever touched as a person touches it: by commands, by signals, and by reading the files that it writes.
Nothing here sleeps for a time; it looks again until something is there, and a limit ends every wait.
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

#: Seconds for anything that takes some seconds on a quiet machine.
PATIENCE_S = 120.0
#: Seconds between two looks.
LOOK_S = 0.05
#: The niceness of who steps aside: a tenth of what others get, where they want it.
ASIDE = 10
#: Several peers share few cores; threads of the linear algebra would only be in each other's way.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "COLUMNS": "80"}


def until(done: Callable[[], bool], what: str | Callable[[], str], limit_s: float = PATIENCE_S) -> None:
    """Look until it is so."""
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
        """The process that has done a round: that of the program, not of the client that was started."""
        return int((self.state / "lock").read_text())

    # ------------------------------------------------------------------------------------------------------ commands

    def start(self, *options: str) -> None:
        command = fedpeer_command("start", "--config", self.file.name, *options)
        with (self.folder / "terminal.log").open("ab") as terminal:
            self.process = self.hosts.start(self.host, command, folder=self.folder, err=terminal, env=ENVIRONMENT)

    def run(self, *words: str, limit_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """A command of fedpeer on this host, in the peer's folder."""
        return run(self.hosts, self.host, self.folder, *words, limit_s=limit_s)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None, "it was started"
        self.process.send_signal({signal.SIGKILL: KILL, signal.SIGSTOP: STOP}.get(number, number))

    def steps_aside(self) -> None:
        """It goes on, and lets everything else go first: who learns without end takes all that a machine has."""
        os.setpriority(os.PRIO_PGRP, self.pid, ASIDE)

    def kill(self) -> None:
        """At once, as a power cut does."""
        self.signal(signal.SIGKILL)
        assert self.process is not None, "it was started"
        self.process.wait()

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ended(self, limit_s: float = PATIENCE_S) -> int:
        """Its exit code, once it has one."""
        until(lambda: not self.runs, lambda: f"{self.id} ends; it said:\n{self.said}", limit_s)
        assert self.process is not None, "it was started"
        return self.process.returncode

    # --------------------------------------------------------------------------------------------------------- files

    def look(self) -> None:
        """Take up what it wrote since the last look."""
        for row in self._metrics.new():
            self.rows[row["round"]] = row
        self.lines += self._log.new()

    @property
    def done(self) -> int:
        """The last round that it finished."""
        self.look()
        return max(self.rows, default=0)

    def reaches(self, round: int, limit_s: float = PATIENCE_S) -> None:
        def told() -> str:
            return f"{self.id} reaches round {round}; it is in {self.done} and said:\n{self.said}"

        until(lambda: self.done >= round, told, limit_s)

    def logged(self, what: str, text: str = "") -> list[str]:
        """The lines of its log by this name that have these words."""
        self.look()
        return [line["text"] for line in self.lines if line["what"] == what and text in line["text"]]

    def logs(self, what: str, text: str = "", limit_s: float = PATIENCE_S) -> str:
        """The first such line, once it is there."""
        until(
            lambda: bool(self.logged(what, text)),
            lambda: f'{self.id} logs {what} with "{text}"; it said:\n{self.said}',
            limit_s,
        )
        return self.logged(what, text)[0]

    @property
    def accuracy(self) -> float:
        """As it last measured itself."""
        self.look()
        return float(
            self.rows[max(round for round, row in self.rows.items() if row["accuracy"] is not None)]["accuracy"]
        )

    @property
    def said(self) -> str:
        """The end of its terminal."""
        path = self.folder / "terminal.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""


def run(
    hosts: Hosts, host: str, folder: Path, *words: str, limit_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    """A command of fedpeer on a host, as a person gives it."""
    command = fedpeer_command(*words)
    process = hosts.start(host, command, folder=folder, out=subprocess.PIPE, err=subprocess.PIPE, env=ENVIRONMENT)
    out, err = process.communicate(timeout=limit_s)
    return subprocess.CompletedProcess(command, process.returncode, out.decode(), err.decode())


def settle(
    hosts: Hosts, folder: Path, tables: dict[str, Path], federation: str, label: str, *options: str
) -> dict[str, Peer]:
    """`fedpeer init` on the first host, and each peer's folder and table copied to where its host has them."""
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
    """Wait until all of them have ended, with a good end."""
    for peer in peers:
        code = peer.ended(limit_s)
        assert code == 0, f"{peer.id} ended with {code}:\n{peer.said}"


def mean_accuracy(peers: Sequence[Peer]) -> float:
    return sum(peer.accuracy for peer in peers) / len(peers)


def status_of(peer: Peer) -> dict[str, Any]:
    """What `fedpeer status --json` prints on its host."""
    shown = peer.run("status", "--config", peer.file.name, "--json")
    assert shown.returncode == 0, shown.stderr
    found: dict[str, Any] = json.loads(shown.stdout)
    return found
