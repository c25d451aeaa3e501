"""Entries of the journal: each kind is one change of a peer's durable state, as a complete fact or decision.

The same entries applied to the same durable state give the same durable state to the last bit, so a peer killed at any
instant is rebuilt from its last snapshot and the entries after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedpeer.gossip.transfers import NumberedTransfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A process starts on this durable state, under a higher generation than the federation knows of this peer."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A round begins: every group's estimate goes into the parameters, and training starts."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTrained:
    """The local steps of a round are taken: parameters (n,) and training state (k,) after them.

    fresh   there still is no training state: no training has counted yet
    """

    round: int
    x_n: Tensor
    s_k: Tensor
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class RealShares:
    """Each recipient gets this fraction of the mass held.

    whole   all mass that is held or waits is given away in equal parts: the peer leaves
    """

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
    """Each recipient gets a notice that no share comes: the peer is inactive (`gossip/event_trigger.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """One exchange of a group begins: `shares` go to each of `to`, and one is expected from each of `expect`.

    start_weight   weight with which an averaging starts, if it begins here; None: the weight held is carried on
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
    """The exchange under way in a group is over: the shares that arrived are added; those of `without` are missing."""

    group: str
    without: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareApplied:
    """A share arrived from a neighbor and passed every check.

    at_once     add it without waiting for its exchange: it was made too many rounds ahead, or there is no room for it
    signature   (64 bytes) by the sender, of its number and the sum of weights up to it; b"": not signed
    """

    group: str
    sender: str
    share: NumberedTransfer
    at_once: bool = False
    signature: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """A neighbor has all transfers of a group up to number `taken`.

    signature   (64 bytes) by the neighbor, of that number and the sum of their weights; b"": not signed
    """

    group: str
    peer: str
    taken: int
    signature: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A neighbor is known by this incarnation from now on.

    Channels with an earlier incarnation are closed, and transfers under way to it come back. `generation` and `nonce`
    are those of its process; `signature` (64 bytes) is its own, of all three numbers; b"": not signed.
    """

    peer: str
    incarnation: int
    generation: int = 0
    nonce: int = 0
    signature: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reborn:
    """This peer has lost memory and comes back as a new incarnation, with its last model and its initial weight."""

    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A late joiner takes over the value (D,) float32 of a group, and keeps the weight it holds."""

    group: str
    value_D: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A neighbor has left, and what it has taken is acknowledged: transfers still under way to it come back."""

    group: str
    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """A peer was revoked or has another key: transfers under way to it come back, mass that it took is written off.

    If it is admitted again, it counts as a peer that was never met: nothing signed with the earlier key counts.
    """

    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """This peer has left: mass that could not be handed over is written off, and the next start is a late join."""


# ------------------------------------------------------------------ coordinated rounds: what changes a `ConsensusState`


@dataclass(frozen=True, slots=True, kw_only=True)
class TermChanged:
    """This peer is in a term, and voted for a peer in it or follows it as coordinator ("": none)."""

    group: str
    term: int
    voted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitStateChanged:
    """The commit state changed; proposals are (term, round, roster, digest).

    roster    number of the voter set in force
    accepted  proposal accepted beyond the one in force; None: none
    applied   committed round in force, with the (author, signature) of a majority's acceptances; None: none yet
    """

    group: str
    roster: int
    accepted: tuple[int, int, int, bytes] | None
    applied: tuple[tuple[int, int, int, bytes], tuple[tuple[str, bytes], ...]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStored:
    """A model was made here, or fetched and checked: its content, and the content's digest (32 bytes)."""

    group: str
    digest: bytes
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMade:
    """The training of a round is done: the update, and the client's state after the training."""

    group: str
    round: int
    update: bytes
    client: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStateSaved:
    """A round is over for the client: its state after the round, and the model (n,) that it uses."""

    group: str
    round: int
    client: bytes
    x_n: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """An averaging through a coordinator is in force: its mean replaces this peer's own values."""

    group: str
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterSetKnown:
    """A voter set is known, by the signed roster in `text`."""

    group: str
    number: int
    voters: tuple[str, ...]
    members: tuple[str, ...]
    text: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class VotingAllowed:
    """It is known under which rosters this peer may have made promises that it lost.

    lost   number of the roster under which a disk, and its promises, were lost; 0: nothing was lost
    """

    group: str
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteLost:
    """This peer has forgotten what it promised as a voter: it gives up its vote.

    roster   number of the newest roster that it knows, or under which it is known to have promised something
    """

    group: str
    roster: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OthersAhead:
    """These members trained beyond the group's first averaging before this peer did."""

    group: str
    members: tuple[str, ...]


ConsensusEntry = (
    TermChanged
    | CommitStateChanged
    | ModelStored
    | UpdateMade
    | ClientStateSaved
    | Averaged
    | VoterSetKnown
    | VotingAllowed
    | VoteLost
    | OthersAhead
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
    | ConsensusEntry
)
