"""Messages between peers: small, frozen, complete. A message that exists is already valid.

Each class declares one kind of message: its fields with their wire types, and its `spec`, which says who may send it,
when, with what tail, and how it counts (`message_spec.py`). Codec, admission, limits, counters and the tables of
docs/wire.md follow from that. A new kind needs a class here, its name in `Message`, and a case in `dispatch.py`.

Every message is sent in an envelope that binds it to one federation, sender, recipient and incarnation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Annotated, ClassVar, get_args

from torch import Tensor

from fedpeer.config.capacity import ADDRESS_LETTERS_MAX, GROUP_LETTERS_MAX, NAME_LETTERS_MAX
from fedpeer.gossip.claims import CLAIMS_MAX, STATEMENTS, VERDICTS, Advert, Claim, well_formed
from fedpeer.gossip.proofs import ChannelProof, GenerationProof
from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.wire.consensus_messages import ConsensusContent
from fedpeer.peer.wire.consensus_wire import CONSENSUS_CONTENT
from fedpeer.peer.wire.message_spec import MessageSpec, Name, layout_of
from fedpeer.peer.wire.roster import ROSTER_BYTES_MAX
from fedpeer.peer.wire.tails import ContentTail, Shape, ShareTail, SignaturesTail, TextTail, UpdateTail, ValueTail
from fedpeer.peer.wire.versions import CAPABILITIES_MAX, CAPABILITY_LETTERS_MAX
from fedpeer.peer.wire.wire_types import (
    COUNT_MAX,
    TEXT_LETTERS_MAX,
    Array,
    EmptyPlace,
    Flag,
    Many,
    Maybe,
    NotInMetadata,
    Octets,
    OneOf,
    Real,
    Record,
    Since,
    Text,
    Whole,
    inlined,
    record,
)
from fedpeer.rejection import Rejection

#: Most channel proofs in one reminder.
_CHANNEL_PROOFS_MAX = 4
#: Most bytes of a contract's text; a federation file of a thousand lines has about 40,000.
CONTRACT_BYTES_MAX = 1 << 16

# ------------------------------------------------------------------------------------------------------ types of fields

_NAME, _GROUP = Text(NAME_LETTERS_MAX), Text(GROUP_LETTERS_MAX)
_NUMBER, _FIRST, _COUNT = Whole(), Whole(1), Whole(most=COUNT_MAX)
#: A sentence for the other side's log.
SENTENCE = Text(TEXT_LETTERS_MAX, least=0)
_AMOUNT, _DIGEST, _SIGNATURE = Real(0), Octets(32), Octets(64)
_ADVERT = record(
    Advert,
    address=Text(ADDRESS_LETTERS_MAX),
    roster=_NUMBER,
    generation=_COUNT,
    nonce=_NUMBER,
    round=_NUMBER,
    score=Maybe(Real()),
    begun=Flag(),
    models=Many(_NAME),
)
CLAIM = record(
    Claim,
    well_formed,
    "a statement that is not by its subject, or a verdict with an advert",
    about=_NAME,
    incarnation=_COUNT,
    version=_COUNT,
    state=OneOf(tuple(sorted(STATEMENTS | VERDICTS))),
    author=_NAME,
    advert=Maybe(_ADVERT),
    signature=_SIGNATURE,
)
_GENERATION_PROOF = record(GenerationProof, incarnation=_COUNT, generation=_COUNT, nonce=_NUMBER, signature=_SIGNATURE)
_CHANNEL_PROOF = record(
    ChannelProof, group=_GROUP, way=OneOf(("made", "taken")), number=_FIRST, weight=_AMOUNT, signature=_SIGNATURE
)
_NUMBERED_TRANSFER = inlined(
    NumberedTransfer,
    seq=_FIRST,
    round=_NUMBER,
    exchange=_NUMBER,
    weight=Real(anything=True),
    form=_NAME,
    payload=Shape(),
)

GroupName = Annotated[str, _GROUP]
Number = Annotated[int, _NUMBER]
First = Annotated[int, _FIRST]
Count = Annotated[int, _COUNT]
Amount = Annotated[float, _AMOUNT]
_Bool = Annotated[bool, Flag()]
_Digest = Annotated[bytes, _DIGEST]
Claims = Annotated[tuple[Claim, ...], Many(CLAIM, CLAIMS_MAX, spare=True)]
#: A sum of weights and its signature; version 1 of the wire lacks both.
_Total = Annotated[float, Since(2, _AMOUNT)]
_Signature = Annotated[bytes, Since(2, Octets(64, may_lack=True))]

# ------------------------------------------------------------------------------------------------------ when peers meet


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelState:
    """The two channels of a group between the sender of a Hello and its recipient, as the sender remembers them.

    made, acked                 highest numbers of its own transfers to the recipient: made, and known to be taken
    taken                       highest number of the recipient's transfers that it took
    made_weight, taken_weight   sums of the push-sum weights of all transfers made, and of all taken
    """

    group: GroupName
    made: Number
    acked: Number
    taken: Number
    made_weight: Amount
    taken_weight: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The handshake: identifies the sender's process and reports its state of the channels between the two peers.

    Two peers exchange it when they meet, and whenever one of them has reason to compare what both remember.

    generation, nonce   number of this start of the process, and a number drawn at it: the pair distinguishes two
                        living processes with one identity, and the larger pair wins
    known_generation    generation of the recipient, as the sender knows it; 0: not known
    contract            (32 bytes) digest of the federation file's learning contract
    groups              id and (32 bytes) digest of each group that both are members of, as the sender sees it
    channels            one for each of these groups, with the recipient's incarnation that the envelope names
    round               round that the sender is in
    begun               whether the sender has begun to learn
    roster              number of the sender's roster
    answer              whether this answers a Hello (and wants none back)
    left                whether the sender has handed everything over and leaves: it takes nothing beyond what
                        `channels` state
    capabilities        names of its capabilities beyond its version of the wire
    signature           (64 bytes) by the sender, of its incarnation, generation and nonce (`gossip/proofs.py`); b"":
                        not signed
    before              by group, the net weight received from the recipient's earlier incarnations: weight that came
                        from them less weight that went to them (`gossip/weight_limits.py`); groups where it is 0 are
                        left out, and the groups with the least weight if there is no room for all
    """

    spec: ClassVar = MessageSpec(number=1, when="handshake")

    generation: Count
    nonce: Number
    known_generation: Count
    contract: _Digest
    groups: Annotated[tuple[tuple[str, bytes], ...], Many(Array((_GROUP, _DIGEST)), named=itemgetter(0))]
    channels: Annotated[tuple[ChannelState, ...], Many(Record(layout_of(ChannelState)), named=attrgetter("group"))]
    round: Number
    begun: _Bool
    roster: Number
    answer: _Bool
    left: _Bool = False
    capabilities: Annotated[tuple[str, ...], Since(2, Many(Text(CAPABILITY_LETTERS_MAX), CAPABILITIES_MAX))] = ()
    signature: _Signature = b""
    before: Annotated[tuple[tuple[str, float], ...], Since(2, Many(Array((_GROUP, _AMOUNT)), named=itemgetter(0)))] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The sender's learning contract as JSON, so that two peers whose contracts differ can name the difference."""

    spec: ClassVar = MessageSpec(
        number=2,
        when="met",
        from_authority=True,
        tail=TextTail("a contract as JSON, plain or signed", CONTRACT_BYTES_MAX),
    )

    text: Annotated[bytes, EmptyPlace()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One numbered share of one group's mass; in the metadata the share's fields follow the group.

    total       sum of the weights of all transfers of this channel up to this one
    signature   (64 bytes) by the sender, of number and total (`gossip/proofs.py`); b"": not signed
    """

    spec: ClassVar = MessageSpec(
        number=3,
        when="channel",
        about="group",
        from_neighbors=True,
        tail=ShareTail(),
        learning=True,
        of_group=True,
        buffers="kept",
    )

    group: GroupName
    share: Annotated[NumberedTransfer, _NUMBERED_TRANSFER]
    total: _Total = 0.0
    signature: _Signature = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Acknowledgement of all transfers of a group up to number `taken`: they are durable.

    round       round that the sender is in
    total       sum of the weights of these transfers
    signature   (64 bytes) by the sender, of number and total; b"": not signed
    """

    spec: ClassVar = MessageSpec(number=4, when="channel", about="either group", learning=True)

    group: GroupName
    taken: Number
    round: Number
    total: _Total = 0.0
    signature: _Signature = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Question whether the recipient is alive; carries membership claims (SWIM's piggybacking)."""

    spec: ClassVar = MessageSpec(number=5, when="any time")

    number: Number
    claims: Claims


@dataclass(frozen=True, slots=True, kw_only=True)
class PingRequest:
    """Request to ping `target` and return the result as a Pong about it (SWIM's ping-req)."""

    spec: ClassVar = MessageSpec(number=6, when="any time")

    number: Number
    target: Name
    claims: Claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """Answer to a Ping or a PingRequest about `target`: the sender itself, or a peer that it was asked to ping.

    received   whether the target answered; False is Lifeguard's nack: it shows the asker that the helper itself is
               well
    """

    spec: ClassVar = MessageSpec(number=7, when="any time")

    number: Number
    target: Name
    received: _Bool
    claims: Claims


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRequest:
    """Request of a late joiner for the current value of a group."""

    spec: ClassVar = MessageSpec(number=8, when="met", about="group")

    group: GroupName


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Answer to a ValueRequest: an estimate, (D,) float32, without weight; the sender keeps its mass."""

    spec: ClassVar = MessageSpec(number=9, when="met", about="group", tail=ValueTail())

    group: GroupName
    round: Number
    value_D: Annotated[Tensor, Shape()]


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterNews:
    """A signed roster; of two rosters the one with the higher number wins."""

    spec: ClassVar = MessageSpec(
        number=10,
        when="any time",
        from_authority=True,
        answers=True,
        tail=TextTail("a signed roster as JSON", ROSTER_BYTES_MAX),
    )

    number: First
    text: Annotated[bytes, EmptyPlace()]


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectMessage:
    """Answer to a message that was not accepted.

    code     one of `rejections.py`
    group    of a rejected transfer, else ""
    seq      number of a rejected transfer, else 0
    text     a sentence for the recipient's log
    claims   at most one, as proof: the statement of a later process with the recipient's identity
    """

    spec: ClassVar = MessageSpec(number=11, when="any time", answers=True)

    code: Name
    group: Annotated[str, Text(GROUP_LETTERS_MAX, least=0)]
    seq: Number
    text: Annotated[str, SENTENCE]
    claims: Annotated[tuple[Claim, ...], Since(2, Many(CLAIM, 1, spare=True))] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reminder:
    """Statements that the recipient signed itself and no longer reports in its Hello (`reminders.py`).

    generation   proof of a start of its process
    channels     proofs of its progress on channels between the two peers
    """

    spec: ClassVar = MessageSpec(number=16, since=2, when="handshake")

    generation: Annotated[GenerationProof | None, Maybe(_GENERATION_PROOF)]
    channels: Annotated[tuple[ChannelProof, ...], Many(_CHANNEL_PROOF, _CHANNEL_PROOFS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusMessage:
    """One message of the election of a group's coordinator, or about a committed round of the group.

    The signatures of a leader certificate or a certificate are the tail; all else is in the metadata.
    """

    spec: ClassVar = MessageSpec(
        number=12,
        when="met",
        about="consensus group",
        tail=SignaturesTail(),
        learning=True,
        urgent=True,
        buffers="several",
    )

    group: GroupName
    message: Annotated[ConsensusContent, CONSENSUS_CONTENT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """An update: the result of a participant's training in the round that the coordinator of `term` opened.

    digest    (32 bytes) BLAKE2b-256 of `content`; checked
    content   the tail: the update's leaves in the order of the algorithm's template, little-endian, one directly after
              the other. On the wire its zeros may be packed (`sparse_words.py`).
    fault     what is wrong with its numbers. Such an update is still a valid message, so that the coordinator that
              gathers the round's updates no longer waits for its sender.
    """

    spec: ClassVar = MessageSpec(
        number=13, when="met", about="consensus group", tail=UpdateTail(), learning=True, of_group=True
    )

    group: GroupName
    term: First
    round: First
    digest: _Digest
    content: Annotated[bytes, NotInMetadata()]
    fault: Annotated[Rejection | None, NotInMetadata()] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Request for the model with this digest."""

    spec: ClassVar = MessageSpec(number=14, when="met", about="consensus group", learning=True)

    group: GroupName
    digest: _Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """Answer to a ModelRequest: the model with this digest.

    digest    (32 bytes) BLAKE2b-256 of `content`; checked
    content   the tail (`leaf_bytes.py`); all numbers of the server in it are finite
    """

    spec: ClassVar = MessageSpec(
        number=15, when="met", about="consensus group", tail=ContentTail(), learning=True, of_group=True
    )

    group: GroupName
    digest: _Digest
    content: Annotated[bytes, NotInMetadata()]


Message = (
    Hello
    | Contract
    | Transfer
    | Ack
    | Ping
    | PingRequest
    | Pong
    | ValueRequest
    | Value
    | RosterNews
    | RejectMessage
    | ConsensusMessage
    | Update
    | ModelRequest
    | ModelReply
    | Reminder
)

#: Kinds by their number in the header.
KINDS: Mapping[int, type[Message]] = {kind.spec.number: kind for kind in get_args(Message)}


def group_of(message: Message) -> str:
    """Return the group that the message's bytes are counted for; "" if none."""
    return getattr(message, "group", "") if message.spec.of_group else ""


def spoken_in(version: int, kind: type[Message]) -> bool:
    """Return whether this version of the wire has messages of the kind."""
    return kind.spec.since <= version
