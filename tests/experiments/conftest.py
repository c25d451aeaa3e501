"""The cells of all experiments, which many tests only read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from fedpeer.experiments.experiment import Cell, SizeName
from fedpeer.experiments.registry import experiment

#: (name of an experiment, size) -> its cells.
Listed = Callable[[str, SizeName], tuple[Cell, ...]]


@pytest.fixture(scope="session")
def listed() -> Listed:
    """Provide the cells of an experiment at a size; their requests are made once for all tests."""

    @cache
    def made(name: str, size: SizeName) -> tuple[Cell, ...]:
        each = experiment(name)
        return each.cells(each.sizes[size])

    return made
