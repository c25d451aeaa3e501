"""docs/peers.md, typed by a reader with nothing but that page: one folder, one command after the other, real peers.

Ports are replaced by free ones. `fedpeer start` and `fedpeer invite` keep running while the next commands are typed.
Commands without real peers run in the test process, whose fork server has torch.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from fedpeer.cli.main import run
from fedpeer.config.peer_file import PeerFile
from fedpeer.peer.runtime.dashboard.access import DashboardAddress, DashboardError, listener
from fedpeer.peer.runtime.dashboard.ask import ask

from .pages import PAGES, PEERS, REAL, ROOT, TYPED, commands
from .shell import environment, free_ports, in_shell

#: Time limit in seconds for one event, such as the start of a process that imports torch on a machine with other load.
PATIENCE_S = 90.0
#: Seconds between two polls.
LOOK_S = 0.1
#: Niceness of the running peers: they get a tenth of the processor time of other processes that want it.
ASIDE = 10
#: Offsets of the ports: 0 for the invitation, then the peers of the page.
PORTS = range(6)


@dataclass
class Reader:
    """Reader of the page: the folder, the running programs, and the token of the last invitation."""

    folder: Path
    base: int
    capsys: pytest.CaptureFixture[str]
    running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    token: str = ""
    invitation: subprocess.Popen[str] | None = None

    def ported(self, text: str) -> str:
        """Return the text with free ports for 7400 to 7405 and for the dashboards, whose ports are a hundred higher."""
        return re.sub(r"\b7([45])0(\d)\b", lambda m: str(self.base + int(m[2]) + 100 * (int(m[1]) - 4)), text)

    def types(self, command: str) -> str:
        """Run a command and return its output."""
        words = self.ported(command).replace("TOKEN", self.token)
        if words.startswith("fedpeer init"):
            words += f" --port {self.base + 1}"
        if words.startswith("fedpeer start"):
            return self._start(words)
        if words.startswith("fedpeer evaluate"):
            self.until(words.split()[-1], lambda status: status["scores"].get(status["peer"]))
        if words.startswith("fedpeer invite"):
            return self._invite(f"{words} --listen 127.0.0.1:{self.base}")
        if words.startswith("fedpeer") and not REAL.match(words):
            assert run(shlex.split(words)[1:]) == 0, self.capsys.readouterr().err
            return self.capsys.readouterr().out
        done = subprocess.run(
            ["bash", "-c", in_shell(words)],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if words.startswith("fedpeer join"):
            self._invited()
        return done.stdout

    def _start(self, words: str) -> str:
        config = words.split()[-1]
        if config in self.running:  # it was killed
            assert self.running.pop(config).wait(PATIENCE_S) == -signal.SIGKILL
        log = (self.folder / f"{Path(config).stem}.log").open("a", encoding="utf-8")
        with log:
            self.running[config] = subprocess.Popen(
                ["bash", "-c", "exec " + in_shell(words)], cwd=self.folder, env=environment(), stdout=log, stderr=log,
                text=True, start_new_session=True,
            )  # fmt: skip
        self.until(config, lambda status: True)
        # The page's rounds never end: typed commands need priority, or the peers use the whole machine for minutes.
        lock = self.folder / config.replace(".yaml", "-state") / "lock"
        os.setpriority(os.PRIO_PGRP, int(lock.read_text()), ASIDE)
        return ""

    def until(self, config: str, holds: Callable[[dict[str, Any]], object]) -> None:
        """Poll the peer's status, from the source that `fedpeer status` uses, until it is as wanted.

        A peer sends its status only on request, and its dashboard does not exist before the peer does.
        """
        end, said = time.monotonic() + PATIENCE_S, ""
        while time.monotonic() < end:
            assert self.running[config].poll() is None, (self.folder / f"{Path(config).stem}.log").read_text()
            try:
                status = ask(self._door(config))
            except DashboardError as error:  # the dashboard does not answer yet
                said = str(error)
            else:
                if holds(status):
                    return
                said = json.dumps(status)
            time.sleep(LOOK_S)
        raise AssertionError(f"{config} in vain: {said}")

    def _door(self, config: str) -> DashboardAddress:
        file = self.folder / config
        settings = PeerFile.model_validate(YAML(typ="safe").load(file)).dashboard
        assert settings is not None, "the page has a dashboard for each peer"
        return listener(settings, file.parent).door

    def _invite(self, words: str) -> str:
        self.invitation = subprocess.Popen(
            ["bash", "-c", "exec " + in_shell(words)], cwd=self.folder, env=environment(), stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self.invitation.stdout is not None
        printed = ""
        for line in self.invitation.stdout:
            printed += line
            if line.startswith("fedpeer join "):
                self.token = line.split()[-1]
                break
        assert self.token, printed
        return printed

    def _invited(self) -> None:
        assert self.invitation is not None
        said, _ = self.invitation.communicate(timeout=PATIENCE_S)
        assert self.invitation.returncode == 0
        assert "peer5 has joined: roster 2 has 5 peers." in said
        assert "Sent to: peer1" in said

    def end(self) -> None:
        """Stop everything that still runs, and store the exit code of each peer that ended by itself."""
        for config, process in self.running.items():
            if process.poll() is not None:
                self.ended[config] = process.returncode
        for config, process in self.running.items():
            process.send_signal(signal.SIGINT)
            try:
                assert process.wait(30) == self.ended.get(config, 0), (
                    self.folder / f"{Path(config).stem}.log"
                ).read_text()
            finally:
                process.kill()


def promised(text: str) -> Iterator[str]:
    """Yield the lines of an output that do not depend on the run: those without numbers that are not shortened."""
    for line in text.splitlines():
        if line and not re.search(r"\d|\.\.\.|[─–]", line):
            yield " ".join(line.split())


def typed() -> Iterator[tuple[str, str]]:
    """Yield each command of the page with the output shown under it; a file to be written has the name `#`."""
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```", PEERS.read_text(encoding="utf-8"), re.M | re.S):
        if language == "yaml" and text.startswith("# federation.yaml"):
            yield "#", text
        elif language == "console":
            for command, _, printed in (each.partition("\n") for each in re.split(r"^\$ ", text, flags=re.M)[1:]):
                yield command, printed


@pytest.mark.slow
def test_the_page_of_real_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FEDPEER_RUNS", raising=False)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    reader = Reader(tmp_path, free_ports(PORTS), capsys)
    try:
        for command, shown in typed():
            if command == "#":
                (tmp_path / "federation.yaml").write_text(shown, encoding="utf-8")
                continue
            printed = " ".join(reader.types(command).split())
            missing = [line for line in promised(shown) if line not in printed]
            assert not missing, f"{command} does not print {missing}, but\n{printed}"
            if command.startswith("fedpeer leave"):
                assert reader.running.pop("peer5/peer5.yaml").wait(PATIENCE_S) == 0
            if command.startswith("fedpeer revoke"):
                assert reader.running.pop("wards/peer4/peer4.yaml").wait(PATIENCE_S) == 2
        for config in reader.running:
            reader.until(config, lambda status: status["roster"] == 3)
        rows = (tmp_path / "predictions.csv").read_text(encoding="utf-8").splitlines()
        assert rows[0] == "prediction,probability benign,probability malignant"
        assert len(rows) == len((tmp_path / "ward5.csv").read_text(encoding="utf-8").splitlines())
    finally:
        reader.end()
    assert set(reader.running) == {f"wards/peer{n}/peer{n}.yaml" for n in (1, 2, 3)}
    assert not reader.ended, "a peer ended by itself"


@pytest.mark.parametrize("page", [each for each in PAGES if each not in TYPED], ids=lambda page: page.name)
def test_commands_of_real_peers_elsewhere_are_those_of_that_page(page: Path) -> None:
    """Commands of real peers on other pages also occur on the page of real peers, because only that page is run."""
    known = set(commands(PEERS))
    assert [each for each in commands(page) if REAL.match(each) and each not in known] == []
