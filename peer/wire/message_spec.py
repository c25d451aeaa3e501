"""Declaration of a message kind: its number, fields and tail, who may send it, when, and how it counts.

A class of `messages.py` annotates each field with its wire type (`wire_types.py`) and has a `MessageSpec`. The codec,
the admission checks, limits, counters and the tables of docs/wire.md follow from these two. A new kind is declared
there and handled in `dispatch.py`.

The checks here need no memory of earlier messages and do not read the tail. They return the `ParsedMetadata`, with what
is needed to read its tail, or a `Rejection`. Their order is that of the table of bad inputs: sender and recipient, then
the group, then the shape and the number of bytes, then the weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from fedpeer.config.capacity import NAME_LETTERS_MAX
from fedpeer.gossip.reductions import Form
from fedpeer.peer.wire.message_policy import Check, ConsensusSpec, GroupSpec, MessagePolicy, nothing_wrong
from fedpeer.peer.wire.versions import NEWEST, OLDEST
from fedpeer.peer.wire.wire_types import COUNT_MAX, FieldType, Layout, NotInMetadata, Octets, Text, Whole, WireType
from fedpeer.rejection import Rejection

#: When a message is accepted.
#:
#: handshake   before two peers have met, and between any incarnations: it is part of meeting, or says why that fails
#: any time    also from another incarnation than the known one; if the envelope names our incarnation, it is right
#: met         after the handshake, from the known incarnation; the envelope as for "any time"
#: channel     like "met", and the envelope names our incarnation, to which the channel belongs
When = Literal["handshake", "any time", "met", "channel"]
#: What the field `group` of a message names; both sides have to be members.
#:
#: nothing           there is no such field, or it is not checked
#: group             an averaging group
#: consensus group   a group that learns by coordinated rounds
#: either group      a consensus group if there is one of this name, else an averaging group
MessageSubject = Literal["nothing", "group", "consensus group", "either group"]
#: Buffers for tails that have arrived and are not processed yet, for each sender and group.
#:
#: kept      buffers for a channel's window, which are kept for the next transfers
#: several   as many as a coordinator sends at once (`signed_waiting`)
#: one       a single one (`large_waiting`)
_Buffers = Literal["kept", "several", "one"]


class Tail:
    """An empty tail: nothing follows the metadata. Every other tail is a subclass in `tails.py`.

    `str` of a tail is its description in docs/wire.md.

    beside   values at the end of the metadata that say how to read the tail
    hashed   whether reading it takes long, because it is compared with a digest
    """

    hashed: bool = False

    def __str__(self) -> str:
        return "-"

    @property
    def beside(self) -> Mapping[str, WireType]:
        return {}

    def most(self, group: Any) -> int:
        """Return the most bytes that the tail of a message about this group may have (None: about no group)."""
        return 0

    def packed(self, message: Any) -> memoryview:
        """Return the bytes of the message's tail: a view of its tensor if it has one."""
        return memoryview(b"")

    def values_beside(self, message: Any, tail_bytes: int) -> tuple[Any, ...]:
        """Return the values of `beside` for a message with a tail of so many bytes."""
        return ()

    def admitted(self, parsed: ParsedMetadata, group: Any) -> ParsedMetadata | Rejection:
        """Return the metadata with what is needed to read the tail, or the rejection of such a tail."""
        return sized(parsed, 0, self.most(group))

    def read(self, parsed: ParsedMetadata, tail: memoryview) -> Mapping[str, Any] | Rejection:
        """Return the fields that are read from the tail, by name, or its rejection."""
        return {}


NO_TAIL = Tail()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSpec:
    """Properties of all messages of one kind, besides their fields.

    number           of the kind, in the header; never reused for another
    since            first version of the wire that has it
    when             when it is accepted
    about            what its field `group` names
    tail             what follows the metadata
    from_neighbors   only a neighbor in the overlay may send it, not every member; it is about an averaging group
    from_authority   the federation's authority may send it, too
    answers          it may be the body of an HTTP response
    learning         it counts among a round's messages and bytes (`metrics.jsonl`)
    of_group         its bytes count as its group's (`fedpeer_group_sent_bytes`, `fedpeer_group_received_bytes`)
    urgent           it is sent before other small messages
    buffers          how many tails of one sender may wait to be processed
    """

    number: int
    since: int = OLDEST
    when: When
    about: MessageSubject = "nothing"
    tail: Tail = NO_TAIL
    from_neighbors: bool = False
    from_authority: bool = False
    answers: bool = False
    learning: bool = False
    of_group: bool = False
    urgent: bool = False
    buffers: _Buffers = "one"


# ------------------------------------------------------------------------------------------------------- declarations


#: Cache, by class.
_LAYOUTS: dict[type[Any], Layout] = {}


def layout_of(kind: type[Any]) -> Layout:
    """Return the wire types that a class's fields are annotated with, and those of the values beside its tail."""
    if kind not in _LAYOUTS:
        _LAYOUTS[kind] = _annotated(kind)
    return _LAYOUTS[kind]


