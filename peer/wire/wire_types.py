"""Wire types: the values that a message's metadata may hold. One declaration reads, writes and documents a value.

A wire type declares one value: its type, its range, its length. `reader` returns a function that converts a plain
msgpack value, or raises a `RejectionError`, which never leaves the decoder. Types are compared exactly (a bool is not a
number, nor a number a bool), arrays have exactly the declared fields in their order, and every length has a bound.

A `Layout` joins the types of a class's fields. It reads and writes them for one version of the wire: a field that older
versions lack is declared as `Since`, comes after the others, and takes the class's default in a frame of an older one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, TypeVar

from fedpeer.config.capacity import ARRAY_MAX
from fedpeer.gossip.tensor_bytes import Bytes
from fedpeer.peer.wire.framing import FrameError, unpack
from fedpeer.peer.wire.versions import NEWEST, OLDEST
from fedpeer.rejection import Rejection, RejectionError

#: Characters of a sentence for the other side's log: up to about four lines on a terminal.
TEXT_LETTERS_MAX = 500
#: A character has at most 4 bytes in UTF-8.
_STRING_BYTES_MAX = 4 * TEXT_LETTERS_MAX
#: Bytes of the longest binary field, a signature.
_BINARY_BYTES_MAX = 64
#: Numbers are signed 64-bit integers; that is 292 years in nanoseconds.
NUMBER_MAX = 2**63 - 1
#: Limit of counters (generations, incarnations, versions of statements), so that the next number can be sent, too.
COUNT_MAX = 2**62

Reader = Callable[[Any], Any]
Writer = Callable[[Any], Any]
Plain = TypeVar("Plain")


def _unfit(text: str, code: str = "bad_metadata") -> RejectionError:
    return RejectionError(Rejection(code, text))


def unpacked(metadata: Bytes) -> tuple[Any, ...]:
    """Return the array that exactly these bytes encode."""
    try:
        value = unpack(metadata, str_max=_STRING_BYTES_MAX, bin_max=_BINARY_BYTES_MAX, array_max=ARRAY_MAX, map_max=0)
    except FrameError as error:
        raise _unfit(str(error)) from None
    return _of_type(tuple, value)


def _of_type(wanted: type[Plain], value: Any) -> Plain:
    """Return the value if it is of exactly this type; raise RejectionError otherwise."""
    if type(value) is not wanted:
        raise _mistyped(wanted, value)
    return value


def _mistyped(wanted: type[Any], value: Any) -> RejectionError:
    return _unfit(f"{type(value).__name__} instead of {wanted.__name__}")


def _array(value: Any, length: int) -> tuple[Any, ...]:
    if len(items := _of_type(tuple, value)) != length:
        raise _unfit(f"{len(items)} fields instead of {length}")
    return items


# ---------------------------------------------------------------------------------------------------- single values


class WireType(ABC):
    """One value in the metadata of a message."""

    @abstractmethod
    def reader(self, version: int) -> Reader:
        """Return a function that converts a plain value of this wire version, or raises RejectionError."""

    def writer(self, version: int) -> Writer | None:
        """Return the inverse of the reader; None if a value is its own plain form."""
        return None


@dataclass(frozen=True)
class Whole(WireType):
    """A whole number from `least` to `most`."""

    least: int = 0
    most: int = NUMBER_MAX

    def reader(self, version: int) -> Reader:
        least, most = self.least, self.most

        def read(value: Any) -> int:
            if type(value) is not int:  # not isinstance: a bool is an int
                raise _mistyped(int, value)
            if not least <= value <= most:
                raise _unfit(f"{value} is not in {least} .. {most}", "field_out_of_range")
            return value

        return read


@dataclass(frozen=True)
class Flag(WireType):
    """True or False."""

    def reader(self, version: int) -> Reader:
        return lambda value: _of_type(bool, value)


@dataclass(frozen=True)
class Real(WireType):
    """A finite float64, not below `least`; with `anything` any float64, even NaN: its range depends on other fields."""

    least: float = -math.inf
    anything: bool = False

    def reader(self, version: int) -> Reader:
        if self.anything:
            return lambda value: _of_type(float, value)
        least = self.least

        def read(value: Any) -> float:
            number = _of_type(float, value)
            if not (math.isfinite(number) and number >= least):
                raise _unfit(f"{number} is not finite, or less than {least}", "field_out_of_range")
            return number

        return read


@dataclass(frozen=True)
class Text(WireType):
    """A string of `least` to `most` printable characters."""

    most: int
    least: int = 1

    def fitted(self, text: str) -> str:
        """Return the text cut to length, with "?" for what is not printable, so that it can be sent."""
        return "".join(letter if letter.isprintable() else "?" for letter in text[: self.most]) or "?"

    def reader(self, version: int) -> Reader:
        least, most = self.least, self.most

        def read(value: Any) -> str:
            if type(value) is not str:
                raise _mistyped(str, value)
            if not (least <= len(value) <= most and value.isprintable()):
                raise _unfit(f"not {least} to {most} printable letters")
            return value

        return read


@dataclass(frozen=True)
class OneOf(WireType):
    """One of these words."""

    words: tuple[str, ...]

    def reader(self, version: int) -> Reader:
        words = self.words

        def read(value: Any) -> str:
            if type(value) is not str:
                raise _mistyped(str, value)
            if value not in words:
                raise _unfit(f"not one of {', '.join(words)}")
            return value

        return read


@dataclass(frozen=True)
class Octets(WireType):
    """Exactly `count` bytes, or with `may_lack` none."""

    count: int
    may_lack: bool = False

    def reader(self, version: int) -> Reader:
        count, other = self.count, 0 if self.may_lack else self.count

        def read(value: Any) -> bytes:
            if type(value) is not bytes:
                raise _mistyped(bytes, value)
            if len(value) != count and len(value) != other:
                raise _unfit(f"{len(value)} bytes instead of {count}")
            return value

        return read


@dataclass(frozen=True)
class EmptyPlace(WireType):
    """No bytes: the placeholder of a text that is sent as the tail."""

    def reader(self, version: int) -> Reader:
        return Octets(0).reader(version)

    def writer(self, version: int) -> Writer | None:
        return lambda text: b""


# -------------------------------------------------------------------------------------------------- made of others


@dataclass(frozen=True)
class Maybe(WireType):
    """A value, or nil."""

    of: WireType

    def reader(self, version: int) -> Reader:
        read = self.of.reader(version)
        return lambda value: None if value is None else read(value)

    def writer(self, version: int) -> Writer | None:
        write = self.of.writer(version)
        return None if write is None else lambda value: None if value is None else write(value)


@dataclass(frozen=True)
class Many(WireType):
    """At most `most` values of one type.

    named   returns the name of a value; names must be unique
    spare   values that do not fit into the metadata are left out, beginning with the last
    """

    of: WireType
    most: int = ARRAY_MAX
    named: Callable[[Any], str] | None = None
    spare: bool = False

    def reader(self, version: int) -> Reader:
        each, most, named = self.of.reader(version), self.most, self.named

        def read(value: Any) -> tuple[Any, ...]:
            if len(items := _of_type(tuple, value)) > most:
                raise _unfit(f"{len(items)} elements, more than {most}")
            found = tuple(map(each, items))
            if named is not None and len(set(map(named, found))) < len(found):
                raise _unfit("a name occurs twice")
            return found

        return read

    def writer(self, version: int) -> Writer | None:
        write = self.of.writer(version)
        return None if write is None else lambda values: tuple(map(write, values))


@dataclass(frozen=True)
class Array(WireType):
    """An array of exactly these values, in this order."""

    of: tuple[WireType, ...]

    def reader(self, version: int) -> Reader:
        readers = tuple(each.reader(version) for each in self.of)

        def read(value: Any) -> tuple[Any, ...]:
            return tuple([each(item) for each, item in zip(readers, _array(value, len(readers)), strict=True)])

        return read


@dataclass(frozen=True)
class Record(WireType):
    """An array of the fields of a class."""

    layout: Layout

    def reader(self, version: int) -> Reader:
        read, build = self.layout.reader(version), self.layout.build
        return lambda value: build(read(value))

    def writer(self, version: int) -> Writer | None:
        return self.layout.writer(version)


# ------------------------------------------------------------------------------------------------ fields of a class


@dataclass(frozen=True)
class Since:
    """A field that frames of earlier wire versions lack; read from such a frame it has the class's default."""

    version: int
    of: WireType


