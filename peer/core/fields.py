"""The metadata of messages: how each kind's fields look as fixed-length msgpack arrays, and what each may be.

A reader takes one plain value and returns what it means, or raises `Unfit`, which never leaves the decoder. Types are
compared exactly (a bool is no number, a number no bool), arrays have exactly the fields of their dataclass in its
order, and everything that has a length has a bound. Tensors do not travel here: their shape stands in their place,
and the bytes follow as the tail; so does the text of a contract or a roster, whose place stays empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from torch import Tensor

from fedpeer.gossip.claims import STATEMENTS, VERDICTS, Advert, Claim, well_formed
from fedpeer.gossip.transfers import Parcel
from fedpeer.peer.core import messages
from fedpeer.peer.core.capacity import ADDRESS_LETTERS_MAX, ARRAY_MAX, GROUP_LETTERS_MAX, NAME_LETTERS_MAX
from fedpeer.peer.core.framing import Bytes, FrameError, unpack

#: Letters of a sentence for the other side's log: a line or four on a terminal.
TEXT_LETTERS_MAX = 500
#: A letter has at most 4 bytes in UTF-8.
STRING_BYTES_MAX = 4 * TEXT_LETTERS_MAX
#: Bytes of the longest binary field, a signature.
BINARY_BYTES_MAX = 64
#: Numbers travel as 64 bits with a sign; 292 years of nanoseconds.
NUMBER_MAX = 2**63 - 1
#: Claims that ride on a message of membership.
CLAIMS_MAX = 8
#: Dimensions of a tensor: one is right, and some more are read so that the refusal can name them.
DIMENSIONS_MAX = 8

Reader = Callable[[Any], Any]
Plain = TypeVar("Plain")


class Unfit(Exception):  # noqa: N818 (never seen outside: it becomes a refusal)
    """A value that cannot be taken: the refusal's code, and what is wrong."""

    def __init__(self, code: str, text: str) -> None:
        self.code, self.text = code, text
        super().__init__(text)


def unpacked(metadata: Bytes) -> tuple[Any, ...]:
    """The array in exactly these bytes."""
    try:
        value = unpack(metadata, str_max=STRING_BYTES_MAX, bin_max=BINARY_BYTES_MAX, array_max=ARRAY_MAX, map_max=0)
    except FrameError as error:
        raise Unfit("bad_metadata", str(error)) from None
    return _of(tuple, value)


