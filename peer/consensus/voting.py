"""Who decides in a council: the rosters that it knows, and whether this peer may vote.

A later roster counts when it is decreed. Earlier ones are handed to who was just met, since whoever coordinates may do
so by a mandate of that time.

A voter that lost its disk may have promised something that it does not know. It hears, trains and applies, but neither
votes nor accepts until a later roster is in force. To be told by others that it was there before, a peer that begins
with an empty disk waits until more than half of the other voters have heard of this process: of those whom it met
before it promised anything one at least is among them, and remembers it.
"""

from __future__ import annotations

from typing import Protocol, TypeGuard

from fedpeer.peer.consensus.decree import RoundCommit
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.consensus_state import ConsensusState, voter_set_known
from fedpeer.peer.state.entries import VotingAllowed
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.ballots import Commit, Heartbeat, Message, Out
from fedpeer.peer.wire.messages import RosterNews
from fedpeer.peer.wire.roster import Roster, RosterError, from_bytes, to_bytes
from fedpeer.rejection import Rejection


class VotingIn(Protocol):
    """What is asked here of a council: its group, what it keeps, and its machine of elections and decrees."""

    @property
    def life(self) -> NodeState: ...
    @property
    def group(self) -> str: ...
    @property
    def course(self) -> AlgorithmSpec: ...
    @property
    def chamber(self) -> ConsensusState: ...
    @property
    def decrees(self) -> RoundCommit: ...


def signers(said: Message) -> frozenset[str]:
    """Whose signatures it hands over."""
    match said:
        case Heartbeat(mandate):
            return frozenset(author for author, _ in mandate.votes)
        case Commit(certificate):
            return frozenset(author for author, _ in certificate.acceptances)
    return frozenset()


def unproven_vote(out: Out) -> TypeGuard[Rejection]:
    """Whether it refuses a signature."""
    return isinstance(out, Rejection) and out.code == "bad_signature"


def learn_roster(council: VotingIn, roster: Roster) -> None:
    """A later roster is known."""
    found, now = council.life.circle.councils[council.group].electorate(roster), council.decrees.election.electorate
    if council.course.fixed and found.number > now.number and found.members != now.members:
        many = f"the server has a place for each of the {len(now.members)} peers of roster {now.number}"
        text = f"{many}, and roster {found.number} has others: rounds end here; begin anew with empty state folders"
        council.life.note("error", "other_clients", text, group=council.group)
        council.life.stop(2, text)
        return
    if found.number not in council.chamber.rosters:
        council.life.write(voter_set_known(council.group, found, to_bytes(roster)))
    council.decrees.announce(found)


def read_news(life: NodeState, peer: str, news: RosterNews) -> Roster | None:
    """The roster that somebody passes on, later or earlier than ours; None where it is refused."""
    try:
        roster = from_bytes(news.text, life.circle.roster.authority)
    except RosterError as error:
        life.count(error.code, peer, str(error))
        return None
    if roster.number != news.number:
        life.count("bad_metadata", peer, f"roster {roster.number} was sent as number {news.number}")
        return None
    return roster


def hear_earlier(council: VotingIn, peer: str, news: RosterNews) -> None:
    """A roster from before this peer came: who coordinates may do so by a mandate of that time."""
    if news.number in council.chamber.rosters:
        return
    roster = read_news(council.life, peer, news)
    if roster is not None:
        learn_roster(council, roster)


def introduce(council: VotingIn, peer: str) -> None:
    """Hand over the earlier rosters that still matter to somebody who was just met."""
    now = council.life.circle.roster.number
    for number, text in sorted(council.chamber.rosters.items()):
        if number < now and number in council.decrees.election.known:
            council.life.send(peer, RosterNews(number=number, text=text))


def swear(council: VotingIn) -> None:
    """Find out whether this peer may have promised something on a disk that is gone."""
    life, chamber = council.life, council.chamber
    number = life.circle.roster.number
    if life.amnesia and not chamber.lost:
        life.write(VotingAllowed(group=council.group, lost=number))
        text = f"this peer was there before, and its disk is gone: it does not vote under roster {number}"
        life.note("warning", "no_vote", f"{text}; issue a new roster to let it", number=number)
    elif not chamber.sworn:
        voters = council.decrees.election.electorate.voters - {life.me}
        known = [p for p in voters if p in life.others and life.others[p].met and life.others[p].knows_us]
        if not voters or 2 * len(known) > len(voters):
            life.write(VotingAllowed(group=council.group, lost=0))
