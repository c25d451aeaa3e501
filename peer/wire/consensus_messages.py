"""Consensus values: what voters sign, the messages between them, their durable state and their effects. No behavior.

Two statements are signed by their author, since they are passed on: a *vote* (this term, that candidate) and an
*acceptance* (this proposal). A majority of votes is a `LeaderCertificate`, a majority of acceptances a `Certificate`;
both are proof to any peer that knows the named roster, whichever peer passes them on. All other messages go from one
peer to another over a link that authenticates the sender, and are not signed.

A signed text begins with a tag, a version, the federation and the group; so a vote about another partial model, or a
claim of membership, is worth nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from fedpeer.gossip.claims import Verify, joined_fields, whole
from fedpeer.rejection import Rejection

#: First bytes of every signed text; the number is the version of this format.
_TAG = b"fedpeer ballot 1"

#: Models that a voter may know to be durable: those of the last round, of the accepted proposal and of a new proposal,
#: and one that is being fetched.
MODELS_MAX = 4

#: Returns the function that verifies signatures under the roster of this number, by the keys that the roster names.
VerifyUnder = Callable[[int], Verify]

#: (author, its signature), ordered by author.
Signatures = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """Subject of a vote: a partial model (a group of the plan) of a federation (its 16 bytes on the wire)."""

    federation: bytes
    group: str


@dataclass(frozen=True, slots=True)
class VoterSet:
    """The voters under a numbered roster: all `members` learn of committed rounds, the `voters` among them decide.

    keys   of the voters, as far as they are known: a state of an early release has none
    """

    number: int
    voters: frozenset[str]
    members: frozenset[str]
    keys: Mapping[str, bytes] = field(default_factory=dict, compare=False)

    def carried(self, by: Iterable[str]) -> bool:
        """Return whether these peers include more than half of the voters."""
        return 2 * len(self.voters.intersection(by)) > len(self.voters)

    def near(self, other: VoterSet) -> bool:
        """Return whether the two differ by at most one voter, so that each majority of one meets each of the other.

        A voter with another key is another voter, which may not know what the first one promised. So a changed key
        counts as two voters: one is gone, and one is new.
        """
        same_keys = all(self.keys.get(voter, key) == key for voter, key in other.keys.items())
        return len(self.voters ^ other.voters) <= 1 and same_keys


@dataclass(frozen=True, slots=True)
class Proposal:
    """A coordinator's proposal: after this round the model is the one with this digest (32 bytes).

    `roster` is the number of the voter set from the next round on. A majority of that set must accept, and a majority
    of the set in force before.
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
    """Progress of a peer in the rounds.

    applied       last round that it applied; 0: none
    round, term   of the newest proposal that it accepted or applied
    """

    applied: int = 0
    round: int = 0
    term: int = 0

    def at_least(self, other: Progress) -> bool:
        """Return whether a peer with this progress knows everything that `other` may have helped to commit."""
        return (self.round, self.term) >= (other.round, other.term)


def vote_text(scope: Scope, author: str, term: int, roster: int, candidate: str) -> bytes:
    """Return the text that a voter signs: each field after its own length, integers of 8 bytes little-endian."""
    return _text(scope, b"vote", author, whole(term), whole(roster), candidate.encode())


def acceptance_text(scope: Scope, author: str, proposal: Proposal) -> bytes:
    """Return the text that an acceptor signs, encoded like `vote_text`."""
    numbers = map(whole, (proposal.term, proposal.round, proposal.roster))
    return _text(scope, b"acceptance", author, *numbers, proposal.digest)


def leader_certificate_holds(
    scope: Scope, leader_certificate: LeaderCertificate, voter_set: VoterSet, verify_under: VerifyUnder
) -> bool:
    """Return whether a majority of the voters voted and each vote is signed by its author."""
    verify = verify_under(leader_certificate.roster)
    return voter_set.carried(author for author, _ in leader_certificate.votes) and all(
        verify(
            author,
            vote_text(scope, author, leader_certificate.term, leader_certificate.roster, leader_certificate.candidate),
            signature,
        )
        for author, signature in leader_certificate.votes
    )


def certificate_digest(scope: Scope, leader_certificate: LeaderCertificate) -> bytes:
    """Return the digest (32 bytes) that names a leader certificate: of all its fields, encoded like `vote_text`."""
    numbers = whole(leader_certificate.term), whole(leader_certificate.roster)
    votes = (part for author, signature in leader_certificate.votes for part in (author.encode(), signature))
    text = _text(scope, b"certificate", leader_certificate.candidate, *numbers, *votes)
    return blake2b(text, digest_size=32).digest()


