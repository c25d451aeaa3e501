"""A peer that leaves a group with a coordinator and comes back to it: what it promised before still binds it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpeer.peer.state.consensus_state import ConsensusState
from fedpeer.peer.state.events import Effect, MessageReceived, NewRoster, Send, Tick
from fedpeer.peer.wire.consensus_messages import (
    Accept,
    ConsensusContent,
    Heartbeat,
    LeaderCertificate,
    Progress,
    Proposal,
    Propose,
    VoteReply,
    VoteRequest,
    vote_text,
)
from fedpeer.peer.wire.messages import ConsensusMessage, ModelReply, RosterNews
from fedpeer.peer.wire.roster import sign, to_bytes
from fedpeer.peer.wire.tails import content_digest
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from tests.faults.group_cluster import GroupCluster, world
from tests.faults.peer_cluster import AUTHORITY

ME, OTHER, THIRD = "peer3", "peer1", "peer2"
GROUP = "left"
#: Ticks without a heartbeat after which a peer votes.
SILENT = 200


class Returned:
    """One of three members of a group; it alone knows roster 2, without it there, and roster 3, with it again."""

    def __init__(self) -> None:
        peers = world().peers
        self.cluster = GroupCluster(world(), Faults(links=LinkRules(delay=0.2, jitter=0.2)), roster=peers)
        self.cluster.simulator.start()
        assert self.cluster.reach(3, 1000.0)
        self.node = self.cluster.nodes()[ME]
        self.before = self.state
        first = self.cluster.signed(1, peers)
        entries = tuple(replace(e, models=("everyone", "right") if e.id == ME else e.models) for e in first.entries)
        self.rosters = [
            first,
            sign(replace(first, number=2, entries=entries), AUTHORITY),
            self.cluster.signed(3, peers),
        ]

    @property
    def state(self) -> ConsensusState:
        return self.node.durable.consensus_states[GROUP]

    def goes_by(self, *numbers: int) -> None:
        for number in numbers:
            self.node.step(NewRoster(self.rosters[number - 1]))

    def starts_again(self) -> None:
        self.node = self.node.again(self.node.restore_point())

    def told(self, sender: str, message: ConsensusContent) -> list[Effect]:
        """Pass it a peer's message in the group; return the immediate effects."""
        consensus_message = ConsensusMessage(group=GROUP, message=message)
        self.node.consensus_by_group[GROUP].on_consensus_message(sender, consensus_message)
        return self.node.take_effects()

    def knows(self, *numbers: int) -> None:
        for number in numbers:
            news = RosterNews(number=number, text=to_bytes(self.rosters[number - 1]))
            self.node.step(MessageReceived(OTHER, self.node.durable.met[OTHER], 1, news))

    def waits(self) -> None:
        now = self.node.state.now
        for tick in range(now + 1, now + SILENT):
            self.node.step(Tick(tick))


def said(effects: list[Effect], kind: type[ConsensusContent]) -> list[ConsensusContent]:
    sent = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, ConsensusMessage)]
    return [each.message for each in sent if isinstance(each.message, kind)]


def votes(returned: Returned, roster: int) -> bool:
    """Return whether the member votes for a candidate that is far ahead, under a roster, in the next term."""
    request = VoteRequest(returned.state.hard_state.term + 1, False, roster, Progress(99, 99, 99))
    replies = said(returned.told(OTHER, request), VoteReply)
    return any(isinstance(each, VoteReply) and each.granted for each in replies)


def heartbeat(returned: Returned, term: int) -> Heartbeat:
    """Return a heartbeat of a coordinator that the two other members have elected under roster 1."""
    scope, sign_of = returned.node.consensus_by_group[GROUP].round_commit.election.scope, returned.cluster.node_factory
    text = {peer: vote_text(scope, peer, term, 1, OTHER) for peer in (OTHER, THIRD)}
    certificate = LeaderCertificate(term, OTHER, 1, tuple((p, sign_of._sign(p, t)) for p, t in text.items()))
    return Heartbeat(certificate, Progress())


def test_who_comes_back_to_a_group_votes_under_later_rosters_only() -> None:
    returned = Returned()
    returned.goes_by(2)
    assert GROUP not in returned.node.consensus_by_group
    returned.starts_again()
    returned.goes_by(3)
    returned.waits()
    returned.knows(1)
    assert returned.state.hard_state == returned.before.hard_state, "nor does it vote twice in a term"
    assert 1 in returned.node.consensus_by_group[GROUP].round_commit.election.known
    assert not votes(returned, 1), "it does not know what it accepted under this roster"
    assert votes(returned, 3)


@pytest.mark.parametrize(("roster", "accepts"), [(1, False), (3, True)])
def test_who_comes_back_to_a_group_accepts_no_round_under_an_earlier_roster(roster: int, accepts: bool) -> None:
    returned = Returned()
    returned.goes_by(2, 3)
    returned.knows(1)
    term, content = returned.before.hard_state.term + 1, returned.before.content
    assert content is not None
    returned.told(OTHER, heartbeat(returned, term))
    digest = content_digest(content)
    effects = returned.told(OTHER, Propose(Proposal(term, 1, roster, digest)))
    consensus = returned.node.consensus_by_group[GROUP]
    consensus.on_model_reply(ModelReply(group=GROUP, digest=digest, content=content))
    assert bool(said(effects + returned.node.take_effects(), Accept)) is accepts


def test_a_promise_of_before_it_left_that_others_show_costs_who_comes_back_nothing() -> None:
    returned = Returned()
    returned.goes_by(2, 3)
    term = returned.state.hard_state.term + 1
    scope = returned.node.consensus_by_group[GROUP].round_commit.election.scope
    own = returned.node.state.sign(vote_text(scope, ME, term, 1, OTHER))
    returned.told(OTHER, Heartbeat(LeaderCertificate(term, OTHER, 1, ((ME, own),)), Progress()))
    assert returned.state.votes
