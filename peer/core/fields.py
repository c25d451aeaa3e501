"""The metadata of messages: how each kind's fields look as fixed-length msgpack arrays, and what each may be.

Tensors do not travel here: their shape stands in their place, and the bytes follow as the tail. So do the text of a
contract or a roster, whose place stays empty, an update's content, of which form and size stand here, and a model's.
What a ballot says lies flat beside its group (`ballot_bytes.py`). `readers.py` has what is read of any kind.

A frame of an older version of the wire lacks the fields that its records say to have since a later one
(`versions.py`), and the kinds of message that came later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache, partial
from typing import Any

from torch import Tensor

from fedpeer.config.capacity import ADDRESS_LETTERS_MAX, GROUP_LETTERS_MAX, NAME_LETTERS_MAX
from fedpeer.gossip.claims import STATEMENTS, VERDICTS, Advert, Claim, well_formed
from fedpeer.gossip.proofs import LaneProof, LifeProof
from fedpeer.gossip.transfers import Parcel
from fedpeer.peer.core import ballot_bytes, messages
from fedpeer.peer.core.readers import (
    COUNT_MAX,
    TEXT_LETTERS_MAX,
    Reader,
    Unfit,
    amount,
    distinct,
    empty,
    finite,
    flag,
    many,
    maybe,
    named,
    octets,
    of_type,
    one_of,
    placed,
    real,
    record,
    row,
    whole,
    words,
)
from fedpeer.peer.core.versions import CAPABILITIES_MAX, CAPABILITY_LETTERS_MAX, NEWEST, VERSIONS, known_in

#: Lanes of which a reminder says something.
LANES_SHOWN_MAX = 4
#: Claims that ride on a message of membership.
CLAIMS_MAX = 8
#: Dimensions of a tensor: one is right, and some more are read so that the refusal can name them.
DIMENSIONS_MAX = 8
#: How the content of an update travels: as it is, or as `sparse_words.py` packs it.
PLAIN, SPARSE = "plain", "sparse"
#: Fields that are no metadata: the version stands in the header, contents are the tail, and a fault was found in it.
_BESIDE: Mapping[type[Any], tuple[str, ...]] = {
    messages.Envelope: ("version",),
    messages.Update: ("content", "fault"),
    messages.Model: ("content",),
}
#: Types of values that stand in the metadata as they are.
_AS_THEY_ARE = frozenset((str, int, float, bool, bytes, type(None)))


def plain(value: Any, version: int = NEWEST) -> Any:
    """What stands in the metadata of this version for a value: arrays for records, shapes for tensors. An update's form
    and size follow from its tail (`travelling`)."""
    if type(value) in _AS_THEY_ARE:  # nearly all of them
        return value
    if isinstance(value, tuple):
        return tuple([plain(each, version) for each in value])
    if isinstance(value, messages.ConsensusMessage):
        return (value.group, *ballot_bytes.flat(value.said, version))
    if is_dataclass(value):
        told = [plain(getattr(value, name), version) for name in _told(value.__class__, version)]
        return (value.group, *told[1], *told[2:]) if isinstance(value, messages.Transfer) else tuple(told)
    return tuple(value.shape) if isinstance(value, Tensor) else value


@cache
def _told(kind: type[Any], version: int) -> tuple[str, ...]:
    """Fields of a record that are metadata in this version."""
    return tuple(name for name in known_in(version, kind) if name not in _BESIDE.get(kind, ()))


def travelling(content: bytes, tail_bytes: int) -> tuple[str, int]:
    """The last fields of an update: the form of its tail, and the bytes of its content."""
    return PLAIN if tail_bytes == len(content) else SPARSE, len(content)


def printable(text: str, letters_max: int) -> str:
    """Any text, such that `words(letters_max)` takes it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:letters_max]) or "?"


# ------------------------------------------------------------------------------------------------- the kinds of message


def _claim(value: Any) -> Claim:
    claim: Claim = _CLAIM(value)
    if not well_formed(claim):
        raise Unfit("bad_metadata", "a statement by another than its subject, or a verdict with an advert")
    return claim


def _signed(value: Any) -> bytes:
    """A signature, or nothing."""
    return bytes(octets(64)(value)) if value else empty(value)


def _ballot(value: Any, version: int) -> dict[str, Any]:
    """A group, what kind of statement it is, and its fields."""
    group, kind, *rest = of_type(tuple, value) if len(value) > 1 else (None, None)
    known = (
        placed("ConsensusMessage.group", _GROUP)(group),
        placed("ConsensusMessage.said", one_of(*ballot_bytes.SAYINGS))(kind),
    )
    return {"group": known[0], "said": ballot_bytes.read(known[1], tuple(rest), version)}


def _names(kind: type, version: int = NEWEST) -> tuple[str, ...]:
    """Fields as they travel: a transfer's group, and beside it all of its parcel; no tail, but what tells about it."""
    names = _told(kind, version)
    if kind is messages.Transfer:
        return names[0], *_names(Parcel, version), *names[2:]
    return (*names, "form", "size") if kind is messages.Update else names


