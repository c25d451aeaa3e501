"""Consensus state of one group: all that a peer must not forget of its coordinated rounds.

It has the hard state of the election, the certificate of the round in force and the accepted proposal, the models that
both name, the state of the peer's own client, and the training whose round is not over. Like the durable state around
it, it changes by entries only (`entries.py`).

An update is stored before it is sent, together with the client's state after that training. So after a restart the same
bytes are sent, and the client's state after the round follows from the same two states, whatever happened in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from fedpeer.peer.state.entries import (
    Averaged,
    ClientStateSaved,
    CommitStateChanged,
    ConsensusEntry,
    ModelStored,
    OthersAhead,
    TermChanged,
    UpdateMade,
    VoteLost,
    VoterSetKnown,
    VotingAllowed,
)
from fedpeer.peer.wire.consensus_messages import MODELS_MAX, Certificate, CommitState, HardState, Proposal, VoterSet

#: Voter sets that are kept: the one in force, later ones, and earlier ones to which a peer that is behind may refer.
VOTER_SETS_MAX = 16


@dataclass(frozen=True, slots=True)
class PendingUpdate:
    """A training whose round may not be over: its update, and the client's state after it."""

    round: int
    update: bytes
    client: bytes


#: Most voters with which every single voter is needed for a majority.
_ALL_NEEDED = 2


@dataclass(frozen=True, eq=False)
class ConsensusState:
    """Durable state of a peer in the consensus of one group.

    client          state of this peer's client after round `settled`; b"" without a server
    holding         commit state: the certificate in force, and the proposal accepted beyond it
    voter_sets      known ones by number; `rosters`: the signed texts that name them, for peers that come later
    hard_state      term and vote of the election
    models          contents by digest (`leaf_bytes.py`): of the applied and the accepted proposal, and the last few
                    that were stored
    pending         update of the last training, until its round is over
    voting_allowed  it is known under which rosters this peer may have made promises that it forgot; before that it does
                    not vote
    lost            number of the newest of these rosters: under it and earlier ones this peer does not vote, if a
                    majority is possible without it; 0: nothing was forgotten
    left            number of the last roster with which this peer was a member before it left the group, with the same
                    effect; 0: it never left
    ahead           members that trained beyond the first averaging before this peer did; they may have its mean
    """

    client: bytes
    holding: CommitState
    voter_sets: Mapping[int, VoterSet]
    hard_state: HardState = field(default_factory=HardState)
    models: Mapping[bytes, bytes] = field(default_factory=dict)
    settled: int = 0
    pending: PendingUpdate | None = None
    voting_allowed: bool = False
    lost: int = 0
    rosters: Mapping[int, bytes] = field(default_factory=dict)
    left: int = 0
    ahead: frozenset[str] = frozenset()

    @property
    def votes(self) -> bool:
        """True if this peer may vote and accept under the roster in force."""
        return self.voting_allowed and self.remembers(self.holding.roster)

    def remembers(self, number: int) -> bool:
        """Return whether no promise that this peer has forgotten matters under a roster.

        With one or two voters, all take part in each majority, so the other voter remembers.
        """
        known = self.voter_sets.get(number)
        return number > self.forgotten or (known is not None and len(known.voters) <= _ALL_NEEDED)

    @property
    def forgotten(self) -> int:
        """Number of the newest roster under which this peer may have made a promise that it forgot; 0: none."""
        return max(self.lost, self.left)

    def put_aside(self) -> ConsensusState:
        """Return what a peer keeps of a group that it leaves: its term and vote, and up to which roster that is all.

        So it accepts no proposal of an earlier term, and does not vote twice. What it has accepted or applied, which
        decides for whom it may vote under these rosters, is gone with the models.
        """
        left = max(self.voter_sets, default=self.left)
        return ConsensusState(
            b"",
            CommitState(left),
            {},
            hard_state=self.hard_state,
            voting_allowed=self.voting_allowed,
            lost=self.lost,
            left=left,
        )

    def taken_up(self, blank: ConsensusState) -> ConsensusState:
        """Return the state with which a peer goes on in a group: this one, or a blank one if it was put aside."""
        if self.voter_sets:
            return self
        return replace(
            blank, hard_state=self.hard_state, voting_allowed=self.voting_allowed, lost=self.lost, left=self.left
        )

    @property
    def content(self) -> bytes | None:
        """Content of the model in force (`leaf_bytes.py`); None before the first round is in force."""
        applied = self.holding.applied
        return None if applied is None else self.models[applied.proposal.digest]

    @property
    def size(self) -> int:
        """Approximate number of bytes of the states in it."""
        pending = 0 if self.pending is None else len(self.pending.update) + len(self.pending.client)
        return len(self.client) + pending + sum(map(len, self.models.values()))

    def changed(self, entry: ConsensusEntry) -> ConsensusState:
        """Return the consensus state after this entry."""
        match entry:
            case TermChanged():
                return replace(self, hard_state=HardState(entry.term, entry.voted))
            case CommitStateChanged():
                return _pruned(replace(self, holding=holding_of(entry)))
            case ModelStored():
                others = {digest: content for digest, content in self.models.items() if digest != entry.digest}
                return _pruned(replace(self, models={**others, entry.digest: entry.content}))  # now the last one
            case UpdateMade():
                return replace(self, pending=PendingUpdate(entry.round, entry.update, entry.client))
            case ClientStateSaved():
                return replace(self, client=entry.client, settled=entry.round, pending=None)
            case Averaged():
                return replace(self, settled=entry.round, pending=None)
            case VoterSetKnown():
                known = {**self.voter_sets, entry.number: _voter_set_of(entry)}
                earlier = sorted(number for number in known if number < self.holding.roster)
                gone = set(earlier[: max(0, len(known) - VOTER_SETS_MAX)])
                texts = {**self.rosters, entry.number: entry.text}
                return replace(
                    self,
                    voter_sets={n: each for n, each in known.items() if n not in gone},
                    rosters={n: each for n, each in texts.items() if n not in gone},
                )
            case VotingAllowed():
                return replace(self, voting_allowed=True, lost=entry.lost)
            case VoteLost():
                return replace(self, voting_allowed=False, lost=max(self.lost, entry.roster))
            case OthersAhead():
                return replace(self, ahead=self.ahead.union(entry.members))
            case _:
                assert_never(entry)


