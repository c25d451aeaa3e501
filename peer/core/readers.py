"""Readers of metadata: what one plain value may be, and what it means.

A reader takes one plain value and returns what it means, or raises `Unfit`, which never leaves the decoder. Types are
compared exactly (a bool is no number, a number no bool), arrays have exactly the fields that belong there in their
order, and everything that has a length has a bound. Which fields each kind of message has stands in `fields.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, TypeVar

from fedpeer.config.capacity import ARRAY_MAX
from fedpeer.peer.core.framing import Bytes, FrameError, unpack

#: Letters of a sentence for the other side's log: a line or four on a terminal.
TEXT_LETTERS_MAX = 500
#: A letter has at most 4 bytes in UTF-8.
STRING_BYTES_MAX = 4 * TEXT_LETTERS_MAX
#: Bytes of the longest binary field, a signature.
BINARY_BYTES_MAX = 64
#: Numbers travel as 64 bits with a sign; 292 years of nanoseconds.
NUMBER_MAX = 2**63 - 1
#: Of what is counted up (lives, incarnations, versions of statements), so that the next number can be said, too.
COUNT_MAX = 2**62

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
    return of_type(tuple, value)


def whole(least: int = 0, most: int = NUMBER_MAX) -> Reader:
    def read(value: Any) -> int:
        number = of_type(int, value)
        if not least <= number <= most:
            raise Unfit("field_out_of_range", f"{number} is not in {least} .. {most}")
        return number

    return read


def real(value: Any) -> float:
    """Any float64, also NaN: what it may be depends on where it stands."""
    return of_type(float, value)


def amount(value: Any) -> float:
    """A sum of weights."""
    number = of_type(float, value)
    if not (math.isfinite(number) and number >= 0):
        raise Unfit("field_out_of_range", f"{number} is not a sum of weights")
    return number


def finite(value: Any) -> float:
    number = of_type(float, value)
    if not math.isfinite(number):
        raise Unfit("field_out_of_range", f"{number} is not finite")
    return number


def flag(value: Any) -> bool:
    return of_type(bool, value)


def words(letters_max: int, least: int = 1) -> Reader:
    def read(value: Any) -> str:
        text = of_type(str, value)
        if not (least <= len(text) <= letters_max and text.isprintable()):
            raise Unfit("bad_metadata", f"not {least} to {letters_max} printable letters")
        return text

    return read


def octets(count: int) -> Reader:
    def read(value: Any) -> bytes:
        data = of_type(bytes, value)
        if len(data) != count:
            raise Unfit("bad_metadata", f"{len(data)} bytes instead of {count}")
        return data

    return read


def empty(value: Any) -> bytes:
    """The place of a text that is the tail."""
    return bytes(octets(0)(value))


def one_of(*known: str) -> Reader:
    def read(value: Any) -> str:
        if (text := of_type(str, value)) not in known:
            raise Unfit("bad_metadata", f"none of {', '.join(known)}")
        return text

    return read


def maybe(reader: Reader) -> Reader:
    return lambda value: None if value is None else reader(value)


def many(reader: Reader, most: int = ARRAY_MAX) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if len(items := of_type(tuple, value)) > most:
            raise Unfit("bad_metadata", f"{len(items)} elements, more than {most}")
        return tuple(map(reader, items))

    return read


def row(*readers: Reader) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        return tuple([reader(item) for reader, item in zip(readers, _array(value, len(readers)), strict=True)])

    return read


def _array(value: Any, length: int) -> tuple[Any, ...]:
    if len(items := of_type(tuple, value)) != length:
        raise Unfit("bad_metadata", f"{len(items)} fields instead of {length}")
    return items


def named(names: Iterable[str], *readers: Reader, of: str) -> Reader:
    """Fields by name; what is unfit says in which field of what."""
    placed_readers = tuple(zip(names, readers, strict=True))  # a reader for each field

    def read(value: Any) -> dict[str, Any]:
        found = {}
        for (name, reader), item in zip(placed_readers, _array(value, len(readers)), strict=True):
            try:
                found[name] = reader(item)
            except Unfit as unfit:
                raise Unfit(unfit.code, f"{of}.{name}: {unfit.text}") from None
        return found

    return read


def record(made: type, *readers: Reader) -> Reader:
    """A dataclass."""
    read = named((each.name for each in fields(made)), *readers, of=made.__name__)
    return lambda value: made(**read(value))


def placed(place: str, reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        try:
            return reader(value)
        except Unfit as unfit:
            raise Unfit(unfit.code, f"{place}: {unfit.text}") from None

    return read


def distinct(reader: Reader, key: Callable[[Any], str]) -> Reader:
    """Records of which no two have the same name."""

    def read(value: Any) -> Any:
        items = reader(value)
        if len({key(item) for item in items}) < len(items):
            raise Unfit("bad_metadata", "a name stands twice")
        return items

    return read


def of_type(wanted: type[Plain], value: Any) -> Plain:
    if type(value) is not wanted:  # not isinstance: a bool is an int
        raise Unfit("bad_metadata", f"{type(value).__name__} where {wanted.__name__} belongs")
    return value
