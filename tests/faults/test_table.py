"""Each row of the table of bad inputs is the id of some test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
#: Rows of coordinated rounds, which come later.
LATER = {f"R{number:02}" for number in range(4, 16)}
ROWS = [
    f"{letter}{number:02}"
    for letter, count in (("T", 10), ("E", 15), ("M", 8), ("S", 14), ("R", 15), ("C", 11), ("D", 5))
    for number in range(1, count + 1)
]


def named() -> set[str]:
    """Ids that stand in the tests: as a parameter's id, or in a comment beside the test."""
    found: set[str] = set()
    for path in TESTS.rglob("*.py"):
        if path != Path(__file__):
            found |= set(re.findall(r"\b([TEMSRCD]\d\d)\b", path.read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("row", [row for row in ROWS if row not in LATER])
def test_every_row_has_its_test(row: str) -> None:
    assert row in named()
