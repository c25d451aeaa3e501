"""A federation of the release before this one is upgraded peer by peer, while the others go on averaging.

All peers are real processes over mutual TLS: keys, roster and files are made by the old release, and each peer goes on
in its own folder with this one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from fedpeer.cli.peer_config import load_peer
from fedpeer.peer.runtime.dashboard.access import DashboardAddress, DashboardError, listener
from fedpeer.peer.runtime.dashboard.ask import ask
from fedpeer.sims.processes.settling import free_ports
from fedpeer.version import __version__
from tests.forked import fedpeer_command
from tests.kept.release import PEERS, OldRelease, moved, unpacked
from tests.net.masses import mass_errors, state_in

#: Seconds after which something counts as hanging, on a busy machine.
PATIENCE_S = 240.0
#: Seconds between two polls.
LOOK_S = 0.25
#: Rounds that all peers do together before the next one is upgraded.
TOGETHER = 3
#: Most frames in an unknown version that an old peer may receive from a new one before that one uses a known version.
UNSUPPORTED_MAX = 10
#: Names of log lines about a change of the wire version that is used with a neighbor.
SPEAKING = ("older_version", "newer_version")
FEDERATION = """\
name: upgraded
network: {mlp: {layers: [64, 3, 10]}}
partial_models:
  everyone: {neurons: all}
learning: {optimizer: {sgd: {lr: 0.05}}, batch_size: 4, steps_between_averaging: 5, rounds: 1000000,
  evaluate_every: 1000000}
