"""Files of an earlier release: its wheel, states, a run and frames, unpacked or installed where a test wants them.

FOLDER                        the files, made as its README.md says
unpacked("gossip", tmp_path)  a federation of three peers that were killed at work: federation.yaml, roster.json,
                              authority/, peer1/ ... with their keys and states; "server" is one whose rounds a
                              coordinator closes, "runs" has an interrupted run
moved(folder)                 the same federation on ports that are free now: a next roster, signed by its authority
old_release (tests/conftest.py)   the release itself, installed once for all tests of a process; `old_release.start(
                              config)` starts a peer of it, `old_release.run("init", "fed", "--peers", "3")` any
                              command; both away from the checkout, so that its fedpeer is not found first. Its
                              programs are forks of one that has imported it, as those of `tests/forked/` are
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fedpeer.peer.runtime.authority import open_authority
from fedpeer.peer.wire.roster import sign, to_bytes
from fedpeer.sims.processes.settling import free_ports
from tests.forked import HERE, ROOT, started

FOLDER = Path(__file__).parent / "v0.3-499fa2e"
PEERS = ("peer1", "peer2", "peer3")
#: Modules of the release that its programs use, for the server of `tests/forked/`. Its compiled loop, which no program
#: needs here, would be compiled for seconds in a new folder.
PRELOADED = (
    "sklearn.datasets",
    "fedpeer.sims.simulate",
    "fedpeer.peer.shell.process",
    "fedpeer.peer.shell.prepared",
    "fedpeer.cli.main",
    "fedpeer.cli.peer_config",
    "fedpeer.data.tables",
)


def unpacked(name: str, place: Path) -> Path:
    """Unpack the folder `name`, as it was left, into `place`."""
    with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has no filters
        archive.extractall(place)
    return place / name


def moved(folder: Path) -> Path:
    """Move the federation in this folder to free ports of this machine."""
    authority = open_authority(folder)
    first = free_ports(len(PEERS))
    old = {entry.id: entry.address for entry in authority.roster.entries}
    new = {peer: f"https://127.0.0.1:{first + number}" for number, peer in enumerate(PEERS)}
    entries = tuple(replace(entry, address=new[entry.id]) for entry in authority.roster.entries)
    roster = replace(authority.roster, number=authority.roster.number + 1, entries=entries)
    for path in folder.rglob("roster.json"):
        path.write_bytes(to_bytes(sign(roster, authority.identity.key)))
    for peer in PEERS:
        config = folder / peer / f"{peer}.yaml"
        lines = [line for line in config.read_text(encoding="utf-8").splitlines() if not line.startswith("dashboard:")]
        text = "\n".join([*lines, ""])
        for each in PEERS:
            text = text.replace(old[each].removeprefix("https://"), new[each].removeprefix("https://"))
        config.write_text(text, encoding="utf-8")
    return folder


@dataclass(frozen=True)
class OldRelease:
    """An installed earlier release; `place` holds it and nothing else."""

    place: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.place), "OMP_NUM_THREADS": "1"}

    def command(self, *words: str) -> list[str]:
        """Return the command `fedpeer` with these words, to be run in `environment`."""
        if sys.platform == "win32":
            return [sys.executable, "-P", "-m", "fedpeer", *words]
        client = [sys.executable, "-I", "-S", str(HERE / "client.py"), self._server]
        return [*client, "-P", "-m", "fedpeer", *words]

    @cached_property
    def _server(self) -> str:
        """Start the server that forks the release's programs; return the path of its socket."""
        return started((str(self.place), str(ROOT)), PRELOADED, self.environment)  # the checkout has the server

    def run(self, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run `fedpeer` with these words, in a folder."""
        return subprocess.run(self.command(*words), cwd=folder, env=self.environment, text=True, capture_output=True)

    def start(self, config: Path) -> subprocess.Popen[str]:
        """Start a peer, whose log is its standard error. Once it has met another peer, it pauses when its standard
        input is closed; kill it otherwise."""
        return subprocess.Popen(
            self.command("start", "--config", str(config), "--attached"),
            cwd=config.parent,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


def installed(place: Path) -> OldRelease:
    """Unpack the kept wheel into this folder, which is what pip does with a wheel of Python files."""
    (wheel,) = FOLDER.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return OldRelease(place)