def _pruned(consensus_state: ConsensusState) -> ConsensusState:
    """Drop models that nothing needs; `RoundCommit` relies on the last few that were stored."""
    applied, accepted = consensus_state.holding.applied, consensus_state.holding.accepted
    round_commit = (applied.proposal if applied else None, accepted)
    named = {each.digest for each in round_commit if each is not None}
    recent = list(consensus_state.models)[-MODELS_MAX:]
    return replace(
        consensus_state, models={d: c for d, c in consensus_state.models.items() if d in named or d in recent}
    )


def commit_state_changed(group: str, holding: CommitState) -> CommitStateChanged:
    """Return the entry that makes this the commit state."""
    accepted = None if holding.accepted is None else _plain(holding.accepted)
    certificate = holding.applied
    applied = None if certificate is None else (_plain(certificate.proposal), certificate.acceptances)
    return CommitStateChanged(group=group, roster=holding.roster, accepted=accepted, applied=applied)


def holding_of(entry: CommitStateChanged) -> CommitState:
    """Return the commit state that this entry makes."""
    accepted = None if entry.accepted is None else Proposal(*entry.accepted)
    applied = None if entry.applied is None else Certificate(Proposal(*entry.applied[0]), entry.applied[1])
    return CommitState(entry.roster, accepted, applied)


def voter_set_known(group: str, voter_set: VoterSet, text: bytes = b"") -> VoterSetKnown:
    """Return the entry that makes this voter set known."""
    voters, members = tuple(sorted(voter_set.voters)), tuple(sorted(voter_set.members))
    return VoterSetKnown(group=group, number=voter_set.number, voters=voters, members=members, text=text)


def _voter_set_of(entry: VoterSetKnown) -> VoterSet:
    return VoterSet(entry.number, frozenset(entry.voters), frozenset(entry.members))


def _plain(proposal: Proposal) -> tuple[int, int, int, bytes]:
    return proposal.term, proposal.round, proposal.roster, proposal.digest


# ------------------------------------------------------------------------------------------------------- in a snapshot


def consensus_state_fields(consensus_state: ConsensusState) -> dict[str, Any]:
    """Return a consensus state as plain values for a snapshot."""
    holding, pending = commit_state_changed("", consensus_state.holding), consensus_state.pending
    return {
        "client": consensus_state.client,
        "holding": (holding.roster, holding.accepted, holding.applied),
        "stand": (consensus_state.hard_state.term, consensus_state.hard_state.voted),
        "electorates": [(each.number, each.voters, each.members) for each in _known_voter_sets(consensus_state)],
        "models": list(consensus_state.models.items()),
        "settled": consensus_state.settled,
        "study": pending and (pending.round, pending.update, pending.client),
        "sworn": consensus_state.voting_allowed,
        "lost": consensus_state.lost,
        "left": consensus_state.left,
        "rosters": list(consensus_state.rosters.items()),
        "ahead": sorted(consensus_state.ahead),
    }


def consensus_state_of(fields: Mapping[str, Any]) -> ConsensusState:
    """Return the consensus state of these plain values."""
    roster, accepted, applied = fields["holding"]
    named = (
        VoterSetKnown(group="", number=n, voters=voters, members=members)
        for n, voters, members in fields["electorates"]
    )
    return ConsensusState(
        client=fields["client"],
        holding=holding_of(CommitStateChanged(group="", roster=roster, accepted=accepted, applied=applied)),
        voter_sets={each.number: _voter_set_of(each) for each in named},
        hard_state=HardState(*fields["stand"]),
        models=dict(fields["models"]),
        settled=fields["settled"],
        pending=fields["study"] and PendingUpdate(*fields["study"]),
        voting_allowed=fields["sworn"],
        lost=fields["lost"],
        left=fields.get("left", 0),  # states of earlier releases lack it, and `ahead`
        rosters=dict(fields["rosters"]),
        ahead=frozenset(fields.get("ahead", ())),
    )


def _known_voter_sets(consensus_state: ConsensusState) -> list[VoterSetKnown]:
    return [voter_set_known("", each) for each in consensus_state.voter_sets.values()]
