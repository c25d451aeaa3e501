"""Golden cases 02a-02e, leaf by leaf; lists of model names are sets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.golden.slicing_adapters import ADAPTERS

FOLDER = os.environ.get("FEDPEER_GOLDEN")


@pytest.mark.skipif(FOLDER is None, reason="FEDPEER_GOLDEN is not set")
@pytest.mark.parametrize("stem", ADAPTERS)
def test_golden(stem: str) -> None:
    case = json.loads((Path(FOLDER or "") / f"{stem}.json").read_text(encoding="utf-8"))
    compared = _compare(case["expected"], ADAPTERS[stem](case["inputs"]), stem, case["tolerance"].get("atol", 0))
    assert compared > 20


def _compare(expected: Any, found: Any, place: str, atol: float) -> int:
    """How many leaves were compared."""
    if isinstance(expected, dict):
        assert set(expected) <= set(found), place
        return sum(_compare(expected[key], found[key], f"{place}.{key}", atol) for key in expected)
    if isinstance(expected, list) and all(isinstance(each, str) for each in expected):
        assert set(expected) == set(found), place
        return 1
    if isinstance(expected, list):
        pairs = enumerate(zip(expected, found, strict=True))
        return sum(_compare(e, f, f"{place}[{i}]", atol) for i, (e, f) in pairs)
    assert abs(found - expected) <= atol + 1e-9 * abs(expected), place
    return 1
