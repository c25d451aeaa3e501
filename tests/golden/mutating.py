"""Helpers for mutation tests of golden cases: one mistake in a function that an adapter calls turns its case red."""

from __future__ import annotations

import json
import os
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import pytest

from tests.golden.adapters import ADAPTERS
from tests.golden.run import Case, run

FOLDER = os.environ.get("FEDPEER_GOLDEN")
needs_golden = pytest.mark.skipif(FOLDER is None, reason="FEDPEER_GOLDEN is not set")


def name_of(value: Any) -> str:
    """Return the name of a value for the ids of tests, the same in every process."""
    found = value.fget if isinstance(value, property) else value
    return str(getattr(found, "__name__", found))


def case_of(stem: str) -> Case:
    """Return this case alone; the runner's own test checks that all cases exist and can be read."""
    case: Case = json.loads((Path(FOLDER or "") / f"{stem}.json").read_text(encoding="utf-8"))
    return case


def played(stem: str, *parts: str) -> tuple[bool, str]:
    """Return whether the case is right, and the runner's line; with `parts`, judged by these results only."""
    case, adapter = case_of(stem), cast(Any, ADAPTERS[stem])
    if parts:
        case["expected"] = {name: case["expected"][name] for name in parts}
        adapter = partial(adapter, parts=parts)
    return run(case, adapter, stem, {})


@cache
def right(stem: str, *parts: str) -> bool:
    """Return whether the case is right without a mutant; called before one is in place, so that the case runs once."""
    return played(stem, *parts)[0]


def assert_red(stem: str, *parts: str) -> None:
    """Assert that the case fails with a wrong number, not with an error."""
    is_right, line = played(stem, *parts)
    assert not is_right
    assert "first at" in line, f"a wrong number, not an error: {line}"


def assert_turned_red(stem: str, target: str, mutant: object, monkeypatch: pytest.MonkeyPatch, *parts: str) -> None:
    """Assert that the case is right, and red with the mutant in place of the target."""
    assert right(stem, *parts)
    monkeypatch.setattr(target, mutant)
    assert_red(stem, *parts)
