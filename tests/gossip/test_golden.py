"""Golden cases 01a-01d and 09, leaf by leaf."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.golden.gossip_adapters import ADAPTERS

FOLDER = os.environ.get("FEDPEER_GOLDEN")
#: Contrasts that the product has no use for.
LEFT_OUT = {"naive_limit", "algebraic_connectivity"}


@pytest.mark.skipif(FOLDER is None, reason="FEDPEER_GOLDEN is not set")
@pytest.mark.parametrize("stem", ADAPTERS)
def test_golden(stem: str) -> None:
    case = json.loads((Path(FOLDER or "") / f"{stem}.json").read_text(encoding="utf-8"))
    compared = _compare(case["expected"], ADAPTERS[stem](case["inputs"]), stem, case["tolerance"])
    assert compared > 20


def _compare(expected: Any, found: Any, place: str, tolerance: dict[str, float]) -> int:
    """How many leaves were compared."""
    if isinstance(expected, dict):
        assert set(expected) - LEFT_OUT <= set(found), place
        return sum(_compare(expected[k], found[k], f"{place}.{k}", tolerance) for k in expected if k not in LEFT_OUT)
    if isinstance(expected, list):
        assert len(expected) == len(found), place
        return sum(
            _compare(e, f, f"{place}[{i}]", tolerance) for i, (e, f) in enumerate(zip(expected, found, strict=True))
        )
    atol = tolerance["atol_limits"] if ".limit_" in place else tolerance["atol"]
    assert type(found) is type(expected), place
    assert found == expected if isinstance(expected, int) else abs(found - expected) <= atol + 1e-9 * abs(expected), (
        place
    )
    return 1
