"""A new kind of message needs only its declaration and its case in the dispatch.

Codec, admission, limits, examples, fuzzing and the tables of docs/wire.md follow from the declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest

from fedpeer.peer.node.dispatch import Dispatch
from fedpeer.peer.state.events import MessageReceived
from fedpeer.peer.wire.codec import decode, frame_bytes_max
from fedpeer.peer.wire.message_spec import Envelope, MessageSpec, Name
from fedpeer.peer.wire.messages import KINDS, GroupName
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.peer.wire.tails import TextTail
from fedpeer.peer.wire.wire_types import EmptyPlace, Whole
from fedpeer.rejection import Rejection
from tests.docs.test_pages import loaded
from tests.faults.fuzz import spoilt
from tests.peer.examples import frame, hostile_frames
from tests.peer.frames import POLICY, framed
from tests.peer.node.test_node import met

ROOT = Path(__file__).parents[3]
REPORT_BYTES_MAX = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Load of the sender, with a report for a person."""

    spec: ClassVar = MessageSpec(
        number=max(KINDS) + 1, since=2, when="met", about="group", tail=TextTail("a report", REPORT_BYTES_MAX)
    )

    group: GroupName
    percent: Annotated[int, Whole(0, 100)]
    model: Name
    text: Annotated[bytes, EmptyPlace()]


ADDED: Any = LoadReport


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, LoadReport.spec.number, LoadReport)


def code_of(data: bytes) -> str:
    found = decode(data, POLICY)
    return found.code if isinstance(found, Rejection) else "taken"


def test_the_codec_reads_and_writes_it() -> None:
    for seed in range(50):
        data = frame(ADDED, 2, np.random.default_rng(seed))
        found = decode(data, POLICY)
        assert not isinstance(found, Rejection), found
        assert isinstance(found[1], ADDED)
        assert framed(found[1], found[0]) == data
    assert code_of(frame(ADDED, 1, np.random.default_rng(0))) == "unknown_kind", "version 1 has none"


def test_what_is_wrong_with_it_is_refused_by_name() -> None:
    draws = np.random.default_rng(0)
    cases = list(hostile_frames(ADDED, 2, draws))
    assert len(cases) > 30
    assert {what: code_of(data) for what, data, code in cases} == {what: code for what, _, code in cases}
    assert code_of(frame(ADDED, 2, draws, group="nobody-knows")) == "unknown_group"
    assert code_of(frame(ADDED, 2, draws, group="closed")) == "group_not_shared"


def test_its_tail_is_a_limit() -> None:
    assert frame_bytes_max(POLICY) > REPORT_BYTES_MAX
    message: Any = LoadReport(group="all", percent=1, model="a", text=bytes(REPORT_BYTES_MAX + 1))
    with pytest.raises(AssertionError, match="2000001"):
        framed(message)


@pytest.mark.slow
def test_whatever_becomes_of_its_bytes_is_a_message_or_a_refusal() -> None:
    draws = np.random.default_rng(1)
    for _ in range(500):
        code = code_of(spoilt(bytearray(frame(ADDED, 2, draws)), draws))
        assert code == "taken" or code in REJECTIONS


def test_the_page_of_the_wire_has_it() -> None:
    tables = loaded(ROOT / "docs" / "wire_tables.py")
    fields = "wire 2 only; group; percent: 0 to 100; model: name; text: empty bytes"
    row = f"| LoadReport | {LoadReport.spec.number} | {fields} | a report, at most "
    assert row in tables.kinds()
    assert "| LoadReport | group | met | members | - |" in tables.handling()


@pytest.mark.slow
def test_a_node_hears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test adds a case for the message to those of the dispatch."""
    known, reports = Dispatch._dispatch, []

    def dispatched(self: Dispatch, peer: str, message: Any) -> None:
        match message:
            case LoadReport():
                reports.append((peer, message.percent))
            case _:
                known(self, peer, message)

    monkeypatch.setattr(Dispatch, "_dispatch", dispatched)
    cluster, node, other = met()
    own = node.durable.incarnation
    message: Any = LoadReport(group=cluster.groups[0], percent=70, model="everyone", text=b"busy")
    envelope = Envelope(
        federation=node.state.peer_groups.roster.federation_id,
        sender=other,
        recipient=node.state.me,
        incarnation=1,
        to_incarnation=own,
    )
    found = decode(framed(message, envelope), node.policy(other))
    assert not isinstance(found, Rejection), found
    for incarnation in (2, 1):  # "met": messages of an unknown incarnation are not accepted
        node.step(MessageReceived(other, incarnation, own, found[1]))
    assert reports == [(other, 70)]
    assert found[0] == envelope