gossip: {topology: complete, exchanges: 2, deadline: 60, gather: 60, tick: 0.1}
simulation: {peers: 3, dataset: digits, split: iid}
"""


@dataclass
class Federation:
    """The peers of a folder as processes, each of the old release or of this one."""

    folder: Path
    old: OldRelease
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def file(self, peer: str) -> Path:
        return self.folder / peer / f"{peer}.yaml"

    def start(self, peer: str, *, old: bool = False) -> None:
        """Start a peer in its folder, with the old release or with this one."""
        home = self.file(peer).parent
        words = ["start", "--quiet", "--config", self.file(peer).name]
        with (home / "output.txt").open("ab") as output:
            self.running[peer] = subprocess.Popen(
                self.old.command(*words) if old else fedpeer_command(*words),
                cwd=home,
                env=self.old.environment if old else {**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=output,
            )

    def pause(self, peer: str) -> None:
        """Pause a peer as a service manager does, and check that it exits with 0."""
        process = self.running.pop(peer)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, self.said(peer)

    def said(self, peer: str) -> str:
        """Return the end of a peer's output."""
        return (self.file(peer).parent / "output.txt").read_text(encoding="utf-8")[-3000:]

    def log(self, peer: str) -> list[dict[str, Any]]:
        """Return all lines of a peer's log, of the release before and of this one."""
        text = (self.folder / peer / f"{peer}-state" / "log.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def versions(self, peer: str) -> list[tuple[str, str]]:
        """Return the lines of a peer's log, in order, about the wire versions in which it sends to the others."""
        return [(line["what"], line["fields"]["peer"]) for line in self.log(peer) if line["what"] in SPEAKING]

    @cached_property
    def dashboards(self) -> dict[str, DashboardAddress]:
        """Return the addresses of the dashboards."""
        files = {peer: load_peer(self.file(peer)).file for peer in PEERS}
        return {
            peer: listener(file.dashboard, self.file(peer).parent).door
            for peer, file in files.items()
            if file.dashboard is not None
        }

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Return the status on each running peer's dashboard, without those that do not answer yet."""
        found = {}
        for peer, process in self.running.items():
            assert process.poll() is None, self.said(peer)
            try:
                found[peer] = ask(self.dashboards[peer])
            except DashboardError:
                continue
        return found

    def until(self, holds: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
        """Wait until the statuses of all are as wanted; return them."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            found = self.statuses()
            if len(found) == len(self.running) and holds(found):
                return found
            time.sleep(LOOK_S)
        raise AssertionError({peer: (self.said(peer), self.log(peer)[-10:]) for peer in self.running})

    def until_rounds_go_on(self) -> dict[str, dict[str, Any]]:
        """Wait until all have done some rounds in which each saw all others alive, left no peer out, and rejected no
        peer's version."""
        since = self.until(all_alive)
        began = {peer: status["round"] for peer, status in since.items()}

        def together(now: dict[str, dict[str, Any]]) -> bool:
            nonlocal since, began
            if not all_alive(now) or disturbances(now) != disturbances(since):
                since, began = now, {peer: status["round"] for peer, status in now.items()}
            return all(now[peer]["round"] >= began[peer] + TOGETHER for peer in now)

        return self.until(together)


def all_alive(statuses: dict[str, dict[str, Any]]) -> bool:
    """Return whether each peer sees each other one alive and has begun its rounds."""
    return all(
        status["round"] > 0 and {each["id"] for each in status["peers"] if each["state"] in ("me", "alive")} >= {*PEERS}
        for status in statuses.values()
    )


def disturbances(statuses: dict[str, dict[str, Any]]) -> dict[str, tuple[float, int]]:
    """Return by peer how often it went on without another peer, and how many frames it rejected for their version."""
    return {peer: (status["counters"]["late"], unsupported(status)) for peer, status in statuses.items()}


def unsupported(status: dict[str, Any]) -> int:
    return sum(row["count"] for row in status["refusals"] if row["code"] == "version_unsupported")


@contextmanager
def federation(folder: Path, old: OldRelease) -> Iterator[Federation]:
    """Yield a new federation, made by the old release; peers that still run at the end are killed."""
    (folder / "federation.yaml").write_text(FEDERATION, encoding="utf-8")
    words = ["init", "fed", "--federation", "federation.yaml", "--peers", str(len(PEERS))]
    outcome = old.run(*words, "--port", str(free_ports(len(PEERS))), folder=folder)
    assert outcome.returncode == 0, outcome.stderr
    made = Federation(folder / "fed", old)
    try:
        yield made
    finally:
        for process in made.running.values():
            process.kill()
            process.wait()


def test_the_release_can_be_installed_beside_this_one(old_release: OldRelease, tmp_path: Path) -> None:
    """A peer of that release starts with a roster that this release signs."""
    version = old_release.run("--version", folder=tmp_path)
    assert re.search(r"\b0\.2\.0\b", version.stdout), version
    peer = old_release.start(moved(unpacked("gossip", tmp_path)) / "peer1" / "peer1.yaml")
    assert peer.stderr is not None
    assert any("listening on" in line for line in peer.stderr)
    peer.kill()
    peer.communicate()


@pytest.mark.slow
def test_peers_are_upgraded_one_after_the_other_while_all_go_on(old_release: OldRelease, tmp_path: Path) -> None:
    with federation(tmp_path, old_release) as made:
        for peer in PEERS:
            made.start(peer, old=True)
        found = made.until_rounds_go_on()
        before = {peer: status["version"] for peer, status in found.items()}
        assert set(before.values()) == {"0.2.0"}
        for number, peer in enumerate(PEERS):
            rounds = {each: status["round"] for each, status in found.items()}
            made.pause(peer)
            made.start(peer)
            found = made.until_rounds_go_on()
            assert all(found[each]["round"] > rounds[each] for each in PEERS)
            assert {each for each in PEERS if found[each]["version"] != before[each]} == {*PEERS[: number + 1]}
            for each in PEERS[number + 1 :]:  # these have the old release, and have received from each new one
                assert 0 < unsupported(found[each]) <= UNSUPPORTED_MAX * (number + 1)
        assert {status["version"] for status in found.values()} == {__version__}
        assert not any(unsupported(status) for status in found.values())
        for peer in PEERS:
            made.pause(peer)
        for number, peer in enumerate(PEERS):
            behind = {("older_version", each) for each in PEERS[number + 1 :]}
            spoken = made.versions(peer)
            assert set(spoken[: len(behind)]) == behind, "the newest first, until that was refused"
            assert spoken[len(behind) :] == [("newer_version", each) for each in PEERS[number + 1 :]]
            refused = [line["fields"]["code"] for line in made.log(peer) if line["what"] == "refused"]
            assert "version_unsupported" not in refused, "who finds the version that both speak warns of nothing"
        durable_states = {peer: state_in(made.file(peer)) for peer in PEERS}
        assert {durable.incarnation for durable in durable_states.values()} == {1}
        assert all(durable.met == dict.fromkeys({*PEERS} - {peer}, 1) for peer, durable in durable_states.items())
        assert all(
            holding.written_off == 0 for durable in durable_states.values() for holding in durable.groups.values()
        )
        errors = mass_errors([made.file(peer) for peer in PEERS])
        assert errors.keys() == {"everyone"}
        assert errors["everyone"] < 1e-9
