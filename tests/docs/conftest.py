"""Shared settings of the tests of pages."""

from __future__ import annotations

import pytest

from fedpeer.sims import simulate


@pytest.fixture(autouse=True)
def _one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a simulation have one worker, whatever the machine: each would import what a page's module imports."""
    monkeypatch.setattr(simulate, "cores", lambda: 1)
