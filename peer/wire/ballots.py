"""What voters sign, what they say to one another, and what their machines want done: values only, no machine here.

Two statements are signed by their author, since they are passed on: a *vote* (this term, that candidate) and an
*acceptance* (this committed round). A majority of votes is a `LeaderCertificate`, of acceptances a `Certificate`; both
are proof to anyone who knows the roster that they name, whoever hands them over. All else is said by one peer to
another over a link that proves who speaks, and is not signed.

A signed text begins with a tag, a version, the federation and the group; so a vote of one partial model, or a claim of
membership, is worth nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedpeer.gossip.claims import Verify, joined_fields, whole
from fedpeer.rejection import Rejection

#: First bytes of every signed text; the number is the version of this format.
_TAG = b"fedpeer ballot 1"

#: Models that a voter knows to be durable: of the last round, of the accepted committed round, of one proposed and of
#: one that is being fetched.
MODELS_MAX = 4

#: (author, its signature), in the order of authors.
Signatures = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """What the voters vote about: a partial model (a group of the plan) of a federation (its 16 bytes on the wire)."""

    federation: bytes
    group: str


@dataclass(frozen=True, slots=True)
class VoterSet:
    """Who counts under a numbered roster: `members` hear what is decreed, `voters` among them decide."""

    number: int
    voters: frozenset[str]
    members: frozenset[str]

    def carried(self, by: Iterable[str]) -> bool:
        """Whether these are more than half of the voters."""
        return 2 * len(self.voters.intersection(by)) > len(self.voters)


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a coordinator proposes: after this round the model is the one with this digest (32 bytes).

    `roster` is the number of the voter set from the next round on; a majority of it must accept, and of the one in
    force before.
    """

    term: int
    round: int
    roster: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class LeaderCertificate:
    """Proof that `candidate` coordinates in `term`: votes of a majority of the roster's voters."""

    term: int
    candidate: str
    roster: int
    votes: Signatures


@dataclass(frozen=True, slots=True)
class Certificate:
    """Proof that a committed round is in force: acceptances of a majority. It stays true whatever the term."""

    proposal: Proposal
    acceptances: Signatures


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a peer is: the round that it applied; round and term of the newest committed round it accepted or
    applied.
    """

    applied: int = 0
    round: int = 0
    term: int = 0

    def at_least(self, other: Progress) -> bool:
        """Whether a peer with this progress knows everything that `other` may have helped to put in force."""
        return (self.round, self.term) >= (other.round, other.term)


def vote_text(scope: Scope, author: str, term: int, roster: int, candidate: str) -> bytes:
    """What a voter signs: each field behind its own length, integers of 8 bytes little-endian."""
    return _text(scope, b"vote", author, whole(term), whole(roster), candidate.encode())


def acceptance_text(scope: Scope, author: str, proposal: Proposal) -> bytes:
    """What an acceptor signs, in the form of `vote_text`."""
    numbers = map(whole, (proposal.term, proposal.round, proposal.roster))
    return _text(scope, b"acceptance", author, *numbers, proposal.digest)


def leader_certificate_holds(
    scope: Scope, leader_certificate: LeaderCertificate, voter_set: VoterSet, verify: Verify
) -> bool:
    """Whether a majority voted, and each vote is signed by its author."""
    return voter_set.carried(author for author, _ in leader_certificate.votes) and all(
        verify(
            author,
            vote_text(scope, author, leader_certificate.term, leader_certificate.roster, leader_certificate.candidate),
            signature,
        )
        for author, signature in leader_certificate.votes
    )


def acceptances_hold(scope: Scope, certificate: Certificate, verify: Verify) -> bool:
    """Whether each acceptance is signed by its author; whether they are enough, `round_commit.py` says."""
    return all(
        verify(author, acceptance_text(scope, author, certificate.proposal), signature)
        for author, signature in certificate.acceptances
    )


def _text(scope: Scope, kind: bytes, author: str, *fields: bytes) -> bytes:
    return joined_fields(_TAG, scope.federation, scope.group.encode(), kind, author.encode(), *fields)


# ----------------------------------------------------------------------------------------------- what peers say


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """Would you vote for me in this term (`pre`: if I stood)? Under this roster, and I am so far."""

    term: int
    pre: bool
    roster: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class VoteReply:
    """Answer to a VoteRequest. `term` is the one asked for where granted, else the voter's own. A vote is signed (64
    bytes), a
    promise (`pre`) and a no are not (empty)."""

    term: int
    pre: bool
    granted: bool
    signature: bytes


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The heartbeat of a coordinator, and how far it is."""

    leader_certificate: LeaderCertificate
    progress: Progress


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """To a Lead, or to anything else of an old term: my term, and how far I am."""

    term: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class Propose:
    """Accept this committed round, please."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Accept:
    """The committed round that you proposed for this term and round is accepted and durable, with its model."""

    term: int
    round: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """This is in force."""

    certificate: Certificate


Message = VoteRequest | VoteReply | Heartbeat | HeartbeatReply | Propose | Accept | Commit

# --------------------------------------------------------------------------------------------- what must survive


@dataclass(frozen=True, slots=True)
class HardState:
    """A peer's term, and whom it voted for or took for coordinator in it ("": nobody). The term only grows."""

    term: int = 0
    voted: str = ""


@dataclass(frozen=True, slots=True)
class CommitState:
    """The committed round that put the last round in force (None: no round yet), and the one accepted for the next.

    `roster` is the number of the voter set in force. The models of both committed rounds are durable beside this.
    """

    roster: int
    accepted: Proposal | None = None
    applied: Certificate | None = None

    @property
    def round(self) -> int:
        """The last round that was applied; 0: none."""
        return self.applied.proposal.round if self.applied else 0

    @property
    def progress(self) -> Progress:
        """How far this peer is."""
        newest = self.accepted or (self.applied.proposal if self.applied else None)
        return Progress(self.round, newest.round, newest.term) if newest else Progress()


# --------------------------------------------------------------------------------------------- what is to be done


@dataclass(frozen=True, slots=True)
class PersistConsensus:
    """Make this durable in the place of the one before, before anything that follows is done."""

    what: HardState | CommitState


@dataclass(frozen=True, slots=True)
class SendConsensus:
    """Send this once; who repeats is the machine."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """Somebody else coordinates from now on, as far as this peer knows; None: nobody."""

    term: int
    coordinator: str | None


@dataclass(frozen=True, slots=True)
class Fetch:
    """Get the model with this digest from that peer, make it durable, then call `holds`; said again while it lacks."""

    holder: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class ApplyModel:
    """From now on this is the model. The `PersistConsensus` before it said so: after a restart that one counts."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class CountUpdate:
    """This update counts for the round under way."""

    sender: str
    round: int
    digest: bytes


Out = PersistConsensus | SendConsensus | LeaderChanged | Fetch | ApplyModel | CountUpdate | Rejection
