"""Voters of a consensus group: the rosters that it knows, and whether this peer may vote.

A later roster counts once a committed round names it. Earlier rosters are passed to peers that were just met, since the
coordinator may hold a leader certificate of that time.

A voter that lost its disk, or found an older one, may have promised something that it does not know. Its store shows
that, or its own signature that another peer shows it (`reminders.py`, `forgotten_promise`). The voter then gives up its
vote: it follows, trains and applies, but neither votes nor stands nor accepts until the roster in force is later than
any under which it may have promised something. More than half of the other voters know the newest of these rosters, so
it first asks for their rosters. If no majority is possible without this peer (one or two voters), the other voter takes
part in each majority and remembers; so this peer votes again once the two have met. A voter that states a later roster
shows it in answer to each Hello of this peer; a voter that does not show it for two minutes lies, and is not asked.
Otherwise one liar of three voters could keep another one from ever voting again.

A peer that one roster takes out of the group, and a later one brings back, keeps its term and vote, but not what it
accepted: it neither votes nor accepts under the rosters from before it left.

A peer that comes with a later roster and has no round yet takes that roster for the one in force, though no round may
have named it. So while other peers that it has met have rounds, it neither stands nor votes for a candidate without a
round: two newcomers of three are a majority of their roster, and would begin anew while the peer that began is away.
The statements of the other peers suffice for that while they are away, up to ten minutes; peers that are there show a
round within two minutes (`begins_anew`). Without a server, trainings beyond the first averaging of a group count as a
round of it, if they were before this peer's own: another group may take a peer without a mean as far. Which peers these
are is durable. A peer that has trained so far itself when the group comes to be knows of none, and begins at once.

A peer that starts on an empty disk waits until more than half of the other voters have met this process. An earlier
process had met more than half of them before it promised anything, so at least one of them knows of it. Voters whose
messages are not taken do not count: they lie, and what they know of an earlier process would be worth nothing.
Otherwise one liar of three voters could keep the other two from starting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, TypeGuard

from fedpeer.peer.consensus.roster_keys import RosterKeys
from fedpeer.peer.consensus.round_commit import RoundCommit
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.consensus_state import ConsensusState, voter_set_known
from fedpeer.peer.state.entries import OthersAhead, VotingAllowed
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.consensus_messages import (
    Certificate,
    Commit,
    ConsensusContent,
    ConsensusEffect,
    HardState,
    Heartbeat,
    LeaderCertificate,
    Signatures,
    VoterSet,
    acceptance_text,
    acceptances_hold,
    vote_text,
)
from fedpeer.peer.wire.messages import RosterNews
from fedpeer.peer.wire.roster import Roster, RosterError, from_bytes, to_bytes
from fedpeer.rejection import Rejection

#: Ticks within which a peer that states a later roster shows it: time for a dozen Hellos, of which one is enough.
_SHOWN_TICKS = 4800


class VotingIn(Protocol):
    """The part of a `RoundConsensus` that this module needs."""

    @property
    def state(self) -> NodeState: ...
    @property
    def group(self) -> str: ...
    @property
    def spec(self) -> AlgorithmSpec: ...
    @property
    def consensus_state(self) -> ConsensusState: ...
    @property
    def round_commit(self) -> RoundCommit: ...


def _signed(message: ConsensusContent) -> tuple[int, Signatures]:
    """Return the signatures of others that a message carries, and the number of the roster under which they signed."""
    match message:
        case Heartbeat(leader_certificate):
            return leader_certificate.roster, leader_certificate.votes
        case Commit(certificate):
            return certificate.proposal.roster, certificate.acceptances
    return 0, ()


def unproven_vote(out: ConsensusEffect) -> TypeGuard[Rejection]:
    """Return whether this output rejects a signature."""
    return isinstance(out, Rejection) and out.code == "bad_signature"


def may_hold(consensus: VotingIn, keys: RosterKeys, message: ConsensusContent) -> bool:
    """Return whether what a message proves may be true, though a signature in it does not fit a key known here.

    Voters that a round's roster puts out accept the round, too, and the earlier roster that names their keys may not be
    known here. The other signers have to be a majority of the round's roster, with signatures that fit; otherwise the
    sender could add any names, and nothing would be wrong. A signature under a roster that is known here only by its
    number, as in states of early releases, proves nothing either way.
    """
    number, signatures = _signed(message)
    if not keys.known(number):
        return bool(signatures)
    if not isinstance(message, Commit):
        return False
    certain = tuple(each for each in signatures if keys.is_certain(each[0], number))
    election, rest = consensus.round_commit.election, replace(message.certificate, acceptances=certain)
    named = election.known.get(number)
    if len(certain) == len(signatures) or named is None or not named.carried(author for author, _ in certain):
        return False
    return acceptances_hold(election.scope, rest, keys.verify_under)


def learn_roster(consensus: VotingIn, roster: Roster) -> None:
    """Remember the voter set of a roster; stop if the algorithm cannot have other clients."""
    found, now = (
        consensus.state.peer_groups.consensus_by_group[consensus.group].voter_set(roster),
        consensus.round_commit.election.voter_set,
    )
    if consensus.spec.fixed and found.number > now.number and found.members != now.members:
        many = f"the server has a place for each of the {len(now.members)} peers of roster {now.number}"
        text = f"{many}, and roster {found.number} has others: rounds end here; start again with empty state folders"
        consensus.state.note("error", "other_clients", text, group=consensus.group)
        consensus.state.stop(2, text)
        return
    if found.number not in consensus.consensus_state.rosters:
        consensus.state.write(voter_set_known(consensus.group, found, to_bytes(roster)))
    consensus.round_commit.announce(found)


def read_news(state: NodeState, peer: str, news: RosterNews) -> Roster | None:
    """Return the roster that a peer passes on, later or earlier than ours; None, and a charge, if it is invalid."""
    try:
        roster = from_bytes(news.text, state.peer_groups.roster.authority)
    except RosterError as error:
        state.count(error.code, peer, str(error))
        return None
    if roster.number != news.number:
        state.count("bad_metadata", peer, f"roster {roster.number} was sent as number {news.number}")
        return None
    return roster


def on_earlier_roster(consensus: VotingIn, peer: str, news: RosterNews) -> None:
    """Remember a roster from before this peer came: the coordinator's certificate may be of that time."""
    if news.number in consensus.consensus_state.rosters:
        return
    roster = read_news(consensus.state, peer, news)
    if roster is not None:
        learn_roster(consensus, roster)


