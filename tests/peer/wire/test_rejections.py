"""The table of rejections: complete, distinct, with words for both sides."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpeer.gossip.transfers import TransferDecision
from fedpeer.peer.wire.rejections import REJECTIONS, RejectionCode
from tests.peer.hostile import HOSTILE

ROOT = Path(__file__).parents[3]
#: Rows of the table of bad inputs that peers encounter; S13 is accepted, C rows and D02 are the user's own mistakes.
ROWS = {
    *(f"T{number:02}" for number in range(1, 12)),
    *(f"E{number:02}" for number in range(1, 18)),
    *(f"M{number:02}" for number in range(1, 10)),
    *(f"S{number:02}" for number in range(1, 18) if number != 13),
    *(f"R{number:02}" for number in range(1, 21)),
    *("D01", "D03", "D04", "D06"),
}
#: Codes that are never charged to the rejected peer.
HARMLESS = {"body_truncated", "too_many_requests", "version_unsupported", "wrong_federation", "repeated"}
HARMLESS |= {
    "unproven",
    "stale_incarnation",
    "plan_mismatch",
    "sequence_reused",
    "early",
    "stale_epoch",
    "not_a_neighbour",
}
HARMLESS |= {"refuted", "stale_term", "already_applied", "round_gap", "round_closed", "too_far", "false_accuser"}
HARMLESS |= {"handshake_cut", "no_room", "out_of_reach", "too_many_terms", "stale_roster"}


def test_every_row_of_the_table_of_bad_inputs_has_its_refusal() -> None:
    assert {row for refusal in REJECTIONS.values() for row in refusal.ids} == ROWS


def test_who_pays_and_who_does_not() -> None:
    by_kind = {kind: {code for code, row in REJECTIONS.items() if row.kind == kind} for kind in "hsxo"}
    assert by_kind["h"] == HARMLESS
    assert by_kind["x"] == {"sender_mismatch", "bad_signature", "two_coordinators"}
    assert all(
        row.ids[0].startswith("D") or row.code == "duplicate_peer" for row in REJECTIONS.values() if row.kind == "o"
    )


@pytest.mark.parametrize("row", REJECTIONS.values(), ids=lambda row: row.code)
def test_each_has_a_code_and_words_for_both_sides(row: RejectionCode) -> None:
    assert REJECTIONS[row.code] is row
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", row.code)
    assert row.log[0].islower()
    assert not row.log.endswith("."), "it stands behind a name in a line"
    assert row.advice[0].isupper()
    assert row.advice.endswith(".")
    assert len(row.advice) <= 250, "a line or three on a terminal"


#: Functions whose calls make a rejection, and the place of the code among their arguments.
UTTER = {"Rejection": 0, "_rejected": 0, "about": 1}


def uttered(root: Path) -> Iterator[str]:
    """Yield the codes that calls of the functions in `UTTER` have as literals."""
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(f"{name}(" in text for name in UTTER):
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Name(id=name), args=args) if len(args) > UTTER.get(name, 99):
                    match args[UTTER[name]]:
                        case ast.Constant(value=str(code)):
                            yield code


def unuttered(codes: set[str], root: Path) -> set[str]:
    """Return those of the codes that are not a string literal anywhere in the source except in the table itself."""
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name == "rejections.py" or not any(f'"{code}"' in text for code in codes):  # parsing takes long
            continue
        codes = codes.difference(node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return codes


@pytest.mark.slow
def test_every_code_is_uttered_somewhere() -> None:
    codes = set(REJECTIONS)
    for room in ("peer", "gossip", "algorithms"):
        codes = unuttered(codes, ROOT / room)
    assert not codes


@pytest.mark.slow
def test_codes_named_elsewhere_are_in_the_table() -> None:
    found = set(uttered(ROOT / "peer"))
    assert len(found) > 20
    assert found <= set(REJECTIONS)
    assert {case.code for case in HOSTILE} <= set(REJECTIONS)
    assert {verdict.value for verdict in TransferDecision} - {"take"} <= set(REJECTIONS)