@dataclass(frozen=True)
class NotInMetadata:
    """A field outside the metadata: it is in the header, or it is the tail or follows from the tail.

    until   its value before the tail is read; None: it has none
    """

    until: Any = None


@dataclass(frozen=True)
class Inline:
    """A field that is replaced by its own fields, one after the other."""

    layout: Layout


@dataclass(frozen=True)
class Tagged:
    """The last field, which is of one of several kinds: replaced by the kind's tag and then its fields."""

    kinds: Mapping[str, Layout]

    def in_version(self, version: int) -> Mapping[str, Layout]:
        """Return the kinds that this version of the wire has."""
        return {tag: layout for tag, layout in self.kinds.items() if layout.since <= version}


FieldType = WireType | Since | NotInMetadata | Inline | Tagged


class Layout:
    """The wire types of a class's fields, in their order, by the names that the fields have on the wire.

    Args:
        made: a dataclass.
        types: one for each field of it.
        fits: a condition on the whole value, beyond the ranges of its fields.
        unfit: what is wrong with a value that fails `fits`; text of the rejection.
        beside: values after the fields that are not fields; they say how to read the tail.
        since: first version of the wire that has this class, if it is a kind after a tag.
    """

    def __init__(
        self,
        made: type[Any],
        types: Mapping[str, FieldType],
        *,
        fits: Callable[[Any], bool] | None = None,
        unfit: str = "",
        beside: Mapping[str, WireType] | None = None,
        since: int = OLDEST,
    ) -> None:
        self.made, self.types, self.beside, self._fits, self._unfit = made, types, beside or {}, fits, unfit
        self.since = since
        self._fields = tuple(zip((each.name for each in fields(made)), types, types.values(), strict=True))
        later = [isinstance(each, Since) for _, _, each in self._fields]
        assert later == sorted(later), f"{made.__name__}: later fields follow the others"
        self._read: dict[int, Callable[[Any], dict[str, Any]]] = {}
        self._write: dict[int, Callable[[Any], tuple[Any, ...]]] = {}
        self._inlined = [(own, type.layout) for own, _, type in self._fields if isinstance(type, Inline)]
        elsewhere = {own: type.until for own, _, type in self._fields if isinstance(type, NotInMetadata)}
        self._until = {own: until for own, until in elsewhere.items() if until is not None}
        self._named = [(own, name) for own, name, type in self._fields if own not in self._until]
        self._simple = not (self._inlined or self._until or beside) and all(own == name for own, name in self._named)

    def elements(self, version: int = NEWEST) -> Iterator[tuple[str, WireType]]:
        """Yield the name and type of each value in the metadata of this version, except those after a tag."""
        for name, type in self.types.items():
            match type:
                case Inline(layout):
                    yield from layout.elements(version)
                case Since(first, inner) if first <= version:
                    yield name, inner
                case WireType():
                    yield name, type
        yield from self.beside.items()

    @property
    def tagged(self) -> tuple[str, Tagged] | None:
        """The last field's name and type if it is tagged, else None."""
        _, name, last = self._fields[-1]
        return (name, last) if isinstance(last, Tagged) else None

    @property
    def spare(self) -> str:
        """Name of the field whose values may be left out; "" if there is none."""
        types = {name: type.of if isinstance(type, Since) else type for name, type in self.types.items()}
        return next((name for name, type in types.items() if isinstance(type, Many) and type.spare), "")

    def reader(self, version: int) -> Callable[[Any], dict[str, Any]]:
        """Return a function that reads exactly these fields from an array, by name; its rejections name the field."""
        if version not in self._read:
            self._read[version] = self._reader(version)
        return self._read[version]

    def _reader(self, version: int) -> Callable[[Any], dict[str, Any]]:
        place = self.made.__name__
        readers = tuple((name, type.reader(version)) for name, type in self.elements(version))

        def read(value: Any) -> dict[str, Any]:
            items, found, name = _array(value, len(readers)), {}, ""
            try:
                for (name, reader), item in zip(readers, items, strict=True):
                    found[name] = reader(item)
            except RejectionError as error:
                raise _in_field(place, name, error) from None
            return found

        return read if self.tagged is None else self._tagged_reader(version, read, len(readers), *self.tagged)

    def _tagged_reader(
        self, version: int, head: Callable[[Any], dict[str, Any]], width: int, name: str, tagged: Tagged
    ) -> Callable[[Any], dict[str, Any]]:
        kinds = {tag: (layout.reader(version), layout.build) for tag, layout in tagged.in_version(version).items()}
        tag_of = OneOf(tuple(kinds)).reader(version)

        def read(value: Any) -> dict[str, Any]:
            items = _of_type(tuple, value)
            found = head(items[:width])
            try:
                fields_of, build = kinds[tag_of(items[width] if len(items) > width else None)]
            except RejectionError as error:
                raise _in_field(self.made.__name__, name, error) from None
            return {**found, name: build(fields_of(items[width + 1 :]))}

        return read

    def build(self, values: Mapping[str, Any]) -> Any:
        """Return the instance with these fields; missing fields take their defaults."""
        return self._fitting(self.made(**values)) if self._simple else self.built_among(values)

    def built_among(self, values: Mapping[str, Any]) -> Any:
        """Return the instance with these fields, ignoring values that are not its own."""
        found = {own: values[name] for own, name in self._named if name in values}
        for own, layout in self._inlined:
            found[own] = layout.built_among(values)
        return self._fitting(self.made(**self._until, **found))

    def _fitting(self, made: Any) -> Any:
        if self._fits is not None and not self._fits(made):
            raise _unfit(self._unfit)
        return made

    def writer(self, version: int) -> Callable[[Any], tuple[Any, ...]]:
        """Return a function that converts an instance to the array of its fields, without the values `beside` them."""
        if version not in self._write:
            self._write[version] = self._writer(version)
        return self._write[version]

    def _writer(self, version: int) -> Callable[[Any], tuple[Any, ...]]:
        parts = tuple(self._writers(version))
        fields_of = _fields_of([name for name, _, _ in parts])
        converted = [(place, written, inline) for place, (_, written, inline) in enumerate(parts) if written]
        if not converted:
            return fields_of

        def write(value: Any) -> tuple[Any, ...]:
            array = list(fields_of(value))
            for place, written, inline in reversed(converted):  # the last first: an inlined field becomes several
                each = written(array[place])
                array[place : place + 1] = each if inline else (each,)
            return tuple(array)

        return write

    def _writers(self, version: int) -> Iterator[tuple[str, Writer | None, bool]]:
        """Yield each field's name, its writer, and whether that writes several values."""
        for own, _, type in self._fields:
            match type:
                case Inline(layout):
                    yield own, layout.writer(version), True
                case Tagged():
                    yield own, _tagged_writer(type, version), True
                case Since(first, inner) if first <= version:
                    yield own, inner.writer(version), False
                case WireType():
                    yield own, type.writer(version), False


def _fields_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns these attributes of a value as they are."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _in_field(place: str, name: str, error: RejectionError) -> RejectionError:
    return _unfit(f"{place}.{name}: {error.rejection.text}", error.rejection.code)


def _tagged_writer(tagged: Tagged, version: int) -> Writer:
    writers = {layout.made: (tag, layout.writer(version)) for tag, layout in tagged.in_version(version).items()}

    def write(value: Any) -> tuple[Any, ...]:
        tag, fields_of = writers[type(value)]
        return tag, *fields_of(value)

    return write


def record(made: type[Any], fits: Callable[[Any], bool] | None = None, unfit: str = "", **types: FieldType) -> Record:
    """Return the type of an array of a class's fields, given by their names on the wire."""
    return Record(Layout(made, types, fits=fits, unfit=unfit))


def inlined(made: type[Any], **types: FieldType) -> Inline:
    """Return the type of a field that is replaced by its class's fields, given by their names on the wire."""
    return Inline(Layout(made, types))