def introduce(consensus: VotingIn, peer: str) -> None:
    """Send the earlier rosters that still matter to a peer that was just met."""
    now = consensus.state.peer_groups.roster.number
    for number, text in sorted(consensus.consensus_state.rosters.items()):
        if text and number < now and number in consensus.round_commit.election.known:  # an early release kept no text
            consensus.state.send(peer, RosterNews(number=number, text=text))


def allow_voting(consensus: VotingIn) -> None:
    """Let this peer vote once it is known what it may have promised before it lost its memory, if it did."""
    state, consensus_state = consensus.state, consensus.consensus_state
    if consensus_state.voting_allowed:
        return
    number, election = state.peer_groups.roster.number, consensus.round_commit.election
    voter_sets = [election.voter_set]
    if consensus_state.lost:
        voter_sets.append(state.peer_groups.consensus_by_group[consensus.group].voter_set(state.peer_groups.roster))
    if not all(_knows_enough(state, each, number if consensus_state.lost else None) for each in voter_sets):
        return
    lost = max(consensus_state.lost, number) if consensus_state.lost else 0
    state.write(VotingAllowed(group=consensus.group, lost=lost))
    if not consensus.consensus_state.votes:
        text = f"this peer has lost its memory: it does not vote under roster {lost}"
        state.note("warning", "no_vote", f"{text}; issue a new roster to let it vote", number=lost)


def begins_anew(consensus: VotingIn, candidate: str | None = None) -> bool:
    """Return whether a round by this peer, or by others without a round, would begin anew: some peer has a later one.

    Under a federation's first roster all members begin without a round. A `candidate` without a round is not such a
    peer. Nor is one of two voters, without whose vote nobody begins: if it has a round, it votes for none without one.
    """
    state, voter_set = consensus.state, consensus.round_commit.election.voter_set
    if consensus.round_commit.holding.round:
        return False
    ahead = consensus.consensus_state.ahead & state.others.keys() - {candidate}
    without = {peer for peer in ahead if voter_set.carried(voter_set.voters - {peer})}
    waits = state.ran < _SHOWN_TICKS
    return any(waits if state.others.present(peer) else not state.others.long_away(peer) for peer in without)


def note_others_ahead(consensus: VotingIn) -> None:
    """Note which members have trained beyond the group's first averaging while this peer has not."""
    state, holding, election = consensus.state, consensus.round_commit.holding, consensus.round_commit.election
    first = state.peer_groups.gossip[consensus.group].every  # training that is followed by the first round
    if holding.round or holding.roster == 1 or state.durable.round > first:
        return
    others = {*election.audience} & state.others.keys() - consensus.consensus_state.ahead
    ahead = tuple(sorted(peer for peer in others if state.others.round_of(peer) > first))
    if ahead:
        state.write(OthersAhead(group=consensus.group, members=ahead))


def _knows_enough(state: NodeState, voter_set: VoterSet, number: int | None) -> bool:
    """Return whether more than half of the other voters have met this process, and know no roster later than `number`.

    With None the rosters that they know do not matter.
    """
    others = voter_set.voters - {state.me}
    heard = [
        state.others[p] for p in others if p in state.others and state.others.listens(p) and not _makes_up(state, p)
    ]
    known = [each for each in heard if each.met and each.knows_us and (number is None or each.roster <= number)]
    return not others or 2 * len(known) > len(heard) > 0


def _makes_up(state: NodeState, peer: str) -> bool:
    """Return whether a peer has stated a later roster than ours for so long without showing it that none exists."""
    since = state.others[peer].later_since
    return since is not None and state.now - max(since, state.enrolled_at or 0) >= _SHOWN_TICKS


def forgotten_promise(consensus: VotingIn, message: ConsensusContent) -> int | None:
    """Return the roster under which this peer signed a vote or an acceptance that it does not remember; None: none.

    Only this peer's own signature shows that; otherwise a liar could take any peer's vote. Promises under rosters for
    which the vote is lost already, or from before this peer left the group, show nothing new.
    """
    state, consensus_state = consensus.state, consensus.consensus_state
    me, scope = state.me, consensus.round_commit.election.scope
    now, holding = consensus_state.hard_state, consensus_state.holding
    match message:
        case Heartbeat(LeaderCertificate(term, candidate, roster, signatures)):
            known = term < now.term or now == HardState(term, candidate)
            text = vote_text(scope, me, term, roster, candidate)
        case Commit(Certificate(proposal, signatures)):
            place, roster, accepted = (proposal.round, proposal.term), proposal.roster, holding.accepted
            taken = proposal.round <= holding.round
            taken = taken or (accepted is not None and (accepted.round, accepted.term) >= place)
            known = taken and proposal.term <= now.term
            text = acceptance_text(scope, me, proposal)
        case _:
            return None
    if known or roster <= consensus_state.forgotten:
        return None
    own = (signature for author, signature in signatures if author == me)
    return roster if any(state.verify(me, text, signature) for signature in own) else None
