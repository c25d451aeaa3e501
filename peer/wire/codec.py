"""Codec: bytes to messages and back. It parses a frame or rejects it, and does nothing else.

A frame on the wire, all numbers little-endian, unsigned:

    magic "FDPR" 4 | version u16 | kind u8 | 0 u8 | metadata length u32 | tail length u64 | metadata | tail

Metadata is one msgpack array: the envelope's fields, then those of the kind, as `messages.py` declares them; the kind
also declares its tail (`tails.py`).

Decoding has three steps, cheap ones first, so that a server can reject before it reads on: `parse_head`,
`parse_metadata` with what is known of the other side (the `MessagePolicy`), and `finish` with the tail. Each returns
what it read, or a `Rejection` with a code of `rejections.py`. None of them raises, whatever the bytes are. No memory is
allocated by a declared length, and tensors are views of the bytes received.

Checks that need memory of earlier messages (numbers, rounds, plausibility) are the node's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import Struct
from typing import Any

from fedpeer.config.capacity import METADATA_BYTES_MAX
from fedpeer.gossip.claims import Claim
from fedpeer.gossip.tensor_bytes import Bytes
from fedpeer.peer.wire.framing import pack
from fedpeer.peer.wire.message_policy import MessagePolicy
from fedpeer.peer.wire.message_spec import NO_TAIL, Envelope, MessageSubject, ParsedMetadata, about, admitted, layout_of
from fedpeer.peer.wire.messages import KINDS, SENTENCE, Message, RejectMessage, RosterNews, spoken_in
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.peer.wire.versions import NEWEST, VERSIONS
from fedpeer.peer.wire.wire_types import unpacked
from fedpeer.rejection import Rejection, RejectionError

_MAGIC = b"FDPR"
_HEAD = Struct("<4sHBBIQ")
HEAD_BYTES = _HEAD.size


@dataclass(frozen=True, slots=True)
class FrameHead:
    """The first 20 bytes: the version of the wire, the kind of message, and the lengths in bytes that it declares."""

    version: int
    kind: type[Message]
    metadata_bytes: int
    tail_bytes: int

    @property
    def frame_bytes(self) -> int:
        return HEAD_BYTES + self.metadata_bytes + self.tail_bytes


_ENVELOPE = layout_of(Envelope)
_WRITE_ENVELOPE, _READ_ENVELOPE = _ENVELOPE.writer(NEWEST), _ENVELOPE.reader(NEWEST)
_ENVELOPE_FIELDS = len(list(_ENVELOPE.elements()))


# ------------------------------------------------------------------------------------------------------------- encode


def encode(envelope: Envelope, message: Message) -> tuple[bytes, memoryview]:
    """Return a frame of the envelope's version in two pieces: header with metadata, and tail.

    The tail is a view of the message's tensor. Claims that do not fit into the metadata are left out, beginning with
    the last: they are sent again and again anyway. Anything else that is too large is a bug of ours.
    """
    version, kind, spec = envelope.version, type(message), message.spec
    assert spoken_in(version, kind), f"version {version} has no {kind.__name__}"
    write, tail = layout_of(kind).writer(version), spec.tail.packed(message)
    beside = spec.tail.values_beside(message, len(tail))
    metadata = pack(_WRITE_ENVELOPE(envelope) + write(message) + beside)
    while len(metadata) > METADATA_BYTES_MAX:
        message = _with_less(message)
        metadata = pack(_WRITE_ENVELOPE(envelope) + write(message) + beside)
    return _HEAD.pack(_MAGIC, version, spec.number, 0, len(metadata), len(tail)) + metadata, tail


def _with_less(message: Message) -> Message:
    """Return the message without the last value of the field whose values may be left out."""
    spare = layout_of(type(message)).spare
    values = getattr(message, spare) if spare else ()
    assert values, f"more than {METADATA_BYTES_MAX} bytes of metadata in a {type(message).__name__}"
    return replace(message, **{spare: values[:-1]})


def rejection_message(rejection: Rejection, claims: tuple[Claim, ...] = ()) -> RejectMessage:
    """Return the answer to the sender: the table's advice, what exactly was wrong, and claims that prove it."""
    advice = REJECTIONS[rejection.code].advice
    return RejectMessage(
        code=rejection.code,
        group=rejection.group,
        seq=rejection.seq,
        text=SENTENCE.fitted(f"{advice} ({rejection.text})" if rejection.text else advice),
        claims=claims,
    )


# ------------------------------------------------------------------------------------------------------------- decode