_NAME, _GROUP, _NUMBER, _FIRST = words(NAME_LETTERS_MAX), words(GROUP_LETTERS_MAX), whole(), whole(1)
_COUNTED, _COUNTED_FIRST = whole(most=COUNT_MAX), whole(1, most=COUNT_MAX)
_DIGEST, _SIGNATURE = octets(32), octets(64)
_SHAPE = many(whole(), DIMENSIONS_MAX)
_ADVERT = record(
    Advert,
    words(ADDRESS_LETTERS_MAX),
    _NUMBER,
    _COUNTED,
    _NUMBER,
    _NUMBER,
    maybe(finite),
    flag,
    many(_NAME),
)
_CLAIM = record(
    Claim, _NAME, _COUNTED, _COUNTED, one_of(*sorted(STATEMENTS | VERDICTS)), _NAME, maybe(_ADVERT), _SIGNATURE
)
_CLAIMS = many(_claim, CLAIMS_MAX)
_LANE = record(messages.LaneState, _GROUP, _NUMBER, _NUMBER, _NUMBER, amount, amount)

ENVELOPE = named(_names(messages.Envelope), octets(16), _NAME, _NAME, _COUNTED_FIRST, _COUNTED, of="Envelope")

#: Each kind of message, with the readers of its fields in the newest version.
_FIELDS: dict[type[messages.Message], tuple[Reader, ...]] = {
    messages.Hello: (
        _COUNTED,
        _NUMBER,
        _COUNTED,
        _DIGEST,
        distinct(many(row(_GROUP, _DIGEST)), lambda pair: pair[0]),
        distinct(many(_LANE), lambda lane: lane.group),
        _NUMBER,
        flag,
        _NUMBER,
        flag,
        flag,
        many(words(CAPABILITY_LETTERS_MAX), CAPABILITIES_MAX),
        _signed,
        distinct(many(row(_GROUP, amount)), lambda pair: pair[0]),
    ),
    messages.Contract: (empty,),
    messages.Transfer: (_GROUP, _FIRST, _NUMBER, _NUMBER, real, _NAME, _SHAPE, amount, _signed),
    messages.Ack: (_GROUP, _NUMBER, _NUMBER, amount, _signed),
    messages.Ping: (_NUMBER, _CLAIMS),
    messages.PingRequest: (_NUMBER, _NAME, _CLAIMS),
    messages.Pong: (_NUMBER, _NAME, flag, _CLAIMS),
    messages.Fetch: (_GROUP,),
    messages.Value: (_GROUP, _NUMBER, _SHAPE),
    messages.RosterNews: (_FIRST, empty),
    messages.Refused: (
        _NAME,
        words(GROUP_LETTERS_MAX, least=0),
        _NUMBER,
        words(TEXT_LETTERS_MAX, least=0),
        many(_claim, 1),
    ),
    messages.ConsensusMessage: (),
    messages.Update: (_GROUP, _FIRST, _FIRST, _DIGEST, one_of(PLAIN, SPARSE), _NUMBER),
    messages.Wanted: (_GROUP, _DIGEST),
    messages.Model: (_GROUP, _DIGEST),
    messages.Reminder: (
        maybe(record(LifeProof, _COUNTED, _COUNTED, _NUMBER, _SIGNATURE)),
        many(record(LaneProof, _GROUP, one_of("made", "taken"), _FIRST, amount, _SIGNATURE), LANES_SHOWN_MAX),
    ),
}
#: Kinds by their number in the header; a number is never used for another kind.
KINDS: dict[int, type[messages.Message]] = {
    1: messages.Hello,
    2: messages.Contract,
    3: messages.Transfer,
    4: messages.Ack,
    5: messages.Ping,
    6: messages.PingRequest,
    7: messages.Pong,
    8: messages.Fetch,
    9: messages.Value,
    10: messages.RosterNews,
    11: messages.Refused,
    12: messages.ConsensusMessage,
    13: messages.Update,
    14: messages.Wanted,
    15: messages.Model,
    16: messages.Reminder,
}


def _reader(kind: type[messages.Message], version: int) -> Reader:
    """Return the fields that a message of this kind has in this version; the others have their defaults."""
    if kind is messages.ConsensusMessage:
        return partial(_ballot, version=version)
    readers, names = dict(zip(_names(kind), _FIELDS[kind], strict=True)), _names(kind, version)
    return named(names, *(readers[name] for name in names), of=kind.__name__)


#: Each version of the wire: its kinds of message, each with the reader of its fields.
READERS: Mapping[int, Mapping[type[messages.Message], Reader]] = {
    version: {kind: _reader(kind, version) for kind in _FIELDS if messages.spoken_in(version, kind)}
    for version in VERSIONS
}
