"""Shared parts of the command-line tests: a folder to run in, and a function that runs one typed command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedpeer.cli.main import run


@dataclass(frozen=True)
class Outcome:
    """Result of a command: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str


Fedpeer = Callable[..., Outcome]


@pytest.fixture
def fedpeer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fedpeer:
    """Return a function that runs one command line in this process, in an empty folder, on a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDPEER_RUNS", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")

    def call(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run(arguments)
        found = capsys.readouterr()
        return Outcome(code, found.out, found.err)

    return call
