"""Who decides in a consensus group: the rosters that it knows, and whether this peer may vote.

A later roster counts when it is decreed. Earlier ones are handed to who was just met, since whoever coordinates may do
so by a leader certificate of that time.

A voter that lost its disk may have promised something that it does not know. It hears, trains and applies, but neither
votes nor accepts until a later roster is in force. To be told by others that it was there before, a peer that begins
with an empty disk waits until more than half of the other voters have heard of this process: of those whom it met
before it promised anything one at least is among them, and remembers it.
"""

from __future__ import annotations

from typing import Protocol, TypeGuard

from fedpeer.peer.consensus.round_commit import RoundCommit
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.consensus_state import ConsensusState, voter_set_known
from fedpeer.peer.state.entries import VotingAllowed
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.ballots import Commit, Heartbeat, Message, Out
from fedpeer.peer.wire.messages import RosterNews
from fedpeer.peer.wire.roster import Roster, RosterError, from_bytes, to_bytes
from fedpeer.rejection import Rejection


class VotingIn(Protocol):
    """What is asked here of a consensus group: its group, what it keeps, and its machine of elections and committed
    rounds.
    """

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


def signers(said: Message) -> frozenset[str]:
    """Whose signatures it hands over."""
    match said:
        case Heartbeat(leader_certificate):
            return frozenset(author for author, _ in leader_certificate.votes)
        case Commit(certificate):
            return frozenset(author for author, _ in certificate.acceptances)
    return frozenset()


def unproven_vote(out: Out) -> TypeGuard[Rejection]:
    """Whether it refuses a signature."""
    return isinstance(out, Rejection) and out.code == "bad_signature"


def learn_roster(consensus: VotingIn, roster: Roster) -> None:
    """A later roster is known."""
    found, now = (
        consensus.state.peer_groups.consensus_by_group[consensus.group].voter_set(roster),
        consensus.round_commit.election.voter_set,
    )
    if consensus.spec.fixed and found.number > now.number and found.members != now.members:
        many = f"the server has a place for each of the {len(now.members)} peers of roster {now.number}"
        text = f"{many}, and roster {found.number} has others: rounds end here; begin anew with empty state folders"
        consensus.state.note("error", "other_clients", text, group=consensus.group)
        consensus.state.stop(2, text)
        return
    if found.number not in consensus.consensus_state.rosters:
        consensus.state.write(voter_set_known(consensus.group, found, to_bytes(roster)))
    consensus.round_commit.announce(found)


def read_news(state: NodeState, peer: str, news: RosterNews) -> Roster | None:
    """The roster that somebody passes on, later or earlier than ours; None where it is refused."""
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
    """A roster from before this peer came: who coordinates may do so by a leader certificate of that time."""
    if news.number in consensus.consensus_state.rosters:
        return
    roster = read_news(consensus.state, peer, news)
    if roster is not None:
        learn_roster(consensus, roster)


def introduce(consensus: VotingIn, peer: str) -> None:
    """Hand over the earlier rosters that still matter to somebody who was just met."""
    now = consensus.state.peer_groups.roster.number
    for number, text in sorted(consensus.consensus_state.rosters.items()):
        if number < now and number in consensus.round_commit.election.known:
            consensus.state.send(peer, RosterNews(number=number, text=text))


def allow_voting(consensus: VotingIn) -> None:
    """Find out whether this peer may have promised something on a disk that is gone."""
    state, consensus_state = consensus.state, consensus.consensus_state
    number = state.peer_groups.roster.number
    if state.starts.amnesia and not consensus_state.lost:
        state.write(VotingAllowed(group=consensus.group, lost=number))
        text = f"this peer was there before, and its disk is gone: it does not vote under roster {number}"
        state.note("warning", "no_vote", f"{text}; issue a new roster to let it", number=number)
    elif not consensus_state.voting_allowed:
        voters = consensus.round_commit.election.voter_set.voters - {state.me}
        known = [p for p in voters if p in state.others and state.others[p].met and state.others[p].knows_us]
        if not voters or 2 * len(known) > len(voters):
            state.write(VotingAllowed(group=consensus.group, lost=0))
