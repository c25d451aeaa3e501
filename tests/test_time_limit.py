"""A test that hangs does not end other tests: it fails, and they go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HANGING = """
import threading

def test_hangs():
    threading.Event().wait()

def test_goes_on():
    pass
"""


def test_every_test_has_a_limit(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 600


@pytest.mark.slow
def test_who_hangs_fails_and_shows_where(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*words, "--timeout=1", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "threading.Event().wait()" in done.stdout