def _annotated(kind: type[Any]) -> Layout:
    hints = get_type_hints(kind, include_extras=True)
    spec = getattr(kind, "spec", None)
    types = {each.name: _wire_type(hints[each.name]) for each in fields(kind)}
    return Layout(kind, types, beside=spec.tail.beside if spec is not None else None)


def _wire_type(hint: Any) -> FieldType:
    found = (
        [each for each in get_args(hint)[1:] if isinstance(each, FieldType)] if get_origin(hint) is Annotated else []
    )
    assert len(found) == 1, f"{hint} has no wire type"
    wire_type: FieldType = found[0]
    return wire_type


Name = Annotated[str, Text(NAME_LETTERS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Sender and recipient of a message.

    federation       (16 bytes) names the federation: the first bytes of the BLAKE2b of its authority's public key
    incarnation      of the sender: 1 at its first start, one more each time it lost memory
    to_incarnation   of the recipient, as the sender knows it; 0: not known yet
    version          of the wire that the message is written in; sent in the header
    """

    federation: Annotated[bytes, Octets(16)]
    sender: Name
    recipient: Name
    incarnation: Annotated[int, Whole(1, COUNT_MAX)]
    to_incarnation: Annotated[int, Whole(0, COUNT_MAX)]
    version: Annotated[int, NotInMetadata()] = NEWEST


@dataclass(frozen=True, slots=True)
class ParsedMetadata:
    """A message without its tail; everything else is checked.

    fields         by name
    tail_bytes     length of the tail
    form, length   wire encoding and number of elements of a tail that is a tensor
    check          returns what is wrong with the numbers of an update or a model
    """

    envelope: Envelope
    kind: type[Any]
    fields: Mapping[str, Any]
    tail_bytes: int
    form: Form | None = None
    length: int = 0
    check: Check = nothing_wrong

    @property
    def spec(self) -> MessageSpec:
        """Declaration of its kind."""
        spec: MessageSpec = self.kind.spec
        return spec

    @property
    def group(self) -> str:
        """Group that it is about; "" if there is none."""
        return str(self.fields.get("group", ""))


# ---------------------------------------------------------------------------------------------------------- admission


def admitted(parsed: ParsedMetadata, policy: MessagePolicy) -> ParsedMetadata | Rejection:
    """Return the metadata with what is needed to read the tail, or the message's rejection."""
    wrong = _misdirected(parsed, policy)
    if wrong is not None:
        return wrong
    spec, sender = parsed.spec, parsed.envelope.sender
    if spec.about == "nothing":
        return spec.tail.admitted(parsed, None)
    group = _known(spec.about, parsed.group, policy)
    if group is None:
        return about(parsed, "unknown_group", parsed.group)
    if not {policy.me, sender} <= group.members:
        return about(parsed, "group_not_shared", parsed.group)
    if spec.from_neighbors and isinstance(group, GroupSpec) and sender not in group.neighbors:
        return about(parsed, "not_a_neighbour", parsed.group)
    return spec.tail.admitted(parsed, group)


def _misdirected(parsed: ParsedMetadata, policy: MessagePolicy) -> Rejection | None:
    """Return what is wrong with the sender and the recipient, if anything."""
    envelope = parsed.envelope
    if envelope.federation != policy.federation:
        return about(parsed, "wrong_federation", "the envelope names another federation")
    if envelope.sender == policy.me:
        return about(parsed, "own_message")
    if policy.other is not None and envelope.sender != policy.other:
        return about(parsed, "sender_mismatch", f"{policy.other} in the name of {envelope.sender}")
    if envelope.sender not in policy.peers:
        return about(parsed, "unknown_peer", envelope.sender)
    if envelope.recipient != policy.me:
        return about(parsed, "wrong_recipient", f"meant for {envelope.recipient}")
    when, named, own = parsed.spec.when, envelope.to_incarnation, policy.incarnation
    if when == "handshake" or named == own or (named == 0 and when != "channel"):
        return None
    return about(parsed, "stale_incarnation", f"to incarnation {named}; ours is {own}")


def _known(what: MessageSubject, group: str, policy: MessagePolicy) -> GroupSpec | ConsensusSpec | None:
    if what == "consensus group" or (what == "either group" and group in policy.consensus_by_group):
        return policy.consensus_by_group.get(group)
    return policy.groups.get(group)


def about(parsed: ParsedMetadata, code: str, text: str = "") -> Rejection:
    """Return the rejection of this message; it names the sender, the group and the number of a transfer."""
    return Rejection(code, text, parsed.envelope.sender, parsed.group, parsed.fields.get("seq", 0))


def sized(parsed: ParsedMetadata, least: int, most: int, size: int | None = None) -> ParsedMetadata | Rejection:
    """Return the metadata if the tail, or the content that it encodes (`size`), has `least` to `most` bytes."""
    found = parsed.tail_bytes if size is None else size
    if least <= found <= most:
        return parsed
    wanted = f"{least}" if least == most else f"{least} to {most}"
    return about(parsed, "tail_length_wrong", f"{found} bytes instead of {wanted}")
