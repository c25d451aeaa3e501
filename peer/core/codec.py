"""Bytes to messages and back: parse it or refuse it, nothing else.

A frame on the wire, all numbers little-endian, unsigned:

    magic "FDPR" 4 | version u16 | kind u8 | 0 u8 | metadata length u32 | tail length u64 | metadata | tail

Metadata is one msgpack array: the envelope's fields, then those of the kind (`fields.py`). The tail is a tensor's raw
bytes, the text of a contract or a roster, the signatures of a ballot (`ballot_bytes.py`), or the content of an update
or a model, held against its digest: which tensors are in it, others know, and the gate has their check of its numbers.

Decoding has three steps, cheap before dear, so that a server can refuse before it reads on: `parse_head`,
`parse_metadata` with what is known of the other side (the `MessagePolicy`), and `finish` with the tail. Each gives what
it read, or a `Rejected` with a code of `refusals.py`; nothing is raised whatever the bytes are, nothing is allocated
from a declared length, and tensors are views of the bytes received.

What needs memory of earlier messages (numbers, rounds, plausibility) is the node's business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import Struct
from typing import Any

import torch
from torch import Tensor

from fedpeer.config.capacity import METADATA_BYTES_MAX
from fedpeer.gossip.reductions import Form
from fedpeer.gossip.transfers import Parcel
from fedpeer.peer.core.ballot_bytes import tail_of, with_tail
from fedpeer.peer.core.fields import ENVELOPE, KINDS, PLAIN, READERS, plain, printable, travelling
from fedpeer.peer.core.framing import Bytes, pack, raw
from fedpeer.peer.core.gate import TEXTS, MessagePolicy, ParsedMetadata, about, admitted, tail_bytes_max
from fedpeer.peer.core.messages import (
    ConsensusMessage,
    Contract,
    Envelope,
    Message,
    Model,
    Ping,
    PingRequest,
    Pong,
    Refused,
    RosterNews,
    Transfer,
    Update,
    Value,
    digest_of,
    spoken_in,
)
from fedpeer.peer.core.readers import TEXT_LETTERS_MAX, Unfit, unpacked
from fedpeer.peer.core.refusals import REFUSALS, Rejected
from fedpeer.peer.core.sparse_words import packed, restored, wire_bytes
from fedpeer.peer.core.versions import NEWEST, VERSIONS, known_in

MAGIC = b"FDPR"
_HEAD = Struct("<4sHBBIQ")
HEAD_BYTES = _HEAD.size

_NUMBERS = {kind: number for number, kind in KINDS.items()}
_ENVELOPE_FIELDS = len(plain(Envelope(federation=b"", sender="", recipient="", incarnation=1, to_incarnation=0)))
_WITH_CLAIMS = (Ping, PingRequest, Pong, Refused)


@dataclass(frozen=True, slots=True)
class Head:
    """The first 20 bytes: the version of the wire, the kind of message, and the lengths in bytes that it declares."""

    version: int
    kind: type[Message]
    metadata_bytes: int
    tail_bytes: int

    @property
    def frame_bytes(self) -> int:
        return HEAD_BYTES + self.metadata_bytes + self.tail_bytes


# ------------------------------------------------------------------------------------------------------------- encode


def encode(envelope: Envelope, message: Message) -> tuple[bytes, memoryview]:
    """A frame of the envelope's version in two pieces: header and metadata, and the tail, a view of the message's
    tensor.

    Claims are told again and again, so those that find no room in a message of membership are left out of it, the
    last first. Anything else that is too large is a mistake of our own.
    """
    version, tail = envelope.version, _tail(message)
    assert spoken_in(version, type(message)), f"version {version} has no {type(message).__name__}"
    bare = replace(message, text=b"") if isinstance(message, Contract | RosterNews) else message
    told = travelling(message.content, len(tail)) if isinstance(message, Update) else ()
    metadata = pack(plain(envelope) + plain(bare, version) + told)
    while len(metadata) > METADATA_BYTES_MAX and isinstance(bare, _WITH_CLAIMS) and bare.claims:
        bare = replace(bare, claims=bare.claims[:-1])
        metadata = pack(plain(envelope) + plain(bare, version))
    assert len(metadata) <= METADATA_BYTES_MAX, f"{len(metadata)} bytes of metadata in a {type(message).__name__}"
    assert len(tail) <= TEXTS.get(type(message), len(tail)), f"a {type(message).__name__} of {len(tail)} bytes"
    return _HEAD.pack(MAGIC, version, _NUMBERS[type(message)], 0, len(metadata), len(tail)) + metadata, tail


def _tail(message: Message) -> memoryview:
    match message:
        case Transfer(parcel=Parcel(payload=tensor)) | Value(value_D=tensor):
            return raw(tensor)
        case Contract(text=text) | RosterNews(text=text):
            return memoryview(text)
        case ConsensusMessage(said=said):
            return memoryview(tail_of(said))
        case Update(content=content):
            return memoryview(packed(content) if wire_bytes(content) < len(content) else content)
        case Model(content=content):
            return memoryview(content)
    return memoryview(b"")


def refused(rejected: Rejected) -> Refused:
    """The answer to who sent it: the advice of the table, and what exactly was wrong."""
    text = f"{REFUSALS[rejected.code].advice} ({rejected.text})" if rejected.text else REFUSALS[rejected.code].advice
    return Refused(
        code=rejected.code,
        group=rejected.group,
        seq=rejected.seq,
        text=printable(text, TEXT_LETTERS_MAX),
        claims=rejected.claims,
    )


# ------------------------------------------------------------------------------------------------------------- decode


def parse_head(head: Bytes, frame_bytes: int | None = None) -> Head | Rejected:
    """The first 20 bytes of a frame; `frame_bytes`: how long it is altogether, where that was said (Content-Length)."""
    if len(head) < HEAD_BYTES:
        return Rejected("header_truncated", f"{len(head)} bytes instead of {HEAD_BYTES}")
    magic, version, kind, reserved, metadata_bytes, tail_bytes = _HEAD.unpack_from(head)
    if magic != MAGIC:
        return Rejected("not_fedpeer")
    if version not in VERSIONS:
        spoken = " and ".join(map(str, VERSIONS))
        return Rejected("version_unsupported", f"version {version}; this release speaks {spoken}")
    if KINDS.get(kind) not in READERS[version]:
        return Rejected("unknown_kind", f"kind {kind}")
    if reserved:
        return Rejected("bad_metadata", "the reserved byte of the header is not 0")
    if metadata_bytes > METADATA_BYTES_MAX:
        return Rejected("metadata_too_large", f"{metadata_bytes} bytes, more than {METADATA_BYTES_MAX}")
    found = Head(version, KINDS[kind], metadata_bytes, tail_bytes)
    if frame_bytes is None or frame_bytes == found.frame_bytes:
        return found
    if frame_bytes < HEAD_BYTES + metadata_bytes:
        return Rejected("header_truncated", f"{metadata_bytes} bytes of metadata in a frame of {frame_bytes}")
    if frame_bytes > found.frame_bytes:
        return Rejected("trailing_bytes", f"{frame_bytes - found.frame_bytes} bytes after the end")
    return Rejected("tail_length_wrong", f"{tail_bytes} bytes of tail in a frame of {frame_bytes}")


def parse_metadata(head: Head, metadata: Bytes, gate: MessagePolicy) -> ParsedMetadata | Rejected:
    """Everything but the tail: what it says, whether it is for us, and whether such a tail may come."""
    try:
        opening = _opened(head, metadata)
    except Unfit as unfit:
        return Rejected(unfit.code, unfit.text)
    return admitted(opening, gate)


def finish(opening: ParsedMetadata, tail: memoryview) -> Message | Rejected:
    """The message. Its tensor is a view of `tail`, which must not change any more, if that can be written to; a content
    is a copy."""
    if len(tail) != opening.tail_bytes:
        code = "trailing_bytes" if len(tail) > opening.tail_bytes else "tail_length_wrong"
        return about(opening, code, f"{len(tail)} bytes of tail instead of {opening.tail_bytes}")
    fields = dict(opening.fields)
    if opening.form is not None:
        payload = _viewed(tail, opening.form)
        fault = opening.form.fault(payload, opening.length)
        if fault is not None:
            return about(opening, fault, f"in {opening.form.name} of a group of {opening.length}")
        fields["value_D" if opening.kind is Value else "payload"] = payload
    elif opening.kind in TEXTS:
        fields["text"] = bytes(tail)
    elif opening.kind is ConsensusMessage:
        said = with_tail(fields["said"], tail)
        if isinstance(said, str):
            return about(opening, "bad_metadata", said)
        fields["said"] = said
    elif opening.kind in (Update, Model):
        content = _content(fields, tail)
        if content is None:
            return about(opening, "wrong_shape", "no sparse words")
        if digest_of(content) != fields["digest"]:
            return about(opening, "digest_mismatch", f"{len(content)} bytes of a {opening.kind.__name__}")
        wrong = opening.check(content)
        if wrong is not None and opening.kind is Model:
            return about(opening, wrong.code, wrong.text)
        fields["content"] = content
        if opening.kind is Update:
            fields["fault"] = wrong
    if opening.kind is Transfer:
        beside = {name: fields.pop(name) for name in known_in(NEWEST, Transfer) if name in fields}
        return Transfer(**beside, parcel=Parcel(**fields))
    return opening.kind(**fields)


def _content(fields: dict[str, Any], tail: memoryview) -> bytes | None:
    """The content of an update or a model; None if it is not what its form says."""
    form, size = fields.pop("form", PLAIN), fields.pop("size", 0)
    return bytes(tail) if form == PLAIN else restored(tail, size)


def decode(frame: Bytes, gate: MessagePolicy) -> tuple[Envelope, Message] | Rejected:
    """A whole frame in one go. The message shares no memory with it."""
    head = parse_head(frame, len(frame))
    if isinstance(head, Rejected):
        return head
    start = HEAD_BYTES + head.metadata_bytes
    opening = parse_metadata(head, memoryview(frame)[HEAD_BYTES:start], gate)
    if isinstance(opening, Rejected):
        return opening
    message = finish(opening, memoryview(bytearray(memoryview(frame)[start:])))
    return message if isinstance(message, Rejected) else (opening.envelope, message)


def decode_answer(frame: Bytes) -> Refused | RosterNews | None:
    """What stands in the body of an error's response: a refusal, or the roster that put the asker out; None if neither
    does. Whose it is, the connection says."""
    head = parse_head(frame, len(frame))
    if isinstance(head, Rejected) or head.kind not in (Refused, RosterNews):
        return None
    start = HEAD_BYTES + head.metadata_bytes
    try:
        opening = _opened(head, memoryview(frame)[HEAD_BYTES:start])
    except Unfit:
        return None
    if opening.tail_bytes > TEXTS.get(opening.kind, 0):
        return None
    message = finish(opening, memoryview(frame)[start:])
    return message if isinstance(message, Refused | RosterNews) else None


#: Bytes of the longest answer.
ANSWER_BYTES_MAX = HEAD_BYTES + METADATA_BYTES_MAX + TEXTS[RosterNews]


def frame_bytes_max(gate: MessagePolicy) -> int:
    """Bytes of the longest frame that this other side may send: what a Content-Length is held against."""
    return HEAD_BYTES + METADATA_BYTES_MAX + tail_bytes_max(gate)


def _opened(head: Head, metadata: Bytes) -> ParsedMetadata:
    """Raises Unfit."""
    values = unpacked(metadata)
    envelope = Envelope(**ENVELOPE(values[:_ENVELOPE_FIELDS]), version=head.version)
    fields = READERS[head.version][head.kind](values[_ENVELOPE_FIELDS:])
    return ParsedMetadata(envelope, head.kind, fields, head.tail_bytes)


def _viewed(tail: memoryview, form: Form) -> Tensor:
    if not len(tail):  # torch cannot view nothing
        return torch.empty(0, dtype=form.dtype)
    return torch.frombuffer(bytearray(tail) if tail.readonly else tail, dtype=form.dtype)
