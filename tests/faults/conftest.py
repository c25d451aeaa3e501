"""The garbage collector is off while a scenario is played."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """A run makes no garbage that only the collector finds, and its search takes a seventh of the time (`soak.py`)."""
    gc.disable()
    yield
    gc.enable()
