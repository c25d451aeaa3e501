"""Commit of one model per round: one peer's part in coordinated rounds, as a pure machine around its `Election`.

The coordinator proposes the digest of the model after round `applied + 1`. A voter accepts once term, proposal and
model are durable, and at most one proposal per term and round. Acceptances of a majority are a certificate, and the
round is applied. There is no log: the model after a round is the log, and at most one round is under way. A peer that
is behind gets the newest certificate, fetches that model and goes on from there.

A coordinator that has itself accepted a proposal for the next round first proposes it again in its own term: a majority
may have accepted it. The votes ensure that it is the newest of all such proposals (`election.py`). Acceptances of an
earlier term never count for a later one.

Committed rounds change the voter set: each names the roster that counts from the next round on. A majority of that
roster and a majority of the one in force must accept the round. The two rosters differ by at most one voter, so that
majorities of neighboring voter sets always meet (a voter with another key is another voter: `roster_keys.py`).
So no round names an earlier roster than the round before it, and a majority of an earlier roster commits nothing. A
peer that has applied no round yet does not know the round before, and believes a majority of any roster.

Outputs are in a binding order: nothing behind a `PersistConsensus` is done before that is durable. Messages about a
round are fenced by (term, round), and a rejection changes nothing.

Sources: Lamport, Paxos Made Simple, 2001, section 2 (one committed round); Ongaro and Ousterhout, 2014; Ongaro, 2014,
section 4.1 (one voter at a time).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace

from fedpeer.gossip.claims import Sign
from fedpeer.peer.consensus.election import TERM_JUMP_MAX, Election
from fedpeer.peer.wire.consensus_messages import (
    MODELS_MAX,
    Accept,
    ApplyModel,
    Certificate,
    Commit,
    CommitState,
    ConsensusContent,
    ConsensusEffect,
    CountUpdate,
    Fetch,
    Heartbeat,
    HeartbeatReply,
    PersistConsensus,
    Progress,
    Proposal,
    Propose,
    SendConsensus,
    ShortHeartbeat,
    VerifyUnder,
    VoteReply,
    VoteRequest,
    VoterSet,
    acceptance_text,
    acceptances_hold,
)
from fedpeer.rejection import Rejection


class RoundCommit:
    """The commit machine of one peer.

    election       this peer's election, with the same progress as `holding`
    holding        commit state, as it was last made durable
    sign           signs with this peer's key; `verify_under`: verifies by the keys of a roster
    late           whether updates of earlier rounds are taken, and updates that come while a result is proposed
    """

    def __init__(
        self, election: Election, holding: CommitState, sign: Sign, verify_under: VerifyUnder, *, late: bool = False
    ) -> None:
        assert election.progress == holding.progress, "an election goes by what its peer holds"
        self.election, self.late = election, late
        self.holding = holding
        self._sign, self._verify_under = sign, verify_under
        self._durable: deque[bytes] = deque(maxlen=MODELS_MAX)  # the last ones stored, as `ConsensusState` keeps them
        self._waiting: dict[bytes, tuple[str, Propose | Commit]] = {}  # for the model with this digest
        self._term_led = 0  # while this peer coordinates
        self._open: Proposal | None = None
        self._accepted: dict[str, bytes] = {}
        self._updates: dict[str, tuple[int, bytes]] = {}

    @property
    def gathering(self) -> bool:
        """True while this peer coordinates a round and has not proposed its result yet."""
        return self.election.leading and self._open is None

    @property
    def awaited(self) -> Collection[bytes]:
        """Digests of the models for which a message waits: the last few that were asked for."""
        return self._waiting.keys()

    # ---------------------------------------------------------------------------------------------------- what happens

    def tick(self, now: int, living: Collection[str], *, stands: bool = True) -> list[ConsensusEffect]:
        """Advance to tick `now`; `living` and `stands` as for the election."""
        out = self._led(self.election.tick(now, living, stands=stands))
        beats = {
            message.to
            for message in out
            if isinstance(message, SendConsensus) and isinstance(message.message, Heartbeat | ShortHeartbeat)
        }
        return [*out, *self._proposals(beats)]

    def received(self, sender: str, message: ConsensusContent) -> list[ConsensusEffect]:
        """Handle a message of another member."""
        match message:
            case VoteRequest():
                out = self._led(self.election.on_vote_request(sender, message))
                return [*out, *self._help(sender, message.progress)]
            case VoteReply():
                return self._led(self.election.on_vote_reply(sender, message))
            case Heartbeat(leader_certificate, progress):
                return [
                    *self._led(self.election.on_heartbeat(sender, leader_certificate)),
                    *self._help(sender, progress),
                ]
            case ShortHeartbeat(progress=progress):
                return [*self._led(self.election.on_short_heartbeat(sender, message)), *self._help(sender, progress)]
            case HeartbeatReply(_, progress):
                return [*self._led(self.election.on_heartbeat_reply(sender, message)), *self._help(sender, progress)]
            case Propose(proposal):
                return self._on_propose(sender, proposal)
            case Accept():
                return self._on_accept(sender, message)
            case Commit(certificate):
                return self._on_commit(sender, certificate)

    def holds(self, digest: bytes) -> list[ConsensusEffect]:
        """Note that the model with this digest is durable here, and handle the message that waits for it."""
        if digest in self._durable:
            self._durable.remove(digest)
        self._durable.append(digest)
        waiting = self._waiting.pop(digest, None)
        return self.received(*waiting) if waiting else []

    def propose(self, digest: bytes) -> list[ConsensusEffect]:
        """Propose the model with this digest, which this coordinator made for the round and which is durable here."""
        assert self.gathering, "who proposes coordinates, and has not proposed yet"
        proposal = Proposal(self.election.hard_state.term, self.holding.round + 1, self._next_roster(), digest)
        return self._issue(proposal)

    def on_update(self, sender: str, term: int, round_: int, digest: bytes) -> list[ConsensusEffect]:
        """Count a member's update (with this digest) for a round of this term, or reject it."""
        if not self.election.leading or term != self.election.hard_state.term:
            text = f"an update for term {term}, but the term is {self.election.hard_state.term}"
            return [Rejection("stale_term", text, sender), self._follow(sender)]
        if round_ > self.holding.round + 1:
            return [Rejection("round_gap", f"an update for round {round_} after {self.holding.round}", sender)]
        if not self.late and (round_ <= self.holding.round or self._open is not None):
            return [Rejection("round_closed", f"an update for round {round_}, which is over", sender)]
        known = self._updates.get(sender)
        if known is not None and known[0] == round_:
            if known[1] == digest:
                return []
            return [Rejection("second_update", f"another update for round {round_}", sender)]
        self._updates[sender] = round_, digest
        return [CountUpdate(sender, round_, digest)]

    def announce(self, voter_set: VoterSet) -> None:
        """Remember the voter set of another roster; a coordinator proposes it when its turn comes."""
        self.election.announce(voter_set)

    def abstain(self) -> list[ConsensusEffect]:
        """Coordinate no more and stand no more, until this peer votes again."""
        return self._led(self.election.abstain())

    # ------------------------------------------------------------------------------------------------ the coordinator's

    def _led(self, out: list[ConsensusEffect]) -> list[ConsensusEffect]:
        """Return the election's outputs, and those that follow if this peer began or ceased to coordinate."""
        term = self.election.hard_state.term if self.election.leading else 0
        if term == self._term_led:
            return out
        self._term_led = term
        self._close()
        return [*out, *self._finish(term)] if term else out

    def _finish(self, term: int) -> list[ConsensusEffect]:
        """Propose again the proposal that this peer accepted in an earlier term: it may be in force."""
        accepted = self.holding.accepted
        return self._issue(replace(accepted, term=term)) if accepted else []

    def _close(self) -> None:
        self._open = None
        self._accepted, self._updates = {}, {}

    def _issue(self, proposal: Proposal) -> list[ConsensusEffect]:
        self._open = proposal
        self._accepted = {self.election.me: self._signature(proposal)}
        return [*self._accept(proposal), *self._proposals(self.election.audience), *self._counted()]

    def _proposals(self, to: Collection[str]) -> list[ConsensusEffect]:
        if self._open is None:
            return []
        missing = self._acceptors(self._open).intersection(to) - self._accepted.keys()
        return [SendConsensus(peer, Propose(self._open)) for peer in sorted(missing)]

    def _counted(self) -> list[ConsensusEffect]:
        if self._open is None or not self._carried(self._open, self._accepted, after=True):
            return []
        return self._apply(Certificate(self._open, tuple(sorted(self._accepted.items()))))

    def _on_accept(self, sender: str, accept: Accept) -> list[ConsensusEffect]:
        proposal = self._open
        if proposal is None or (accept.term, accept.round) != (proposal.term, proposal.round):
            return []
        if sender not in self._acceptors(proposal):
            return [Rejection("unknown_peer", f"{sender} is not a voter of roster {proposal.roster}", sender)]
        text = acceptance_text(self.election.scope, sender, proposal)
        if not self._verify_under(proposal.roster)(sender, text, accept.signature):
            return [Rejection("bad_signature", f"accepts round {proposal.round} with another's signature", sender)]
        self._accepted[sender] = accept.signature
        return self._counted()

    def _next_roster(self) -> int:
        """Return the number of the newest roster whose voters differ from the present ones by at most one."""
        now = self.election.voter_set
        near = (each for each in self.election.known.values() if each.near(now))
        return max(each.number for each in near if each.number >= now.number)

    # ----------------------------------------------------------------------------------------------------- everybody's

    def _on_propose(self, sender: str, proposal: Proposal) -> list[ConsensusEffect]:
        term, holding = self.election.hard_state.term, self.holding
        if proposal.term > term + TERM_JUMP_MAX:
            return [Rejection("term_jump", f"a proposal of term {proposal.term} after {term}", sender)]
        if proposal.term < term:
            return [
                Rejection("stale_term", f"a proposal of term {proposal.term}, but the term is {term}", sender),
                self._follow(sender),
            ]
        if proposal.term > term or self.election.coordinator is None:
            return []  # the sender's heartbeat is on the way, and then it proposes this again
        if sender != self.election.coordinator:
            return [Rejection("two_coordinators", f"a proposal of term {term}, which another peer coordinates", sender)]
        if proposal.round <= holding.round:
            text = f"a proposal for round {proposal.round}; {holding.round} is applied"
            return [Rejection("already_applied", text, sender), *self._help(sender, Progress(proposal.round - 1))]
        if proposal.round > holding.round + 1 or proposal.roster not in self.election.known:
            text = f"a proposal for round {proposal.round} of roster {proposal.roster}; {holding.round} is applied"
            return [Rejection("round_gap", text, sender), self._follow(sender)]
        if backward := self._goes_back(sender, proposal):
            return backward
        if self._contradicts(proposal):
            return [Rejection("digest_mismatch", f"two proposals for round {proposal.round} in term {term}", sender)]
        if not self._has(proposal.digest):
            return self._wait_for(proposal.digest, sender, Propose(proposal))
        if self.election.me not in self._acceptors(proposal):
            return []
        return [*self._accept(proposal), SendConsensus(sender, Accept(term, proposal.round, self._signature(proposal)))]

    def _on_commit(self, sender: str, certificate: Certificate) -> list[ConsensusEffect]:
        proposal, holding = certificate.proposal, self.holding
        if proposal.term > self.election.hard_state.term + TERM_JUMP_MAX:
            return [
                Rejection("term_jump", f"a round of term {proposal.term} after {self.election.hard_state.term}", sender)
            ]
        if proposal.round < holding.round:
            return []
        if self._contradicts(proposal):
            return [Rejection("digest_mismatch", f"another model for round {proposal.round}", sender)]
        if proposal.round == holding.round:
            return []
        if backward := self._goes_back(sender, proposal):
            return backward
        if proposal.roster not in self.election.known:
            text = f"round {proposal.round} under roster {proposal.roster}, which is not known here"
            return [Rejection("round_gap", text, sender)]
        voters = dict(certificate.acceptances)
        carried = self._carried(proposal, voters, after=False)
        if not carried or not acceptances_hold(self.election.scope, certificate, self._verify_under):
            return [Rejection("bad_signature", f"round {proposal.round} without a majority's acceptances", sender)]
        if not self._carried(proposal, voters, after=proposal.round == holding.round + 1 > 1):
            # Peers of a later roster began without ours: the sender is not to blame, and a later round brings us in.
            text = f"round {proposal.round} without a majority of roster {holding.roster}, which is in force here"
            return [Rejection("round_gap", text, sender)]
        if self._has(proposal.digest):
            return self._apply(certificate)
        gap = proposal.round > holding.round + 1
        late: list[ConsensusEffect] = (
            [Rejection("round_gap", f"round {proposal.round} after {holding.round}", sender)] if gap else []
        )
        return [*late, *self._wait_for(proposal.digest, sender, Commit(certificate))]

    def _accept(self, proposal: Proposal) -> list[ConsensusEffect]:
        return [] if proposal == self.holding.accepted else self._hold(replace(self.holding, accepted=proposal))

    def _apply(self, certificate: Certificate) -> list[ConsensusEffect]:
        """Apply a committed round; the coordinator sends its certificate to all members."""
        proposal = certificate.proposal
        out = [
            *self.election.committed(proposal.term),
            *self._hold(CommitState(proposal.roster, None, certificate)),
            ApplyModel(proposal),
        ]
        self._close()
        if self.election.leading:
            out += [SendConsensus(peer, Commit(certificate)) for peer in self.election.audience]
        return [*out, *self._led(self.election.enforce(proposal.roster))]

    def _hold(self, holding: CommitState) -> list[ConsensusEffect]:
        self.holding = holding
        self.election.progress = holding.progress
        return [PersistConsensus(holding)]

    def _help(self, peer: str, progress: Progress) -> list[ConsensusEffect]:
        """Return the newest certificate for a peer that is behind."""
        applied = self.holding.applied
        return [SendConsensus(peer, Commit(applied))] if applied and progress.applied < applied.proposal.round else []

    def _wait_for(self, digest: bytes, holder: str, message: Propose | Commit) -> list[ConsensusEffect]:
        self._waiting[digest] = holder, message
        if len(self._waiting) > MODELS_MAX:
            del self._waiting[next(iter(self._waiting))]
        return [Fetch(holder, digest)]

    # ------------------------------------------------------------------------------------------------------- judgement

    def _carried(self, proposal: Proposal, by: Iterable[str], *, after: bool) -> bool:
        """Return whether these acceptances put a proposal in force.

        That takes a majority of the roster that the proposal names and of the roster in force before. A peer knows the
        latter if it has applied the round before (`after`). A peer that is further behind, or has applied no round and
        only knows the roster with which it came, goes by the named roster alone.
        """
        named, voters = self.election.known[proposal.roster], set(by)
        return named.carried(voters) and (not after or self.election.voter_set.carried(voters))

    def _acceptors(self, proposal: Proposal) -> frozenset[str]:
        return self.election.known[proposal.roster].voters | self.election.voter_set.voters

    def _goes_back(self, sender: str, proposal: Proposal) -> list[ConsensusEffect]:
        """Return the rejection of a later round that names an earlier roster than the applied one; else nothing."""
        now = self.holding.roster
        if self.holding.round == 0 or proposal.roster >= now:
            return []
        text = f"round {proposal.round} under roster {proposal.roster}, after round {self.holding.round} under {now}"
        return [Rejection("stale_roster", text, sender)]

    def _contradicts(self, proposal: Proposal) -> bool:
        """Return whether this is another model for a round that was applied, or accepted in the same term."""
        accepted, applied = self.holding.accepted, self.holding.applied
        if applied and applied.proposal.round == proposal.round:
            return applied.proposal.digest != proposal.digest
        same = accepted is not None and (accepted.term, accepted.round) == (proposal.term, proposal.round)
        return same and accepted != proposal

    def _has(self, digest: bytes) -> bool:
        return digest in self._durable or digest in _digests(self.holding)

    def _signature(self, proposal: Proposal) -> bytes:
        return self._sign(acceptance_text(self.election.scope, self.election.me, proposal))

    def _follow(self, to: str) -> SendConsensus:
        return SendConsensus(to, HeartbeatReply(self.election.hard_state.term, self.election.progress))


def _digests(holding: CommitState) -> list[bytes]:
    applied = holding.applied.proposal if holding.applied else None
    return [each.digest for each in (applied, holding.accepted) if each is not None]
