"""The Python in the pages and the examples runs as a reader would run it: in its own file, in its own folder.

All of it runs in the test process, and its workers share the fork server of that process. Warnings are errors.
"""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path

import pytest

from fedpeer.cli.main import run

from .pages import PAGES, ROOT, blocks, named

CODE = [(page, number, code) for page in PAGES for number, code in enumerate(blocks(page, "python"), start=1)]
EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a reader's folder, from which the examples can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDPEER_RUNS", raising=False)
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "number", "code"), CODE, ids=[f"{named(page)}, {n}" for page, n, _ in CODE])
def test_block(page: Path, number: int, code: str, tmp_path: Path) -> None:
    """The block runs with one round of few steps, in which it does everything that it does with more."""
    block = tmp_path / "block.py"
    short = '"rounds": 1, "steps_between_averaging": 2'
    block.write_text(re.sub(r'"rounds": \d+', short, code), encoding="utf-8")
    runpy.run_path(str(block), run_name="__main__")


@pytest.mark.slow
def test_own_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example runs with one round and one seed, with which it does everything that it does with more."""
    importlib.import_module("own_module").main(rounds=1, seeds=[0])
    assert "partial-averaging" in capsys.readouterr().out
    assert (tmp_path / "clinic.csv").exists()
    assert list(tmp_path.glob("fedpeer-runs/*/report.html"))


@pytest.mark.slow
def test_federation_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file runs as it is, and each of its models is averaged among its members."""
    config = str(EXAMPLES / "federation.yaml")
    words = ["simulate", "--config", config, "--rounds", "1", "--json", "--quiet", "--algorithm", "partial-averaging"]
    assert run(words) == 0
    assert '"accuracy_mean"' in capsys.readouterr().out
    [plan] = tmp_path.glob("fedpeer-runs/*/plan.json")
    assert all(f'"{name}"' in plan.read_text(encoding="utf-8") for name in ("everyone", "exchanged", "usual"))


def test_the_page_shows_the_fedavg_that_runs() -> None:
    shown = blocks(ROOT / "docs" / "algorithms.md", "python")
    assert shown == [(ROOT / "algorithms" / "servers" / "fedavg.py").read_text(encoding="utf-8")]
    assert len(shown[0].splitlines()) < 60


@pytest.mark.slow
def test_own_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--rounds", "2", "--peers", "4", "--json", "--quiet"]
    assert run([*words, "--compare", "fedavg,python:fedexp:FedExP,epsilon=0.01"]) == 0
    assert '"python:fedexp:FedExP' in capsys.readouterr().out
