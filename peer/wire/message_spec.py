"""What is declared of a kind of message: its number, its fields, its tail, who may send it, when, and how it counts.

A class of `messages.py` annotates each field with its wire type (`wire_types.py`) and has a `MessageSpec`. The codec,
the admission checks, limits, counters and the tables of docs/wire.md follow from these two. A kind that is added is
declared there, and handled in `dispatch.py`.

The checks here need no memory of earlier messages and read nothing of the tail: a `ParsedMetadata` passes, with what
its tail has to be, or a `Rejection` says why not. They go in the order of the table of bad inputs: who and to whom,
then the group, then the shape and the number of bytes, then the weight.
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

#: When a message is taken in.
#:
#: handshake    before two peers have met, and between any incarnations: it makes them meet, or says why they cannot
#: any time     also from an incarnation that is not the one known; where the envelope names ours, it is the right one
#: met          after the handshake, from the incarnation that is known; the envelope as for "any time"
#: channel         the same, and the envelope names our incarnation, to which the channel belongs
When = Literal["handshake", "any time", "met", "channel"]
#: What a message is about, by its field `group`; both sides have to be members.
#:
#: nothing            it has no such field, or nothing is asked of it
#: group              an averaging group
#: consensus group            a group that learns by coordinated rounds
#: consensus group or group   a consensus group if there is one of this name, else an averaging group
About = Literal["nothing", "group", "consensus group", "either group"]
#: _Buffers for tails that have arrived and are not dealt with yet, for each sender and group.
#:
#: kept      those of a channel's window, which are kept for the next transfers
#: several   as many as a coordinator says in one go (`ballots_waiting`)
#: one       a single one (`large_waiting`)
_Buffers = Literal["kept", "several", "one"]


class Tail:
    """What follows the metadata: nothing. Each other kind of tail is a class of `tails.py`.

    `str` of a tail is what docs/wire.md says of it.

    beside   values at the end of the metadata that say how it is to be read
    hashed   whether finding out what it is takes long: it is held against a digest
    """

    hashed: bool = False

    def __str__(self) -> str:
        return "-"

    @property
    def beside(self) -> Mapping[str, WireType]:
        return {}

    def most(self, group: Any) -> int:
        """Return the bytes of the longest one, in a message about this group (None: about nothing)."""
        return 0

    def packed(self, message: Any) -> memoryview:
        """Return the bytes of a message's tail: a view of its tensor, where it has one."""
        return memoryview(b"")

    def told(self, message: Any, tail_bytes: int) -> tuple[Any, ...]:
        """Return the values of `beside` for a message whose tail takes so many bytes."""
        return ()

    def admitted(self, parsed: ParsedMetadata, group: Any) -> ParsedMetadata | Rejection:
        """Return the message with what is needed to read its tail, or why such a tail may not come."""
        return sized(parsed, 0, self.most(group))

    def read(self, parsed: ParsedMetadata, tail: memoryview) -> Mapping[str, Any] | Rejection:
        """Return the fields that the tail gives, by name, or what is wrong with it."""
        return {}


NO_TAIL = Tail()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSpec:
    """What holds for all messages of one kind, beside their fields.

    number           of the kind, in the header; never used for another
    since            first version of the wire that has it
    heard            when it is taken in
    about            what its field `group` names
    tail             what follows the metadata
    from_neighbors   it may come from a neighbor in the overlay only, not from every member
    from_authority   it may come from the federation's authority, too
    answers          it may be the body of an HTTP response
    learning         it counts as a round's messages and bytes (`metrics.jsonl`)
    of_group         its bytes count as its group's (`fedpeer_group_sent_bytes`, `fedpeer_group_received_bytes`)
    urgent           it leaves before other small messages
    buffers          how many tails of one sender may wait to be dealt with
    """

    number: int
    since: int = OLDEST
    when: When
    about: About = "nothing"
    tail: Tail = NO_TAIL
    from_neighbors: bool = False
    from_authority: bool = False
    answers: bool = False
    learning: bool = False
    of_group: bool = False
    urgent: bool = False
    buffers: _Buffers = "one"


# ------------------------------------------------------------------------------------------------------- declarations


#: Made once for each class.
_LAYOUTS: dict[type[Any], Layout] = {}


def layout_of(kind: type[Any]) -> Layout:
    """Return the wire types of a class's fields, as they are annotated, and of what stands beside its tail."""
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
    """From whom to whom.

    federation       (16 bytes) names the federation: the beginning of the BLAKE2b of its authority's public key
    incarnation      of the sender: 1 from its first start on; one more whenever it lost memory
    to_incarnation   of the recipient, as the sender knows it; 0: not known yet
    version          of the wire, in which the message is written; it stands in the header
    """

    federation: Annotated[bytes, Octets(16)]
    sender: Name
    recipient: Name
    incarnation: Annotated[int, Whole(1, COUNT_MAX)]
    to_incarnation: Annotated[int, Whole(0, COUNT_MAX)]
    version: Annotated[int, NotInMetadata()] = NEWEST


@dataclass(frozen=True, slots=True)
class ParsedMetadata:
    """A message without its tail, everything else of it checked.

    `fields` by name; `form` and `length` say how the tail is to be read where it is a tensor; `check` finds what is
    wrong with the numbers of an update or a model.
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
        """What is declared of its kind."""
        spec: MessageSpec = self.kind.spec
        return spec

    @property
    def group(self) -> str:
        """The group that it is about; "" where there is none."""
        return str(self.fields.get("group", ""))


# ---------------------------------------------------------------------------------------------------------- admission


def admitted(parsed: ParsedMetadata, policy: MessagePolicy) -> ParsedMetadata | Rejection:
    """Return the message with what is needed to read its tail, or why it may not come in."""
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
    if spec.from_neighbors and isinstance(group, GroupSpec) and sender not in group.neighbours:
        return about(parsed, "not_a_neighbour", parsed.group)
    return spec.tail.admitted(parsed, group)


def _misdirected(parsed: ParsedMetadata, policy: MessagePolicy) -> Rejection | None:
    """Return what is wrong with from whom and to whom."""
    envelope = parsed.envelope
    if envelope.federation != policy.federation:
        return about(parsed, "wrong_federation", "another federation's name on the envelope")
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


def _known(what: About, group: str, policy: MessagePolicy) -> GroupSpec | ConsensusSpec | None:
    if what == "consensus group" or (what == "either group" and group in policy.consensus_by_group):
        return policy.consensus_by_group.get(group)
    return policy.groups.get(group)


def about(parsed: ParsedMetadata, code: str, text: str = "") -> Rejection:
    """Return the refusal of this message, naming the transfer where it is one."""
    return Rejection(code, text, parsed.envelope.sender, parsed.group, parsed.fields.get("seq", 0))


def sized(parsed: ParsedMetadata, least: int, most: int, size: int | None = None) -> ParsedMetadata | Rejection:
    """Return the message if its tail, or what that stands for (`size`), has from `least` to `most` bytes."""
    found = parsed.tail_bytes if size is None else size
    if least <= found <= most:
        return parsed
    wanted = f"{least}" if least == most else f"{least} to {most}"
    return about(parsed, "tail_length_wrong", f"{found} bytes instead of {wanted}")