def parse_head(head: Bytes, frame_bytes: int | None = None) -> FrameHead | Rejection:
    """Read the first 20 bytes of a frame; `frame_bytes` is its whole length, None if that is not known."""
    if len(head) < HEAD_BYTES:
        return Rejection("header_truncated", f"{len(head)} bytes instead of {HEAD_BYTES}")
    magic, version, number, reserved, metadata_bytes, tail_bytes = _HEAD.unpack_from(head)
    if magic != _MAGIC:
        return Rejection("not_fedpeer")
    if version not in VERSIONS:
        spoken = " and ".join(map(str, VERSIONS))
        return Rejection("version_unsupported", f"version {version}; this release speaks {spoken}")
    kind = KINDS.get(number)
    if kind is None or not spoken_in(version, kind):
        return Rejection("unknown_kind", f"kind {number}")
    if reserved:
        return Rejection("bad_metadata", "the reserved byte of the header is not 0")
    if metadata_bytes > METADATA_BYTES_MAX:
        return Rejection("metadata_too_large", f"{metadata_bytes} bytes, more than {METADATA_BYTES_MAX}")
    found = FrameHead(version, kind, metadata_bytes, tail_bytes)
    if frame_bytes is None or frame_bytes == found.frame_bytes:
        return found
    if frame_bytes < HEAD_BYTES + metadata_bytes:
        return Rejection("header_truncated", f"{metadata_bytes} bytes of metadata in a frame of {frame_bytes}")
    if frame_bytes > found.frame_bytes:
        return Rejection("trailing_bytes", f"{frame_bytes - found.frame_bytes} bytes after the end")
    return Rejection("tail_length_wrong", f"{tail_bytes} bytes of tail in a frame of {frame_bytes}")


def parse_metadata(head: FrameHead, metadata: Bytes, policy: MessagePolicy) -> ParsedMetadata | Rejection:
    """Read everything but the tail; check that the message is for us and that the policy allows such a tail."""
    try:
        parsed = _parsed(head, metadata)
    except RejectionError as error:
        return error.rejection
    return admitted(parsed, policy)


def finish(parsed: ParsedMetadata, tail: memoryview) -> Message | Rejection:
    """Return the message, built from its metadata and its tail.

    Its tensor is a view of `tail` if that is writable, so `tail` must not change any more; a content is a copy.
    """
    if len(tail) != parsed.tail_bytes:
        code = "trailing_bytes" if len(tail) > parsed.tail_bytes else "tail_length_wrong"
        return about(parsed, code, f"{len(tail)} bytes of tail instead of {parsed.tail_bytes}")
    found = parsed.spec.tail.read(parsed, tail)
    if isinstance(found, Rejection):
        return found
    message: Message = layout_of(parsed.kind).build({**parsed.fields, **found})
    return message


def decode(frame: Bytes, policy: MessagePolicy) -> tuple[Envelope, Message] | Rejection:
    """Read a whole frame; the message shares no memory with it."""
    head = parse_head(frame, len(frame))
    if isinstance(head, Rejection):
        return head
    start = HEAD_BYTES + head.metadata_bytes
    parsed = parse_metadata(head, memoryview(frame)[HEAD_BYTES:start], policy)
    if isinstance(parsed, Rejection):
        return parsed
    message = finish(parsed, memoryview(bytearray(memoryview(frame)[start:])))
    return message if isinstance(message, Rejection) else (parsed.envelope, message)


def decode_answer(frame: Bytes) -> RejectMessage | RosterNews | None:
    """Read the body of an error response: a rejection, or the roster that revoked the client; None if it is neither.

    Its sender is known from the connection.
    """
    head = parse_head(frame, len(frame))
    if isinstance(head, Rejection) or not head.kind.spec.answers:
        return None
    start = HEAD_BYTES + head.metadata_bytes
    try:
        parsed = _parsed(head, memoryview(frame)[HEAD_BYTES:start])
    except RejectionError:
        return None
    if parsed.tail_bytes > parsed.spec.tail.most(None):
        return None
    message = finish(parsed, memoryview(frame)[start:])
    return message if isinstance(message, RejectMessage | RosterNews) else None


#: Most bytes of an answer.
ANSWER_BYTES_MAX = (
    HEAD_BYTES + METADATA_BYTES_MAX + max(kind.spec.tail.most(None) for kind in KINDS.values() if kind.spec.answers)
)


#: Most bytes of a frame without a tail, which every member may send.
SHORT_BYTES_MAX = HEAD_BYTES + METADATA_BYTES_MAX


def frame_bytes_max(policy: MessagePolicy) -> int:
    """Return the most bytes of a frame that this sender may send: the limit of a Content-Length."""
    return SHORT_BYTES_MAX + _tail_bytes_max(policy)


def _tail_bytes_max(policy: MessagePolicy) -> int:
    """Return the most bytes of a tail that this sender may send."""
    us = {policy.me} if policy.other is None else {policy.me, policy.other}
    groups = [each for each in policy.groups.values() if us <= each.members]
    consensus_by_group = [each for each in policy.consensus_by_group.values() if us <= each.members]
    shared: dict[MessageSubject, list[Any]] = {
        "nothing": [None],
        "group": groups,
        "consensus group": consensus_by_group,
        "either group": [*consensus_by_group, *groups],
    }
    specs = (kind.spec for kind in KINDS.values())
    return max(spec.tail.most(each) for spec in specs if spec.tail is not NO_TAIL for each in shared[spec.about])


def _parsed(head: FrameHead, metadata: Bytes) -> ParsedMetadata:
    """Return the metadata in these bytes; raises RejectionError."""
    values = unpacked(metadata)
    envelope = Envelope(**_READ_ENVELOPE(values[:_ENVELOPE_FIELDS]), version=head.version)
    fields = layout_of(head.kind).reader(head.version)(values[_ENVELOPE_FIELDS:])
    return ParsedMetadata(envelope, head.kind, fields, head.tail_bytes)