def plain(value: Any) -> Any:
    """What stands in the metadata for a value: arrays for records, shapes for tensors."""
    if isinstance(value, messages.Transfer):
        return (value.group, *plain(value.parcel))
    if is_dataclass(value):
        return tuple(plain(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, Tensor):
        return tuple(value.shape)
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def printable(text: str, letters_max: int) -> str:
    """Any text, such that `words(letters_max)` takes it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:letters_max]) or "?"


# ----------------------------------------------------------------------------------------------------------- readers


def whole(least: int = 0) -> Reader:
    def read(value: Any) -> int:
        number = _of(int, value)
        if not least <= number <= NUMBER_MAX:
            raise Unfit("field_out_of_range", f"{number} is not in {least} .. 2^63 - 1")
        return number

    return read


def real(value: Any) -> float:
    """Any float64, also NaN: what it may be depends on where it stands."""
    return _of(float, value)


def amount(value: Any) -> float:
    """A sum of weights."""
    number = _of(float, value)
    if not (math.isfinite(number) and number >= 0):
        raise Unfit("field_out_of_range", f"{number} is not a sum of weights")
    return number


def finite(value: Any) -> float:
    number = _of(float, value)
    if not math.isfinite(number):
        raise Unfit("field_out_of_range", f"{number} is not finite")
    return number


def flag(value: Any) -> bool:
    return _of(bool, value)


def words(letters_max: int, least: int = 1) -> Reader:
    def read(value: Any) -> str:
        text = _of(str, value)
        if not (least <= len(text) <= letters_max and text.isprintable()):
            raise Unfit("bad_metadata", f"not {least} to {letters_max} printable letters")
        return text

    return read


def octets(count: int) -> Reader:
    def read(value: Any) -> bytes:
        data = _of(bytes, value)
        if len(data) != count:
            raise Unfit("bad_metadata", f"{len(data)} bytes instead of {count}")
        return data

    return read


def empty(value: Any) -> bytes:
    """The place of a text that is the tail."""
    return bytes(octets(0)(value))


def one_of(*known: str) -> Reader:
    def read(value: Any) -> str:
        if (text := _of(str, value)) not in known:
            raise Unfit("bad_metadata", f"none of {', '.join(known)}")
        return text

    return read


def maybe(reader: Reader) -> Reader:
    return lambda value: None if value is None else reader(value)


def many(reader: Reader, most: int = ARRAY_MAX) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if len(items := _of(tuple, value)) > most:
            raise Unfit("bad_metadata", f"{len(items)} elements, more than {most}")
        return tuple(map(reader, items))

    return read


def row(*readers: Reader) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if len(items := _of(tuple, value)) != len(readers):
            raise Unfit("bad_metadata", f"{len(items)} fields instead of {len(readers)}")
        return tuple(reader(item) for reader, item in zip(readers, items, strict=True))

    return read


def named(record: type, *readers: Reader) -> Reader:
    """The fields of a dataclass by name; what is unfit says in which field."""
    names = _names(record)
    assert len(names) == len(readers), f"a reader for each field of {record.__name__}"
    each = row(*(_placed(f"{record.__name__}.{name}", reader) for name, reader in zip(names, readers, strict=True)))
    return lambda value: dict(zip(names, each(value), strict=True))


def _names(record: type) -> list[str]:
    """The fields as they travel: a transfer's group, and beside it all of its parcel."""
    return ["group", *_names(Parcel)] if record is messages.Transfer else [each.name for each in fields(record)]


def record(made: type, *readers: Reader) -> Reader:
    """A dataclass."""
    read = named(made, *readers)
    return lambda value: made(**read(value))


def _placed(place: str, reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        try:
            return reader(value)
        except Unfit as unfit:
            raise Unfit(unfit.code, f"{place}: {unfit.text}") from None

    return read


def _of(wanted: type[Plain], value: Any) -> Plain:
    if type(value) is not wanted:  # not isinstance: a bool is an int
        raise Unfit("bad_metadata", f"{type(value).__name__} where {wanted.__name__} belongs")
    return value


# ------------------------------------------------------------------------------------------------- the kinds of message


def _claim(value: Any) -> Claim:
    claim: Claim = _CLAIM(value)
    if not well_formed(claim):
        raise Unfit("bad_metadata", "a statement by another than its subject, or a verdict with an advert")
    return claim


def _distinct(reader: Reader, key: Callable[[Any], str]) -> Reader:
    def read(value: Any) -> Any:
        items = reader(value)
        if len({key(item) for item in items}) < len(items):
            raise Unfit("bad_metadata", "a name stands twice")
        return items

    return read


_NAME, _GROUP, _NUMBER, _FIRST = words(NAME_LETTERS_MAX), words(GROUP_LETTERS_MAX), whole(), whole(1)
_SHAPE = many(whole(), DIMENSIONS_MAX)
_LANE = record(messages.LaneState, _GROUP, _NUMBER, _NUMBER, _NUMBER, amount, amount)
_ADVERT = record(
    Advert,
    words(ADDRESS_LETTERS_MAX),
    _NUMBER,
    _NUMBER,
    _NUMBER,
    _NUMBER,
    maybe(finite),
    flag,
    many(_NAME),
)
_CLAIM = record(
    Claim, _NAME, _NUMBER, _NUMBER, one_of(*sorted(STATEMENTS | VERDICTS)), _NAME, maybe(_ADVERT), octets(64)
)
_CLAIMS = many(_claim, CLAIMS_MAX)

ENVELOPE = named(messages.Envelope, octets(16), _NAME, _NAME, _FIRST, _NUMBER)

#: Each kind of message, with the reader of its fields.
READERS: dict[type[messages.Message], Reader] = {
    each: named(each, *readers)
    for each, readers in {
        messages.Hello: (
            _NUMBER,
            _NUMBER,
            _NUMBER,
            octets(32),
            _distinct(many(row(_GROUP, octets(32))), lambda pair: pair[0]),
            _distinct(many(_LANE), lambda lane: lane.group),
            _NUMBER,
            flag,
            _NUMBER,
            flag,
            flag,
        ),
        messages.Contract: (empty,),
        messages.Transfer: (_GROUP, _FIRST, _NUMBER, _NUMBER, real, _NAME, _SHAPE),
        messages.Ack: (_GROUP, _NUMBER, _NUMBER),
        messages.Ping: (_NUMBER, _CLAIMS),
        messages.PingRequest: (_NUMBER, _NAME, _CLAIMS),
        messages.Pong: (_NUMBER, _NAME, flag, _CLAIMS),
        messages.Fetch: (_GROUP,),
        messages.Value: (_GROUP, _NUMBER, _SHAPE),
        messages.RosterNews: (_FIRST, empty),
        messages.Refused: (_NAME, words(GROUP_LETTERS_MAX, least=0), _NUMBER, words(TEXT_LETTERS_MAX, least=0)),
    }.items()
}
#: Kinds by their number in the header, 1, 2, 3, ... in the order above: new ones stand at its end.
KINDS = dict(enumerate(READERS, start=1))
