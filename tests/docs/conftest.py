"""Shared settings of the tests of pages."""

from __future__ import annotations

import pytest

from fedpeer.sims import simulate


@pytest.fixture(autouse=True)
def _one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a simulation have one worker on any machine: each worker would import all that a page's module imports."""
    monkeypatch.setattr(simulate, "cores", lambda: 1)
