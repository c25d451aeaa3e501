"""Bytes that a peer must reject: a builder for each kind of bad input, and the code of the rejection.

The ids are those of the table of bad inputs. Frames are built by hand here, so that they do not depend on what the
codec can write. A `Party` states the sender and the recipient, so that the same bytes can go to the decoder and to a
running peer.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

#: Numbers of the kinds of messages.
HELLO, CONTRACT, TRANSFER, ACK, PING, PING_REQUEST, PONG, FETCH, VALUE, ROSTER_NEWS, REFUSED = range(1, 12)


@dataclass(frozen=True, kw_only=True)
class Party:
    """Sender, recipient and groups of a frame.

    `group` contains both peers and has float32 values of `length`; `closed` does not contain both; `far`, also of
    `length`, contains both, but the sender is not the recipient's neighbor in it.
    """

    federation: bytes
    sender: str
    recipient: str
    third: str
    incarnation: int
    to_incarnation: int
    group: str
    closed: str
    far: str
    length: int
    weight_max: float


@dataclass(frozen=True)
class Hostile:
    """One bad input: its id in the table, with the variant, the code of its rejection, and the builder of its bytes."""

    id: str
    code: str
    build: Callable[[Party], bytes]


def craft_frame(
    party: Party,
    kind: int,
    fields: Sequence[Any],
    tail: bytes = b"",
    *,
    magic: bytes = b"FDPR",
    version: int = 1,
    reserved: int = 0,
    metadata: bytes | None = None,
    metadata_bytes: int | None = None,
    tail_bytes: int | None = None,
    **envelope: Any,
) -> bytes:
    """Return a frame with any of its parts replaced."""
    sealed = {
        "federation": party.federation,
        "sender": party.sender,
        "recipient": party.recipient,
        "incarnation": party.incarnation,
        "to_incarnation": party.to_incarnation,
    } | envelope
    if metadata is None:
        metadata = packed([*sealed.values(), *fields])
    head = struct.pack(
        "<4sHBBIQ",
        magic,
        version,
        kind,
        reserved,
        len(metadata) if metadata_bytes is None else metadata_bytes,
        len(tail) if tail_bytes is None else tail_bytes,
    )
    return head + metadata + tail


def packed(value: Any) -> bytes:
    return bytes(msgpack.packb(value))


def numbers(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def transfer(party: Party, *, tail: bytes | None = None, tail_bytes: int | None = None, **changed: Any) -> bytes:
    """Return a first transfer with the values 1, 2, 3, ...; it is valid unless a field is changed."""
    tail = numbers(*range(1, party.length + 1)) if tail is None else tail
    fields: dict[str, Any] = {
        "group": party.group,
        "seq": 1,
        "round": 1,
        "exchange": 1,
        "weight": 2.0**-8,
        "form": "float32",
        "shape": [party.length],
    }
    sealed = {
        name: changed.pop(name) for name in ("federation", "sender", "recipient", "to_incarnation") if name in changed
    }
    assert changed.keys() <= fields.keys()
    return craft_frame(party, TRANSFER, [*(fields | changed).values()], tail, tail_bytes=tail_bytes, **sealed)


def ack(party: Party, *fields: Any, **changed: Any) -> bytes:
    return craft_frame(party, ACK, fields or (party.group, 1, 1), **changed)


def bad_metadata(data: bytes) -> Callable[[Party], bytes]:
    return lambda party: craft_frame(party, ACK, (), metadata=data)


def instead(field: int, value: Any) -> Callable[[Party], bytes]:
    """Return the builder of an acknowledgement with one of its fields (group, taken, round) replaced."""

    def build(party: Party) -> bytes:
        fields: list[Any] = [party.group, 1, 1]
        fields[field] = value
        return ack(party, *fields)

    return build


def named(letters: bytes) -> Callable[[Party], bytes]:
    """Return the builder of an acknowledgement for a group whose name is these bytes."""
    mark = "?" * len(letters)
    return lambda party: craft_frame(
        party, ACK, (), metadata=ack(party, mark, 1, 1)[20:].replace(mark.encode(), letters)
    )


def with_number(at: int, value: float) -> Callable[[Party], bytes]:
    def build(party: Party) -> bytes:
        values = [float(number) for number in range(party.length)]
        values[at] = value
        return transfer(party, tail=numbers(*values))

    return build


def repeated_key(party: Party) -> bytes:
    """Return an acknowledgement whose last field is a map with the same key twice."""
    good = ack(party)[20:]
    return craft_frame(party, ACK, (), metadata=good[:-1] + b"\x82\xa1a\x01\xa1a\x02")


NAN, INFINITY = math.nan, math.inf
ARRAY32, MAP32 = b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"

#: Bad inputs that the bytes and the policy alone reveal.
HOSTILE = (
    Hostile("T03", "sender_mismatch", lambda p: ack(p, sender=p.third)),
    Hostile("E01", "not_fedpeer", lambda p: ack(p, magic=b"HTTP")),
    Hostile("E02", "version_unsupported", lambda p: ack(p, version=3)),
    Hostile("E02-never", "version_unsupported", lambda p: ack(p, version=0)),
    Hostile("E03-header", "header_truncated", lambda p: ack(p)[:19]),
    Hostile("E03-metadata", "header_truncated", lambda p: ack(p)[:-1]),
    Hostile("E03-empty", "header_truncated", lambda p: b""),
    Hostile("E04-one-more", "metadata_too_large", lambda p: craft_frame(p, ACK, (), metadata=bytes(4097))),
    Hostile("E04-declared", "metadata_too_large", lambda p: ack(p, metadata_bytes=2**32 - 1)),
    Hostile("E05-short", "tail_length_wrong", lambda p: transfer(p, tail=bytes(4 * p.length - 1))),
    Hostile("E05-long", "tail_length_wrong", lambda p: transfer(p, tail=bytes(4 * p.length + 4))),
    Hostile("E05-none", "tail_length_wrong", lambda p: transfer(p, tail=b"")),
    Hostile("E05-declared", "tail_length_wrong", lambda p: transfer(p, tail_bytes=2**63)),
    Hostile("E05-negative", "tail_length_wrong", lambda p: transfer(p, tail_bytes=2**64 - 4)),
    Hostile("E05-of-nothing", "tail_length_wrong", lambda p: ack(p, tail=b"1234")),
    Hostile("E05-contract", "tail_length_wrong", lambda p: craft_frame(p, CONTRACT, [b""], bytes(65_537))),
    Hostile("E06", "trailing_bytes", lambda p: transfer(p) + b"\0"),
    Hostile("E08", "wrong_recipient", lambda p: ack(p, recipient=p.third)),
    Hostile("E09", "wrong_federation", lambda p: ack(p, federation=bytes(16))),
    Hostile("E12-transfer", "stale_incarnation", lambda p: transfer(p, to_incarnation=p.to_incarnation + 1)),
    Hostile("E12-unmet", "stale_incarnation", lambda p: transfer(p, to_incarnation=0)),
    Hostile("E14", "own_message", lambda p: ack(p, sender=p.recipient, recipient=p.sender)),
    Hostile("M01-not-msgpack", "bad_metadata", bad_metadata(b"\xc1")),
    Hostile("M01-cut", "bad_metadata", lambda p: craft_frame(p, ACK, (), metadata=ack(p)[20:-1])),
    Hostile("M01-more", "bad_metadata", lambda p: craft_frame(p, ACK, (), metadata=ack(p)[20:] + b"\0")),
    Hostile("M01-nothing", "bad_metadata", bad_metadata(b"")),
    Hostile("M01-reserved-byte", "bad_metadata", lambda p: ack(p, reserved=1)),
    Hostile("M02-nested", "bad_metadata", bad_metadata(b"\x91" * 4095 + b"\x90")),
    Hostile("M02-nested-100000", "metadata_too_large", bad_metadata(b"\x91" * 100_000)),
    Hostile("M03-array", "bad_metadata", bad_metadata(ARRAY32)),
    Hostile("M03-map", "bad_metadata", bad_metadata(MAP32)),
    Hostile("M03-arrays-in-arrays", "bad_metadata", bad_metadata(b"\xdc\x00\x40" * 1365)),
    Hostile("M03-wide-arrays-in-arrays", "bad_metadata", bad_metadata(b"\xdc\x0f\xff" * 1365)),
    Hostile("M03-empty-arrays", "bad_metadata", bad_metadata(packed([[[]] * 63] * 32))),
    Hostile("M03-empty-maps", "bad_metadata", bad_metadata(packed([[{}] * 61] * 63))),
    Hostile("M03-string", "bad_metadata", bad_metadata(b"\xdb\xff\xff\xff\xff")),
    Hostile("M03-binary", "bad_metadata", bad_metadata(b"\xc6\xff\xff\xff\xff")),
    Hostile("M04-utf8", "bad_metadata", named(b"\xff\xfe")),
    Hostile("M04-surrogate", "bad_metadata", named(b"\xed\xa0\x80")),
    Hostile("M04-control", "bad_metadata", instead(0, "\x1b[2J")),
    Hostile("M04-empty", "bad_metadata", instead(0, "")),
    Hostile("M04-1000-letters", "bad_metadata", instead(0, "x" * 1000)),
    Hostile("M04-10000-letters", "metadata_too_large", instead(0, "x" * 10_000)),
    Hostile("M05-map", "bad_metadata", instead(1, {"taken": 1})),
    Hostile("M05-empty-map", "bad_metadata", instead(1, {})),
    Hostile("M05-repeated-key", "bad_metadata", repeated_key),
    Hostile("M05-all-a-map", "bad_metadata", bad_metadata(packed({"group": "all"}))),
    Hostile("M05-extension", "bad_metadata", instead(1, msgpack.ExtType(5, b"12345678"))),
    Hostile("M05-empty-extension", "bad_metadata", instead(1, msgpack.ExtType(5, b""))),
    Hostile("M05-timestamp", "bad_metadata", instead(1, msgpack.Timestamp(1, 0))),
    Hostile("M06-too-few", "bad_metadata", lambda p: ack(p, p.group, 1)),
    Hostile("M06-too-many", "bad_metadata", lambda p: ack(p, p.group, 1, 1, 1)),
    Hostile("M06-bool", "bad_metadata", instead(1, True)),
    Hostile("M06-float", "bad_metadata", instead(1, 1.0)),
    Hostile("M06-string", "bad_metadata", instead(1, "1")),
    Hostile("M06-none", "bad_metadata", instead(1, None)),
    Hostile("M06-bytes-for-name", "bad_metadata", instead(0, b"all")),
    Hostile("M06-no-array", "bad_metadata", bad_metadata(packed(7))),
    Hostile("M06-whole-weight", "bad_metadata", lambda p: transfer(p, weight=1)),
    Hostile("M06-incarnation", "bad_metadata", lambda p: ack(p, incarnation=True)),
    Hostile("M07-0", "unknown_kind", lambda p: craft_frame(p, 0, ())),
    Hostile("M07-255", "unknown_kind", lambda p: craft_frame(p, 255, ())),
    Hostile("M08-negative", "field_out_of_range", instead(2, -1)),
    Hostile("M08-2^63", "field_out_of_range", instead(1, 2**63)),
    Hostile("M08-2^64-1", "field_out_of_range", instead(1, 2**64 - 1)),
    Hostile("M08-incarnation", "field_out_of_range", lambda p: ack(p, incarnation=2**62 + 1)),
    Hostile("M08-to-incarnation", "field_out_of_range", lambda p: ack(p, to_incarnation=2**63 - 1)),
    Hostile("M08-seq-0", "field_out_of_range", lambda p: transfer(p, seq=0)),
    Hostile("M08-incarnation-0", "field_out_of_range", lambda p: ack(p, incarnation=0)),
    Hostile("S01", "unknown_group", lambda p: transfer(p, group="nobody-knows")),
    Hostile("S01-ack", "unknown_group", instead(0, "nobody-knows")),
    Hostile("S01-fetch", "unknown_group", lambda p: craft_frame(p, FETCH, ["nobody-knows"])),
    Hostile("S02", "group_not_shared", lambda p: transfer(p, group=p.closed)),
    Hostile("S02-fetch", "group_not_shared", lambda p: craft_frame(p, FETCH, [p.closed])),
    Hostile("S04-scalar", "wrong_shape", lambda p: transfer(p, shape=[], tail=numbers(1))),
    Hostile("S04-one", "wrong_shape", lambda p: transfer(p, shape=[1], tail=numbers(1))),
    Hostile("S04-row", "wrong_shape", lambda p: transfer(p, shape=[1, p.length])),
    Hostile("S04-value", "wrong_shape", lambda p: craft_frame(p, VALUE, [p.group, 1, [1]], numbers(1))),
    Hostile("S04-huge", "wrong_shape", lambda p: transfer(p, shape=[2**62])),
    Hostile("S05-big-endian", "wrong_dtype", lambda p: transfer(p, form=">f4")),
    Hostile("S05-unknown", "wrong_dtype", lambda p: transfer(p, form="float16")),
    Hostile("S05-not-agreed", "wrong_dtype", lambda p: transfer(p, form="float64", tail=bytes(8 * p.length))),
    Hostile("S06-nan", "not_finite", with_number(0, NAN)),
    Hostile("S06-infinity", "not_finite", with_number(-1, INFINITY)),
    Hostile("S06-minus-infinity", "not_finite", with_number(1, -INFINITY)),
    Hostile(
        "S06-value", "not_finite", lambda p: craft_frame(p, VALUE, [p.group, 1, [p.length]], numbers(*[NAN] * p.length))
    ),
    Hostile("S07-zero", "bad_weight", lambda p: transfer(p, weight=0.0)),
    Hostile("S07-negative", "bad_weight", lambda p: transfer(p, weight=-0.25)),
    Hostile("S07-nan", "bad_weight", lambda p: transfer(p, weight=NAN)),
    Hostile("S07-infinite", "bad_weight", lambda p: transfer(p, weight=INFINITY)),
    Hostile("S07-above", "bad_weight", lambda p: transfer(p, weight=p.weight_max * 1.001)),
    Hostile("S12", "not_a_neighbour", lambda p: transfer(p, group=p.far)),
)  # fmt: skip
