"""Examples of every kind of message, drawn from its declaration: frames that are accepted, and values that are not.

Values are drawn in their plain form, as they appear in the metadata. A tail is drawn by its class, for messages between
the two peers of `frames.py`. A new kind of message needs no change here; a new class of tails needs a case in
`tail_of`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np

from fedpeer.peer.wire.message_spec import layout_of
from fedpeer.peer.wire.messages import KINDS, Message, spoken_in
from fedpeer.peer.wire.tails import (
    ContentTail,
    Shape,
    ShareTail,
    SignaturesTail,
    TextTail,
    UpdateTail,
    ValueTail,
    content_digest,
)
from fedpeer.peer.wire.versions import VERSIONS
from fedpeer.peer.wire.wire_types import (
    Array,
    EmptyPlace,
    Flag,
    Layout,
    Many,
    Maybe,
    Octets,
    OneOf,
    Real,
    Record,
    Text,
    Whole,
    WireType,
)
from fedpeer.rejection import RejectionError
from tests.peer.frames import LENGTH, MODEL_BYTES, PARTY, UPDATE_BYTES
from tests.peer.hostile import craft_frame

#: Every kind of message in every version of the wire that has it.
SPOKEN = [(version, kind) for version in VERSIONS for kind in KINDS.values() if spoken_in(version, kind)]
#: Few names, so that some are drawn twice: some declarations require equal names.
_NAMES = ("ann", "bob", "Ж")
_LETTERS = "aZ0_-+.ж漢🂡"
#: Upper bound of the drawn elements of an array, so that frames stay short.
_SOME = 3
#: Number of attempts to draw fields that fit together.
_TRIES = 1000


# ------------------------------------------------------------------------------------------------- what belongs there


def valid(wire_type: WireType, version: int, draws: np.random.Generator) -> Any:
    """Return a plain value that the type accepts; often one at a bound of its range."""
    match wire_type:
        case Whole(least, most):
            return [least, most, int(draws.integers(least, min(most, least + 1000)))][draws.integers(3)]
        case Flag():
            return bool(draws.integers(2))
        case Real(least):
            return float(draws.choice([max(least, 0.0), 5e-324, 1.5, 1e300]))
        case Text(most, least):
            return _text(least, most, draws)
        case OneOf(words):
            return words[draws.integers(len(words))]
        case Octets(count, may_lack):
            return b"" if may_lack and draws.integers(2) else draws.bytes(count)
        case EmptyPlace():
            return b""
        case Shape():
            return [LENGTH]
        case Maybe(of):
            return valid(of, version, draws) if draws.integers(2) else None
        case Many(of, most):
            return _distinct(
                [valid(of, version, draws) for _ in range(draws.integers(min(most, _SOME) + 1))], wire_type
            )
        case Array(of):
            return [valid(each, version, draws) for each in of]
        case Record(layout):
            return fitting(layout, version, draws)
    raise AssertionError(f"no example of {wire_type}")


def _text(least: int, most: int, draws: np.random.Generator) -> str:
    length = int(draws.integers(least, min(most, 8) + 1)) if draws.integers(10) else min(most, 100)
    return _NAMES[draws.integers(len(_NAMES))] if draws.integers(2) else "".join(draws.choice(list(_LETTERS), length))


def _distinct(values: list[Any], many: Many) -> list[Any]:
    """Return one value for each name (the first field) where names must be distinct, otherwise all values."""
    return values if many.named is None else list({value[0]: value for value in values}.values())


def fitting(layout: Layout, version: int, draws: np.random.Generator) -> list[Any]:
    """Return plain fields of a class that fit together."""
    for _ in range(_TRIES):
        if layout.tagged is not None:
            tag = str(draws.choice(list(layout.tagged[1].in_version(version))))
            plain = [*_fields(layout, version, draws), tag, *fitting(layout.tagged[1].kinds[tag], version, draws)]
        else:
            plain = _fields(layout, version, draws)
        try:
            layout.build(layout.reader(version)(_as_read(plain)))
        except (RejectionError, TypeError):  # a TypeError: a field is the tail, which does not exist yet
            if layout.made not in KINDS.values():
                continue
        return plain
    raise AssertionError(f"{layout.made.__name__}: nothing fits")


def _fields(layout: Layout, version: int, draws: np.random.Generator) -> list[Any]:
    return [valid(wire_type, version, draws) for _, wire_type in layout.elements(version)]


def _as_read(plain: Any) -> Any:
    """Return the value with tuples instead of lists, as msgpack reads it."""
    return tuple(map(_as_read, plain)) if isinstance(plain, list) else plain


def frame(kind: type[Message], version: int, draws: np.random.Generator, *, group: str = "all") -> bytes:
    """Return a frame from ann that bob accepts."""
    layout = layout_of(kind)
    plain = fitting(layout, version, draws)
    names = [name for name, _ in layout.elements(version)]
    changed, tail = tail_of(kind, plain, draws)
    if "group" in names and kind.spec.about != "nothing":
        changed["group"] = group
    for name, value in changed.items():
        plain[names.index(name)] = value
    return craft_frame(PARTY, kind.spec.number, plain, tail, version=version)


def tail_of(kind: type[Message], plain: list[Any], draws: np.random.Generator) -> tuple[dict[str, Any], bytes]:
    """Return the fields that describe the tail, and the tail."""
    match kind.spec.tail:
        case TextTail():
            return {}, draws.bytes(int(draws.integers(100)))
        case ValueTail():
            return {}, _numbers(draws)
        case ShareTail():
            return {"form": "float32", "weight": float(draws.choice([5e-324, 0.5, 4.0]))}, _numbers(draws)
        case SignaturesTail():
            return {}, _signatures(draws) if {"lead", "commit"} & {plain[1]} else b""
        case UpdateTail():
            content = draws.bytes(UPDATE_BYTES)
            return {"digest": content_digest(content), "form": "plain", "size": len(content)}, content
        case ContentTail():
            content = draws.bytes(MODEL_BYTES)
            return {"digest": content_digest(content)}, content
    return {}, b""


def _numbers(draws: np.random.Generator) -> bytes:
    return draws.normal(size=LENGTH).astype("<f4").tobytes()


def _signatures(draws: np.random.Generator) -> bytes:
    return b"".join(msgpack.packb([name, draws.bytes(64)]) for name in ("ann", "cas"))


# ------------------------------------------------------------------------------------------------------- what does not

#: One value of each type that msgpack has.
_ANY: tuple[Any, ...] = (None, True, 1, 1.5, "x", b"x", [], {})


def hostile(wire_type: WireType, version: int, draws: np.random.Generator) -> Iterator[tuple[Any, str]]:
    """Yield plain values that the type does not accept, each with the code of its rejection."""
    good = valid(wire_type, version, draws)
    if isinstance(wire_type, Maybe):
        yield from (each for each in hostile(wire_type.of, version, draws) if each[0] is not None)
        return
    yield from ((value, "bad_metadata") for value in _ANY if type(value) is not type(good))
    match wire_type:
        case Whole(least, most):
            yield from ((value, "field_out_of_range") for value in (least - 1, most + 1))
        case Real(least, anything) if not anything:
            yield from ((value, "field_out_of_range") for value in (math.nan, math.inf, float(least) - 1))
        case Text(most, least):
            yield from ((value, "bad_metadata") for value in ("x" * (most + 1), "\n", "\x1b", *([""] if least else [])))
        case OneOf() | Octets() | EmptyPlace():
            yield good + good + (b"x" if isinstance(good, bytes) else "x"), "bad_metadata"
        case Array() | Record():
            yield from ((value, "bad_metadata") for value in (good[:-1], [*good, 1]))
            for at, inner in enumerate(_inner(wire_type, version)):
                yield from (([*good[:at], bad, *good[at + 1 :]], code) for bad, code in hostile(inner, version, draws))
        case Many(of, most, named):
            yield from (([bad], code) for bad, code in hostile(of, version, draws))
            if isinstance(of, Whole | Text):
                yield [valid(of, version, draws)] * (most + 1), "bad_metadata"
            if named is not None:
                yield [valid(of, version, draws)] * 2, "bad_metadata"


def _inner(wire_type: Array | Record, version: int) -> list[WireType]:
    return (
        list(wire_type.of) if isinstance(wire_type, Array) else [each for _, each in wire_type.layout.elements(version)]
    )


def hostile_frames(kind: type[Message], version: int, draws: np.random.Generator) -> Iterator[tuple[str, bytes, str]]:
    """Yield frames in which one field is wrong, each with its name and the code of its rejection."""
    layout = layout_of(kind)
    plain = fitting(layout, version, draws)
    elements = list(layout.elements(version))
    if layout.tagged is not None:
        elements += layout.tagged[1].kinds[plain[len(elements)]].elements(version)
        at_least = len(elements) + 1
        places = [place if place < len(list(layout.elements(version))) else place + 1 for place in range(len(elements))]
    else:
        at_least, places = len(elements), list(range(len(elements)))
    assert len(plain) == at_least
    for place, (name, wire_type) in zip(places, elements, strict=True):
        for bad, code in hostile(wire_type, version, draws):
            wrong = [*plain[:place], bad, *plain[place + 1 :]]
            yield f"{name}={bad!r}"[:60], craft_frame(PARTY, kind.spec.number, wrong, version=version), code
    yield "too few", craft_frame(PARTY, kind.spec.number, plain[:-1], version=version), "bad_metadata"
    yield "too many", craft_frame(PARTY, kind.spec.number, [*plain, 1], version=version), "bad_metadata"
