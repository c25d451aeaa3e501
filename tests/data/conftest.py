"""Folders in which the data tests look for files: their own, or the real ones that $FEDPEER_DATA names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedpeer.data import store


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide an empty cache; nothing of the user's own is read or written."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(store, "cache_folder", lambda: folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide an empty $FEDPEER_DATA and an empty cache."""
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("FEDPEER_DATA", str(data))
    return data


@pytest.fixture
def real(cache: Path, official: Path) -> Path:
    """Provide the folder of the real data sets and an empty cache, or skip the test."""
    return official


@pytest.fixture(scope="session")
def official() -> Path:
    """Provide the folder of the real data sets, or skip the test."""
    if "FEDPEER_DATA" not in os.environ:
        pytest.skip("FEDPEER_DATA names no folder with the official files")
    return Path(os.environ["FEDPEER_DATA"])