def acceptances_hold(scope: Scope, certificate: Certificate, verify_under: VerifyUnder) -> bool:
    """Return whether each acceptance is signed by its author; `round_commit.py` checks that there are enough."""
    verify = verify_under(certificate.proposal.roster)
    return all(
        verify(author, acceptance_text(scope, author, certificate.proposal), signature)
        for author, signature in certificate.acceptances
    )


def _text(scope: Scope, kind: bytes, author: str, *fields: bytes) -> bytes:
    return joined_fields(_TAG, scope.federation, scope.group.encode(), kind, author.encode(), *fields)


# ----------------------------------------------------------------------------------------------- what peers say


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """Request for a vote in this term; with `pre`, the question whether the vote would be given (pre-vote).

    `roster` is the number of the candidate's voter set, `progress` how far the candidate is.
    """

    term: int
    pre: bool
    roster: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class VoteReply:
    """Answer to a VoteRequest.

    `term` is the requested one if granted, else the voter's own. A vote is signed (64 bytes); a pre-vote and a refusal
    are not (empty).
    """

    term: int
    pre: bool
    granted: bool
    signature: bytes


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A coordinator's heartbeat, with the proof that it was elected and its progress."""

    leader_certificate: LeaderCertificate
    progress: Progress


@dataclass(frozen=True, slots=True)
class ShortHeartbeat:
    """A coordinator's heartbeat to a member that knows the proof: it names the leader certificate of this term.

    digest   (32 bytes) of the certificate (`certificate_digest`)
    """

    term: int
    digest: bytes
    progress: Progress


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Answer to a heartbeat, or to any message of an old term: the sender's term and progress."""

    term: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class Propose:
    """Request to accept this proposal."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Accept:
    """Answer to a Propose: the recipient's proposal for this term and round is accepted, and durable with its model."""

    term: int
    round: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """Notice that this round is committed."""

    certificate: Certificate


ConsensusContent = VoteRequest | VoteReply | Heartbeat | ShortHeartbeat | HeartbeatReply | Propose | Accept | Commit

# --------------------------------------------------------------------------------------------- what must survive


@dataclass(frozen=True, slots=True)
class HardState:
    """Raft's hard state: the term, which only grows, and the peer voted for or followed in it ("": nobody)."""

    term: int = 0
    voted: str = ""


@dataclass(frozen=True, slots=True)
class CommitState:
    """A peer's durable state of the commit protocol. The models of `accepted` and `applied` are durable beside it.

    roster     number of the voter set in force
    accepted   proposal that it accepted for the next round; None: none
    applied    certificate of the last round applied; None: no round yet
    """

    roster: int
    accepted: Proposal | None = None
    applied: Certificate | None = None

    @property
    def round(self) -> int:
        """Last round that was applied; 0: none."""
        return self.applied.proposal.round if self.applied else 0

    @property
    def progress(self) -> Progress:
        """Progress of this peer."""
        newest = self.accepted or (self.applied.proposal if self.applied else None)
        return Progress(self.round, newest.round, newest.term) if newest else Progress()


# --------------------------------------------------------------------------------------------- what is to be done


@dataclass(frozen=True, slots=True)
class PersistConsensus:
    """Effect: make this durable, replacing the state before, before any later effect is carried out."""

    what: HardState | CommitState


@dataclass(frozen=True, slots=True)
class SendConsensus:
    """Effect: send this message once; the state machine repeats it where needed."""

    to: str
    message: ConsensusContent


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """Effect: this peer's coordinator is another one from now on (None: it knows none)."""

    term: int
    coordinator: str | None


@dataclass(frozen=True, slots=True)
class Fetch:
    """Effect: fetch the model with this digest from `holder`, make it durable, then call `holds`.

    Repeated while the model is missing.
    """

    holder: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class ApplyModel:
    """Effect: use this proposal's model from now on. After a restart the `PersistConsensus` before it decides."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class CountUpdate:
    """Effect: count this update for the round in progress."""

    sender: str
    round: int
    digest: bytes


ConsensusEffect = PersistConsensus | SendConsensus | LeaderChanged | Fetch | ApplyModel | CountUpdate | Rejection
