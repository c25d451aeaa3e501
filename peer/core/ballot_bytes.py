"""How a statement of an election or about a decree lies on the wire: its fields, and signatures as the tail.

In the metadata stands what is said (`canvass`, `lead`, ...) and, one beside the other, all fields of it but signatures:
a mandate or a certificate has those of a majority, and with a hundred voters they are more than metadata may be. They
are the tail: one msgpack array [author, signature] after the other, in rising order of authors, so that none counts
twice. Whether a signature is its author's, and whether they are enough, the machines of `gossip/` find out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

from fedpeer.config.capacity import NAME_LETTERS_MAX, SIGNATURES_MAX
from fedpeer.gossip.ballots import (
    Accept,
    Certificate,
    Commit,
    Decree,
    Heartbeat,
    HeartbeatReply,
    LeaderCertificate,
    Message,
    Progress,
    Propose,
    Signatures,
    VoteReply,
    VoteRequest,
)
from fedpeer.peer.core.framing import Bytes, FrameError, pack, unpack_each
from fedpeer.peer.core.readers import Reader, Unfit, empty, flag, named, octets, row, whole, words
from fedpeer.peer.core.versions import OLDEST, VERSIONS

SIGNATURE_BYTES = 64
#: A letter has at most 4 bytes in UTF-8.
_AUTHOR_BYTES_MAX = 4 * NAME_LETTERS_MAX
#: Bytes of one author's entry: marks of the array, the name and the signature, and these two.
_ENTRY_BYTES = 1 + 1 + 1 + 2 + SIGNATURE_BYTES, 1 + 3 + _AUTHOR_BYTES_MAX + 2 + SIGNATURE_BYTES
#: Bytes of a tail of signatures, the least and the most.
SIGNATURES_BYTES = _ENTRY_BYTES[0], SIGNATURES_MAX * _ENTRY_BYTES[1]

# ------------------------------------------------------------------------------------------------------------- metadata


def flat(said: Message, version: int) -> tuple[Any, ...]:
    """What is said, and all fields of it that this version of the wire has, but signatures."""
    values = dict(zip(_SAYINGS[type(said)][0], _flat(said), strict=True))
    return (TAGS[type(said)], *(values[name] for name in _fields(type(said), version)))


def _flat(value: Any) -> Iterator[Any]:
    for each in fields(value):
        inner = getattr(value, each.name)
        if is_dataclass(inner):
            yield from _flat(inner)
        elif not isinstance(inner, tuple):  # those are signatures
            yield inner


def read(kind: str, values: tuple[Any, ...], version: int) -> Message:
    """What `flat` made of a statement in this version of the wire, still without its signatures.

    Raises:
        Unfit: if these are not its fields.
    """
    said: Message = _READERS[version][kind](values)
    return said


def _answer(term: int, pre: bool, granted: bool, signature: bytes) -> VoteReply:
    if bool(signature) is not (granted and not pre):
        raise Unfit("bad_metadata", "a vote is signed, a promise and a no are not")
    return VoteReply(term, pre, granted, signature)


def _maybe_signed(value: Any) -> bytes:
    return bytes(octets(SIGNATURE_BYTES)(value)) if value else empty(value)


def _progress(applied: int, newest_round: int, newest_term: int) -> Progress:
    return Progress(applied, newest_round, newest_term)


_NUMBER, _FIRST, _DIGEST, _SIGNATURE = whole(), whole(1), octets(32), octets(SIGNATURE_BYTES)
_PROGRESS = {"applied": _NUMBER, "newest_round": _NUMBER, "newest_term": _NUMBER}
_DECREE = {"term": _FIRST, "round": _FIRST, "roster": _FIRST, "digest": _DIGEST}

#: What stands in the metadata for each kind of statement; it stays, whatever the class is called.
TAGS: dict[type[Message], str] = {
    VoteRequest: "canvass",
    VoteReply: "answer",
    Heartbeat: "lead",
    HeartbeatReply: "follow",
    Propose: "propose",
    Accept: "accept",
    Commit: "commit",
}
#: Each kind of statement: its fields in order, and how they become one.
_SAYINGS: dict[type[Message], tuple[dict[str, Reader], Any]] = {
    VoteRequest: (
        {"term": _FIRST, "pre": flag, "roster": _FIRST, **_PROGRESS},
        lambda term, pre, roster, **progress: VoteRequest(term, pre, roster, _progress(**progress)),
    ),
    VoteReply: ({"term": _NUMBER, "pre": flag, "granted": flag, "signature": _maybe_signed}, _answer),
    Heartbeat: (
        {"term": _FIRST, "candidate": words(NAME_LETTERS_MAX), "roster": _FIRST, **_PROGRESS},
        lambda term, candidate, roster, **progress: Heartbeat(
            LeaderCertificate(term, candidate, roster, ()), _progress(**progress)
        ),
    ),
    HeartbeatReply: (
        {"term": _NUMBER, **_PROGRESS},
        lambda term, **progress: HeartbeatReply(term, _progress(**progress)),
    ),
    Propose: (_DECREE, lambda **decree: Propose(Decree(**decree))),
    Accept: ({"term": _FIRST, "round": _FIRST, "signature": _SIGNATURE}, Accept),
    Commit: (_DECREE, lambda **decree: Commit(Certificate(Decree(**decree), ()))),
}


#: Fields that came after the first version of the wire, by the version; in older frames they are what is made without
#: them.
_SINCE: Mapping[type[Message], Mapping[str, int]] = {}


def _fields(kind: type[Message], version: int) -> tuple[str, ...]:
    """Return the fields of a statement that this version has."""
    later = _SINCE.get(kind, {})
    return tuple(name for name in _SAYINGS[kind][0] if later.get(name, OLDEST) <= version)


def _reader(kind: type[Message], version: int) -> Reader:
    readers, made = _SAYINGS[kind]
    names = _fields(kind, version)
    each = named(names, *(readers[name] for name in names), of=kind.__name__)
    return lambda value: made(**each(value))


_READERS = {version: {tag: _reader(kind, version) for kind, tag in TAGS.items()} for version in VERSIONS}
#: What may be said.
SAYINGS = tuple(TAGS.values())

# ----------------------------------------------------------------------------------------------------------------- tail


def has_signatures(said: Message) -> bool:
    """Whether signatures of others are part of it, so that it has a tail."""
    return isinstance(said, Heartbeat | Commit)


def tail_of(said: Message) -> bytes:
    """The signatures of a mandate or a certificate; of anything else nothing."""
    match said:
        case (
            Heartbeat(mandate=LeaderCertificate(votes=signatures))
            | Commit(certificate=Certificate(acceptances=signatures))
        ):
            return b"".join(map(pack, signatures))
    return b""


def with_tail(said: Message, tail: Bytes) -> Message | str:
    """The statement with its signatures, or what is wrong with them."""
    try:
        entries = unpack_each(tail, str_max=_AUTHOR_BYTES_MAX, bin_max=SIGNATURE_BYTES, array_max=2, map_max=0)
        signatures: Signatures = tuple(_entry(entry) for entry in entries)
    except FrameError as error:
        return str(error)
    except Unfit as unfit:
        return unfit.text
    if len(signatures) > SIGNATURES_MAX:
        return f"{len(signatures)} signatures, more than {SIGNATURES_MAX}"
    if any(one >= other for (one, _), (other, _) in pairwise(signatures)):
        return "its authors are not in rising order"
    match said:
        case Heartbeat(mandate):
            return replace(said, mandate=replace(mandate, votes=signatures))
        case Commit(certificate):
            return replace(said, certificate=replace(certificate, acceptances=signatures))
    return said


_entry = row(words(NAME_LETTERS_MAX), _SIGNATURE)
