"""What changes a peer's durable state, one kind of entry each: facts and decisions, small and complete.

The journal is a list of these. The same entries applied to the same durable state give the same durable state to the
last bit, so that a peer killed at any instant is rebuilt from its last snapshot and the entries after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedpeer.gossip.transfers import NumberedTransfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A process begins on this durable state, with a number higher than all that its federation knows of it."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """The averaging before this round is over: every estimate goes into the parameters, and training begins."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTrained:
    """The local steps of a round: parameters (n,) and what the learner keeps (k,) after them."""

    round: int
    x_n: Tensor
    s_k: Tensor


@dataclass(frozen=True, slots=True)
class RealShares:
    """Each recipient gets this fraction of what is held; `whole`: they share all that is held and waits (the peer
    leaves)."""

    fraction: float
    whole: bool = False


@dataclass(frozen=True, slots=True)
class MaskedShares:
    """Each recipient gets this fraction of the weight, with values drawn from the key (`gossip/noise_phase.py`)."""

    fraction: float
    key: bytes
    scale: float


@dataclass(frozen=True, slots=True)
class NoShares:
    """Each recipient is told that nothing comes: the peer is inactive (`gossip/event_trigger.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """One exchange of a group begins: `shares` go to each of `to`, and one is expected from each of `expect`.

    start_weight   weight with which the averaging starts that begins here; None: what is held is carried on
    """

    group: str
    round: int
    exchange: int
    to: tuple[str, ...]
    expect: tuple[str, ...]
    shares: RealShares | MaskedShares | NoShares
    start_weight: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The exchange that a group is in is over: what arrived for it is added, with or without those who are missing."""

    group: str
    without: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareApplied:
    """A share arrived from a neighbour and passed every check.

    `at_once`: it was made so many rounds ahead that nobody keeps step with its sender; it is added and does not wait.
    `signature`: (64 bytes) of its number and of the sum of weights up to it, by its sender; b"": not signed.
    """

    group: str
    sender: str
    share: NumberedTransfer
    at_once: bool = False
    signature: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """A neighbour has all transfers of a group up to number `taken`; its signature (64 bytes) of that and of the sum of
    their weights, or b""."""

    group: str
    peer: str
    taken: int
    signature: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A neighbour is known by this incarnation from now on; an earlier one of it is closed, and what was under way to
    it comes back. `generation` and `nonce` are those of its process, and the signature (64 bytes) is its own, of all
    three
    numbers; b"": not signed."""

    peer: str
    incarnation: int
    generation: int = 0
    nonce: int = 0
    signature: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reborn:
    """This peer has lost memory and comes back as a new incarnation, with its last model and its first weight."""

    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A late joiner takes over the value (D,) float32 of a group, with its first weight."""

    group: str
    value_D: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A neighbour has left, and what it has taken is acknowledged: what was still under way to it comes back."""

    group: str
    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """A peer is not in the roster any more, or with another key: what was under way to it comes back, and what had gone
    to it is written off. Should it be let in again, then as a peer that was never met: nothing that was signed with the
    key of before counts any more."""

    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """All that could be handed over was: the rest is written off, and the next start is a late join."""


# ------------------------------------------------------------------ coordinated rounds: what changes a `ConsensusState`


@dataclass(frozen=True, slots=True, kw_only=True)
class TermChanged:
    """This peer is in a term, and voted for somebody in it or took it for coordinator ("": nobody)."""

    group: str
    term: int
    voted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitStateChanged:
    """What is in force here and what is accepted beyond it: committed rounds as (term, round, roster, digest).

    roster    number of the voter set in force
    applied   with the acceptances of a majority, (author, signature) each
    """

    group: str
    roster: int
    accepted: tuple[int, int, int, bytes] | None
    applied: tuple[tuple[int, int, int, bytes], tuple[tuple[str, bytes], ...]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStored:
    """A model was made here, or taken over and checked: its content, and (32 bytes) the digest of that."""

    group: str
    digest: bytes
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMade:
    """The training of a round: the update that it gave, and the client's state after it."""

    group: str
    round: int
    update: bytes
    client: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStateSaved:
    """A round is in force, and this is the client's state after it, and (n,) the model that it uses."""

    group: str
    round: int
    client: bytes
    x_n: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """A round of equals is in force, and the mean that it decreed takes the place of this peer's own values."""

    group: str
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterSetKnown:
    """An voter set is known, by the signed roster in `text` that says so."""

    group: str
    number: int
    voters: tuple[str, ...]
    members: tuple[str, ...]
    text: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class VotingAllowed:
    """It is known what this peer may have promised before: nothing (`lost` 0), or what was lost under this roster."""

    group: str
    lost: int


ChamberEntry = (
    TermChanged
    | CommitStateChanged
    | ModelStored
    | UpdateMade
    | ClientStateSaved
    | Averaged
    | VoterSetKnown
    | VotingAllowed
)
Entry = (
    Started
    | Began
    | LocalTrained
    | Opened
    | Closed
    | ShareApplied
    | Acked
    | Met
    | Reborn
    | Adopted
    | Returned
    | Revoked
    | Left
    | ChamberEntry
)
