"""The table of bad inputs in docs/reliability.md agrees with the code, and each row is the id of some test.

The ids are read from the sources of the tests, where pytest finds them: `id=` and `ids=` of parameters, keys of a dict
of cases, and the first argument of a `Hostile` or a `Wrong`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from fedpeer.peer.wire.rejections import REJECTIONS

TESTS = Path(__file__).parents[1]
ALL = tuple(TESTS.rglob("*.py"))
PAGE = TESTS.parent / "docs" / "reliability.md"
#: Tests that send to a running peer, or in which something is wrong with a running peer's machine.
RUNNING = tuple(
    TESTS / "peer" / name
    for name in (
        "hostile.py",
        "runtime/test_bad_inputs.py",
        "runtime/test_bad_order.py",
        "runtime/test_bad_identity.py",
        "runtime/test_greedy.py",
        "runtime/test_bad_rounds.py",
        "runtime/test_bad_machine.py",
        "runtime/test_bad_start.py",
    )
)
#: Kinds of rows that count as a rejection; accepted input and the user's own mistakes do not.
REFUSED = "hsxo"


def rows() -> dict[str, tuple[str, str]]:
    """Return the (answer, kind) of each row, by id."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^\| ([TEMSRCD]\d\d) \| .* \| ([^|]*) \| ([^|]*) \|$", text, re.M)
    return {id: (answer, kind) for id, answer, kind in found}


def ids(path: Path) -> Iterator[str]:
    """Return the ids of the parameters of this file's tests."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.keyword(arg="id", value=value):
                yield from _words(value)
            case ast.keyword(arg="ids", value=ast.List(elts=values)):
                yield from _words(*values)
            case ast.Dict(keys=keys):
                yield from _words(*keys)
            case ast.keyword(arg="ids", value=ast.Attribute(value=value)):
                yield from _words(value)
            case ast.Call(func=ast.Name(id="Hostile" | "Wrong"), args=[value, *_]):
                yield from _words(value)


def _words(*values: ast.expr | None) -> Iterator[str]:
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


@cache
def shown(paths: Iterable[Path]) -> set[str]:
    """Return the rows that are the beginning of an id in these files."""
    return {id[:3] for path in paths for id in ids(path) if re.match(r"[A-Z]\d\d\b", id)}


def test_the_table_is_found() -> None:
    assert {"T01", "E15", "M08", "S14", "R17", "C11", "D05"} <= rows().keys()


@pytest.mark.parametrize("row", rows())
def test_every_row_has_its_test(row: str) -> None:
    assert row in shown(ALL)


@pytest.mark.parametrize("row", [row for row in rows() if row[0] != "C" and row != "D05"])
def test_every_row_that_a_running_peer_can_meet_is_shown_on_one(row: str) -> None:
    assert row in shown(RUNNING)


@pytest.mark.parametrize("row", [row for row, (_, kind) in rows().items() if kind in REFUSED])
def test_the_code_has_the_name_and_the_kind(row: str) -> None:
    answer, kind = rows()[row]
    named = re.match(r"[A-Z]\w+", answer)
    assert named is not None
    code = re.sub(r"(?<!^)(?=[A-Z])", "_", named[0]).lower()
    assert row in REJECTIONS[code].ids
    assert REJECTIONS[code].kind == kind


@pytest.mark.parametrize("code", REJECTIONS)
def test_the_table_has_each_row_of_a_refusal(code: str) -> None:
    assert set(REJECTIONS[code].ids) <= rows().keys()
