"""The Python in the pages and the examples runs as a reader would run it: a file of its own, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import PAGES, ROOT, blocks, named

CODE = [(page, number, code) for page in PAGES for number, code in enumerate(blocks(page, "python"), start=1)]


def carried_out(folder: Path, *words: str) -> str:
    """What a Python command prints; it must succeed and warn of nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples")])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("page", "number", "code"), CODE, ids=[f"{named(page)}, {n}" for page, n, _ in CODE])
def test_block(page: Path, number: int, code: str, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(code, encoding="utf-8")
    carried_out(tmp_path, "block.py")


@pytest.mark.slow
def test_own_module(tmp_path: Path) -> None:
    """With one round and one seed it does all that it does with more."""
    printed = carried_out(tmp_path, "-c", "import own_module; own_module.main(rounds=1, seeds=[0])")
    assert "partial-averaging" in printed
    assert (tmp_path / "clinic.csv").exists()
    assert list(tmp_path.glob("fedpeer-runs/*/report.html"))


@pytest.mark.slow
def test_federation_file(tmp_path: Path) -> None:
    """The file runs as it is, and each of its models is averaged among its members."""
    config = str(ROOT / "examples" / "federation.yaml")
    command = ["-m", "fedpeer.cli.main", "simulate", "--config", config, "--rounds", "1", "--json", "--quiet"]
    printed = carried_out(tmp_path, *command, "--algorithm", "partial-averaging")
    assert '"accuracy_mean"' in printed
    [plan] = tmp_path.glob("fedpeer-runs/*/plan.json")
    assert all(f'"{name}"' in plan.read_text(encoding="utf-8") for name in ("everyone", "exchanged", "usual"))


def test_the_page_shows_the_fedavg_that_runs() -> None:
    shown = blocks(ROOT / "docs" / "algorithms.md", "python")
    assert shown == [(ROOT / "algorithms" / "servers" / "fedavg.py").read_text(encoding="utf-8")]
    assert len(shown[0].splitlines()) < 60


@pytest.mark.slow
def test_own_algorithm(tmp_path: Path) -> None:
    command = ["-m", "fedpeer.cli.main", "simulate", "--rounds", "2", "--peers", "4", "--json", "--quiet"]
    printed = carried_out(tmp_path, *command, "--compare", "fedavg,python:fedavgm:FedAvgM,momentum=0.5")
    assert '"python:fedavgm:FedAvgM' in printed
