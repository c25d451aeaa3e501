"""Codec and admission do what a message declares: examples of all kinds, drawn from the declarations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpeer.peer.wire.codec import decode
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import KINDS, Message
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.peer.wire.versions import NEWEST
from fedpeer.rejection import Rejection
from tests.peer.examples import SPOKEN, frame, hostile_frames
from tests.peer.frames import PARTY, POLICY, framed
from tests.peer.hostile import craft_frame

#: Examples drawn of each kind.
SEEDS = 20
EACH = [pytest.param(version, kind, id=f"{version}-{kind.__name__}") for version, kind in SPOKEN]
NEWEST_OF_EACH = [pytest.param(kind, id=kind.__name__) for version, kind in SPOKEN if version == NEWEST]


def taken(data: bytes) -> tuple[Envelope, Message]:
    found = decode(data, POLICY)
    assert not isinstance(found, Rejection), found
    return found


def code_of(data: bytes) -> str:
    found = decode(data, POLICY)
    return found.code if isinstance(found, Rejection) else "taken"


@pytest.mark.parametrize(("version", "kind"), EACH)
def test_what_is_declared_is_taken_and_said_again_alike(version: int, kind: type[Message]) -> None:
    for seed in range(SEEDS):
        data = frame(kind, version, np.random.default_rng(seed))
        envelope, message = taken(data)
        assert type(message) is kind
        assert framed(message, envelope) == data


@pytest.mark.parametrize(("version", "kind"), EACH)
def test_what_is_not_declared_is_refused_by_name(version: int, kind: type[Message]) -> None:
    found = {}
    for seed in range(3):
        for what, data, code in hostile_frames(kind, version, np.random.default_rng(seed)):
            if (said := code_of(data)) not in (code, "metadata_too_large"):
                found[what] = said, code
    assert not found
    assert code in REJECTIONS


@pytest.mark.parametrize("kind", NEWEST_OF_EACH)
def test_it_is_taken_between_the_incarnations_that_its_declaration_names(kind: type[Message]) -> None:
    envelope, message = taken(frame(kind, NEWEST, np.random.default_rng(0)))
    not_met, another = (framed(message, replace(envelope, to_incarnation=number)) for number in (0, 2))
    assert code_of(not_met) == ("stale_incarnation" if kind.spec.when == "channel" else "taken")
    assert code_of(another) == ("taken" if kind.spec.when == "handshake" else "stale_incarnation")


@pytest.mark.parametrize("kind", NEWEST_OF_EACH)
def test_its_group_is_known_and_of_both(kind: type[Message]) -> None:
    draws = np.random.default_rng(0)
    about = kind.spec.about
    codes = {group: code_of(frame(kind, NEWEST, draws, group=group)) for group in ("nobody-knows", "closed", "far")}
    if about == "nothing":
        assert set(codes.values()) == {"taken"}
        return
    far = {"group": "not_a_neighbour" if kind.spec.from_neighbors else "taken", "consensus group": "unknown_group"}
    assert codes == {
        "nobody-knows": "unknown_group",
        "closed": "group_not_shared",
        "far": far.get(about, "taken"),
    }


@pytest.mark.parametrize("kind", NEWEST_OF_EACH)
def test_its_tail_has_the_length_that_is_declared(kind: type[Message]) -> None:
    data = frame(kind, NEWEST, np.random.default_rng(0))
    _, message = taken(data)
    spec = {"nothing": None, "consensus group": POLICY.consensus_by_group.get("all")}.get(
        kind.spec.about, POLICY.groups["all"]
    )
    head = data[: len(data) - len(kind.spec.tail.packed(message))]
    longer = bytes(kind.spec.tail.most(spec) + 1)
    wrong = head[:12] + len(longer).to_bytes(8, "little") + head[20:] + longer
    assert code_of(wrong) == "tail_length_wrong"


def test_a_kind_that_nobody_declares_is_unknown() -> None:
    assert code_of(craft_frame(PARTY, len(KINDS) + 1, ())) == "unknown_kind"
