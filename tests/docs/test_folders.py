"""Pages that begin with `fedpeer new`: each command is typed in the folder that the one before it has left.

Runs have one round, texts are short, and flights few. Three real peers take the place of 33.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpeer.cli.main import run
from fedpeer.experiments.flights import USERS
from tests.data.flown import A_DAY, a_year, installed

from .pages import FLIGHTS, ROOT, TEXT, blocks, commands, named
from .shell import environment, free_ports, in_shell

#: Time limit in seconds for one event, such as the start of a process that imports torch on a machine with other load.
PATIENCE_S = 90.0
#: Seconds between two looks at a running peer.
LOOK_S = 0.2
#: The module in the folder of the template `text`.
OWN = "characters"


class Reader:
    """Reader with two terminals: peers run in one, and everything else is typed in the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.peers: subprocess.Popen[bytes] | None = None

    def types(self, command: str) -> None:
        """Run a command, which must succeed; a question to a running peer is repeated until it does."""
        program, *words = shlex.split(command)
        if program == "cd":
            self._monkeypatch.chdir(words[0])
            return
        assert program == "fedpeer"
        if words[0] == "start":
            self.peers = subprocess.Popen(["bash", "-c", "exec " + in_shell(command)], env=environment())
            return
        if words[0] == "init":
            words = [re.sub("^33$", "3", word) for word in words] + ["--port", str(free_ports(range(3)))]
        if words[0] == "simulate":
            words += ["--rounds", "1"]
        end = time.monotonic() + PATIENCE_S
        while run(words):
            said = self._capsys.readouterr()
            assert words[0] in ("status", "evaluate", "predict"), said.err
            assert time.monotonic() < end, said.err
            time.sleep(LOOK_S)

    def end(self) -> int:
        """Press Ctrl-C in the terminal of the peers, if any, and return the exit code."""
        if self.peers is None:
            return 0
        self.peers.send_signal(signal.SIGINT)
        try:
            return self.peers.wait(PATIENCE_S)
        finally:
            self.peers.kill()


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDPEER_RUNS", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    installed(tmp_path / "packages", monkeypatch, a_year(USERS), A_DAY)
    others = sys.modules.pop(OWN, None)
    found = Reader(monkeypatch, capsys)
    yield found
    if found.peers is not None:
        found.peers.kill()
    sys.modules.pop(OWN, None)
    if others is not None:
        sys.modules[OWN] = others


@pytest.mark.slow
@pytest.mark.parametrize("page", [FLIGHTS, TEXT], ids=named)
def test_each_command_of_the_page_follows_the_one_before(page: Path, reader: Reader) -> None:
    for command in commands(page):
        reader.types(command)
        for text in Path().rglob("*.txt"):
            text.write_text(text.read_text(encoding="utf-8")[:200], encoding="utf-8")
    assert reader.end() == 0
    if page == FLIGHTS:
        rows = Path("predictions.csv").read_text(encoding="utf-8").splitlines()
        assert rows[0] == "prediction,probability in time,probability late"
        assert len(rows) == len(Path("airlines/2.csv").read_text(encoding="utf-8").splitlines())
    files = "\n".join(file.read_text(encoding="utf-8") for file in Path().glob("*.yaml"))
    there = [line.strip() for line in files.splitlines()]
    for block in blocks(page, "yaml"):
        for line in block.splitlines():
            shown = re.sub(r"\s+#.*", "", line).strip().partition("...")[0]
            assert any(each.startswith(shown) for each in there), f"{line} is in no file of the folder"


def test_quickstarts_are_short() -> None:
    pages = sorted((ROOT / "docs").glob("quickstart-*.md"))
    lines = {named(page): len(page.read_text(encoding="utf-8").splitlines()) for page in pages}
    assert len(lines) == 6
    assert [name for name, count in lines.items() if count > 40] == []
