"""Write the tables of wire.md from the declarations of the messages (`peer/wire/messages.py`).

`python docs/wire_tables.py` rewrites what stands between the marks in that page; a test fails while the two differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedpeer.config.capacity import ARRAY_MAX, GROUP_LETTERS_MAX, NAME_LETTERS_MAX
from fedpeer.peer.wire.consensus_wire import CONSENSUS_LAYOUTS
from fedpeer.peer.wire.message_spec import Envelope, MessageSpec, layout_of
from fedpeer.peer.wire.messages import KINDS
from fedpeer.peer.wire.tails import Shape
from fedpeer.peer.wire.versions import OLDEST
from fedpeer.peer.wire.wire_types import (
    COUNT_MAX,
    NUMBER_MAX,
    Array,
    EmptyPlace,
    Flag,
    Inline,
    Layout,
    Many,
    Maybe,
    Octets,
    OneOf,
    Real,
    Record,
    Since,
    Tagged,
    Text,
    Whole,
    WireType,
)

PAGE = Path(__file__).parent / "wire.md"
#: Types that have a name in the tables, and what they are.
NAMED: Mapping[WireType, tuple[str, str]] = {
    Whole(): ("number", "integer, 0 to 2^63 - 1"),
    Whole(most=COUNT_MAX): ("count", "integer, 0 to 2^62"),
    Text(NAME_LETTERS_MAX): ("name", f"string of 1 to {NAME_LETTERS_MAX} printable letters"),
    Text(GROUP_LETTERS_MAX): ("group", f"string of 1 to {GROUP_LETTERS_MAX} printable letters"),
    Real(0): ("amount", "float64, finite, not below 0"),
    Octets(64): ("signature", "64 bytes, by Ed25519"),
    Octets(64, may_lack=True): ("signature?", "the same, or empty"),
    Flag(): ("bool", "true or false, which is no number"),
    Shape(): ("shape", "array of the number of elements of the tail's vector: [D]"),
}

# --------------------------------------------------------------------------------------------------------------- words


def words(wire_type: WireType) -> str:
    """Return what a type is in a cell of a table."""
    if wire_type in NAMED:
        return NAMED[wire_type][0]
    match wire_type:
        case Whole(least, most):
            name = {COUNT_MAX: "count", NUMBER_MAX: "number"}.get(most)
            return f"{least} to {most}" if name is None else f"{name} ≥ {least}"
        case Real(anything=anything):
            return "float64" if anything else "float64, finite"
        case Text(most, least):
            return f"string of {least} to {most:,} letters"
        case Octets(count):
            return f"{count} bytes"
        case EmptyPlace():
            return "empty bytes"
        case OneOf(known):
            return " or ".join(f"`{word}`" for word in known)
        case Maybe(of):
            return f"nil or {words(of)}"
        case Many(of, most):
            return f"[{words(of)}, ...]" + (f", at most {most}" if most != ARRAY_MAX else "")
        case Array(of):
            return f"[{', '.join(map(words, of))}]"
        case Record(layout):
            return _record_name(layout)
    raise AssertionError(f"{wire_type} has no words")


def _record_name(layout: Layout) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", layout.made.__name__).lower()


def _elements(layout: Layout) -> Iterator[str]:
    """Yield name, type and first version of each value in the metadata."""
    for own, (name, wire_type) in zip(fields(layout.made), layout.types.items(), strict=True):
        match wire_type:
            case Since(version, of):
                default = {(): "none", b"": "empty"}.get(own.default, own.default)
                yield f"({version}: {default}) {_named(name, of)}"
            case Inline(inner):
                yield from _elements(inner)
            case Tagged():
                yield f"what is {name}; its fields, see below"
            case WireType():
                yield _named(name, wire_type)
    yield from (_named(name, wire_type) for name, wire_type in layout.beside.items())


def _named(name: str, wire_type: WireType) -> str:
    return name if name == words(wire_type) else f"{name}: {words(wire_type)}"


def _table(*rows: tuple[str, ...]) -> str:
    head, *rest = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * len(head), *rest))


# -------------------------------------------------------------------------------------------------------------- tables


def types() -> str:
    """Return the table of what is named in the others: single values, then records."""
    layouts = {_record_name(each): each for kind in KINDS.values() for each in _records(layout_of(kind).types.values())}
    records = ((name, f"[{'; '.join(_elements(layout))}]") for name, layout in sorted(layouts.items()))
    return _table(("type", "what"), *NAMED.values(), *records)


def _records(wire_types: Any) -> Iterator[Layout]:
    """Yield all records in these types."""
    for wire_type in wire_types:
        match wire_type:
            case Record(layout):
                yield layout
                yield from _records(layout.types.values())
            case Since(of=of) | Maybe(of) | Many(of):
                yield from _records([of])


def envelope() -> str:
    """Return the table of the fields that every message has."""
    return _table(
        ("field", "type"),
        *((name, words(wire_type)) for name, wire_type in layout_of(Envelope).elements()),
    )


def kinds() -> str:
    """Return the table of what each kind of message consists of."""
    rows = ((kind.__name__, str(kind.spec.number), _fields(kind), str(kind.spec.tail)) for kind in _kinds())
    return _table(("kind", "number", "fields behind the envelope", "tail"), *rows)


def _fields(kind: Any) -> str:
    return "; ".join([*_since(kind.spec.since), *_elements(layout_of(kind))])


def _since(version: int) -> list[str]:
    return [f"wire {version} only"] if version > OLDEST else []


def handling() -> str:
    """Return the table of who may send each kind, when, and how it counts."""
    rows = (
        (kind.__name__, kind.spec.about, kind.spec.when, _senders(kind.spec), _counts(kind.spec)) for kind in _kinds()
    )
    return _table(("kind", "about", "taken in", "from", "counts as"), *rows)


def _kinds() -> list[Any]:
    return [KINDS[number] for number in sorted(KINDS)]


def _senders(spec: MessageSpec) -> str:
    first = "neighbors" if spec.from_neighbors else "members" if spec.about != "nothing" else "peers"
    return first + (", the authority" if spec.from_authority else "") + (", as an answer" if spec.answers else "")


def _counts(spec: MessageSpec) -> str:
    properties = {"a round's": spec.learning, "its group's": spec.of_group, "urgent": spec.urgent}
    return ", ".join(name for name, holds in properties.items() if holds) or "-"


def statements() -> str:
    """Return the table of the fields of each statement of a ConsensusMessage."""
    rows = ((f"`{tag}`", "; ".join([*_since(each.since), *_elements(each)])) for tag, each in CONSENSUS_LAYOUTS.items())
    return _table(("statement", "fields"), *rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "types": types,
    "envelope": envelope,
    "kinds": kinds,
    "handling": handling,
    "statements": statements,
}


def page() -> str:
    """Return the whole page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        begin, end = f"<!-- docs/wire_tables.py: {name} -->\n", "<!-- end -->"
        before, found, rest = text.partition(begin)
        assert found, f"no mark for {name}"
        text = f"{before}{begin}\n{table()}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
