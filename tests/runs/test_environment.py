"""The commit of fedpeer's own code, as `fedpeer --version` shows it."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpeer.runs import environment
from fedpeer.runs.environment import BUILT_FROM, source_commit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git(folder: Path, *arguments: str) -> str:
    name = ("-c", "user.name=ann", "-c", "user.email=ann@example.org")
    done = subprocess.run(("git", "-C", str(folder), *name, *arguments), check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which fedpeer seems to be."""
    package = tmp_path / "fedpeer" / "__init__.py"
    package.parent.mkdir()
    package.write_text("")
    monkeypatch.setattr(environment, "_PLACE", tmp_path)
    return tmp_path


def test_a_checkout_has_its_commit_and_says_whether_it_was_changed(installed: Path) -> None:
    git(installed, "init", "--quiet")
    git(installed, "add", "fedpeer")
    git(installed, "commit", "--quiet", "-m", "first")
    head = git(installed, "rev-parse", "HEAD")
    (installed / "notes.txt").write_text("of no commit")
    assert source_commit() == head[:12]
    (installed / "fedpeer" / "__init__.py").write_text("changed = True")
    assert source_commit() == f"{head[:12]}, changed"


@pytest.mark.parametrize(
    ("origin", "commit"),
    [
        (
            json.dumps({"url": "https://example.org/fedpeer", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}),
            COMMIT[:12],
        ),
        (json.dumps({"url": "file:///somewhere", "dir_info": {"editable": True}}), None),
        (None, None),
    ],
    ids=["from git", "from a folder", "from an index"],
)
def test_an_installation_has_the_commit_that_pip_noted(
    installed: Path, monkeypatch: pytest.MonkeyPatch, origin: str | None, commit: str | None
) -> None:
    monkeypatch.setattr(environment, "distribution", lambda name: SimpleNamespace(read_text=lambda file: origin))
    assert source_commit() == commit


def test_what_was_built_has_the_commit_that_it_was_built_from(installed: Path) -> None:
    (installed / BUILT_FROM).write_text("0123456789ab\n")
    assert source_commit() == "0123456789ab"


def test_code_that_was_not_installed_has_none(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(environment, "distribution", missing)
    assert source_commit() is None
