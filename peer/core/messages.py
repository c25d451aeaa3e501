"""What peers say to one another: small, frozen, complete. A message that exists is already valid.

Bytes become messages, or named refusals, in `codec.py`; nothing behind it checks a shape again. Every message
travels in an envelope that binds it to one federation, sender, recipient and incarnation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from torch import Tensor

from fedpeer.algorithms.updates import Fault
from fedpeer.gossip import ballots
from fedpeer.gossip.membership import Claim
from fedpeer.gossip.proofs import LaneProof, LifeProof
from fedpeer.gossip.transfers import Parcel
from fedpeer.peer.core.framing import Bytes
from fedpeer.peer.core.versions import NEWEST, since


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """From whom to whom.

    federation       (16 bytes) names the federation: the beginning of the BLAKE2b of its authority's public key
    incarnation      of the sender: 1 from its first start on; one more whenever it lost memory
    to_incarnation   of the recipient, as the sender knows it; 0: not known yet
    version          of the wire, in which the message is written; it stands in the header
    """

    federation: bytes
    sender: str
    recipient: str
    incarnation: int
    to_incarnation: int
    version: int = NEWEST


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneState:
    """What the sender of a Hello remembers of the two lanes between it and the recipient in one group.

    made, acked     of its own transfers to the recipient: the highest number made, and the highest known to be taken
    taken           the highest number taken of the recipient's
    made_weight, taken_weight    sums of the push-sum weights of all that were made, and of all that were taken
    """

    group: str
    made: int
    acked: int
    taken: int
    made_weight: float
    taken_weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """When two peers meet, and whenever one of them has reason to compare what both remember.

    life, nonce     number of this start of the process, and a number drawn at it: two living processes with one
                    identity are told apart by the pair, and the larger one wins
    known_life      the recipient's life as the sender knows it; 0: not known
    contract        (32 bytes) digest of the federation file's learning contract
    groups          id and (32 bytes) digest of each group of which both are members, as the sender sees it
    lanes           one for each of these groups, with the recipient's incarnation that the envelope names
    round           in which the sender is; `begun`: whether it has begun to learn
    roster          number of the roster that the sender goes by
    answer          whether this answers a Hello (and wants none back)
    left            whether the sender has handed everything over and goes: it takes nothing beyond what `lanes` say
    capabilities    what it can do beyond its version of the wire, by name
    signature       (64 bytes) by the sender, of its incarnation, life and nonce (`gossip/proofs.py`); b"": not signed
    before          by group, the weight that came from the recipient's earlier incarnations, more than went to them
                    (`gossip/weight_limits.py`); nothing where that is 0
    """

    life: int
    nonce: int
    known_life: int
    contract: bytes
    groups: tuple[tuple[str, bytes], ...]
    lanes: tuple[LaneState, ...]
    round: int
    begun: bool
    roster: int
    answer: bool
    left: bool = False
    capabilities: tuple[str, ...] = since(2, ())
    signature: bytes = since(2, b"")
    before: tuple[tuple[str, float], ...] = since(2, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The learning contract as JSON (at most 64 KiB, in the tail), so that two who differ can name where."""

    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One numbered share of one group's mass; in the metadata the parcel's fields stand beside the group.

    total       of the weights of all transfers of this lane up to this one
    signature   (64 bytes) by the sender, of number and total (`gossip/proofs.py`); b"": not signed
    """

    group: str
    parcel: Parcel
    total: float = since(2, 0.0)
    signature: bytes = since(2, b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """All transfers of this group up to number `taken` are taken and durable. `round` is where the sender is.

    `total` of their weights, and the signature (64 bytes) of both by the sender; b"": not signed
    """

    group: str
    taken: int
    round: int
    total: float = since(2, 0.0)
    signature: bytes = since(2, b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Are you there? Membership claims ride along (at most 8)."""

    number: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PingRequest:
    """Please ping `target` for me; its answer comes back as a Pong about it."""

    number: int
    target: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """`target` is there: the sender itself, or one that it was asked to ping. `heard` False: it did not answer it
    (Lifeguard's nack: the one who asks learns that the helper itself is well)."""

    number: int
    target: str
    heard: bool
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A late joiner asks for the current value of a group."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """The answer to a Fetch: an estimate (D,) float32, without any weight; what the sender holds stays with it."""

    group: str
    round: int
    value_D: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterNews:
    """A signed roster (at most 1 MiB, in the tail); the highest number wins."""

    number: int
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The recipient's message was refused: the code of `refusals.py`, and a sentence for its log.

    `group` and `seq` say which transfer, where it was one ("" and 0 elsewhere). `claims`: what shows that it is right,
    at most one: the statement of a later process with the recipient's identity.
    """

    code: str
    group: str
    seq: int
    text: str
    claims: tuple[Claim, ...] = since(2, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reminder:
    """What the recipient signed itself, and does not say any more: a start of its process, and how far it was on lanes
    between the two (`reminders.py`)."""

    life: LifeProof | None
    lanes: tuple[LaneProof, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusMessage:
    """One statement of the election of a group's coordinator, or about a decree of it.

    The signatures that a mandate or a certificate is made of travel in the tail; all else in the metadata.
    """

    group: str
    said: ballots.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What a participant's training gave in the round that the coordinator of `term` opened.

    digest    (32 bytes) BLAKE2b-256 of `content`, which was held against it
    content   the tail: the update's leaves in the order of the algorithm's template, little-endian, one directly after
              the other. Between them and this message zeros may have travelled for less (`sparse_words.py`).
    fault     what is wrong with the numbers in it, as the gate found. It is a message all the same: who gathers for
              the round no longer waits for its sender.
    """

    group: str
    term: int
    round: int
    digest: bytes
    content: bytes
    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The model with this digest (32 bytes), please."""

    group: str
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The answer to a Wanted: the model with this digest, BLAKE2b-256 of `content` (the tail, `leaf_bytes.py`), which
    was held against it, and whose server is made of numbers."""

    group: str
    digest: bytes
    content: bytes


def digest_of(content: Bytes) -> bytes:
    """The digest (32 bytes) of an update's or a model's content."""
    return blake2b(content, digest_size=32).digest()


Message = (
    Hello
    | Contract
    | Transfer
    | Ack
    | Ping
    | PingRequest
    | Pong
    | Fetch
    | Value
    | RosterNews
    | Refused
    | ConsensusMessage
    | Update
    | Wanted
    | Model
    | Reminder
)

#: Kinds that came after the first version of the wire, by the version; they are not said to who speaks an older one.
SINCE: Mapping[type[Message], int] = {Reminder: 2}


def spoken_in(version: int, kind: type[Message]) -> bool:
    """Whether this version of the wire has messages of the kind."""
    return SINCE.get(kind, 1) <= version
