"""Voters that have forgotten what they promised: how they find that out, what they still do, and who votes again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from fedpeer.gossip.proofs import ChannelProof, GenerationProof, channel_text, generation_text
from fedpeer.peer.node.node import Node
from fedpeer.peer.state.consensus_state import ConsensusState, commit_state_changed
from fedpeer.peer.state.entries import Entry, Reborn, Started, TermChanged, VoteLost, VotingAllowed
from fedpeer.peer.state.events import Effect, MessageReceived, Note, OperatorCommand, Persist, Send, Tick
from fedpeer.peer.state.saving import Recovered
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.peer.wire.consensus_messages import (
    Certificate,
    Commit,
    ConsensusContent,
    Heartbeat,
    HeartbeatReply,
    LeaderCertificate,
    Progress,
    Proposal,
    VoteRequest,
    acceptance_text,
    vote_text,
)
from fedpeer.peer.wire.messages import ConsensusMessage, Hello, Reminder
from fedpeer.peer.wire.roster import sign
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from tests.faults.group_cluster import GroupCluster, world_with_shares
from tests.faults.peer_cluster import AUTHORITY
from tests.faults.server_cluster import ServerCluster, world

ME, OTHER, THIRD = "peer1", "peer2", "peer3"


@cache
def sat(peers: int = 3) -> ServerCluster:
    """Return a cluster in the middle of its rounds; tests start further processes on copies of its disks."""
    consensus_cluster = ServerCluster(world(peers), Faults(links=LinkRules(delay=0.2, jitter=0.2)))
    consensus_cluster.simulator.start()
    assert consensus_cluster.reach(3, 1000.0), consensus_cluster.rounds()
    return consensus_cluster


def started(peers: int = 3, *, whole: bool = True) -> Node:
    """Return a node that has just started on a copy of a voter's disk."""
    consensus_cluster = sat(peers)
    node = consensus_cluster.node_factory.node(ME, replace(consensus_cluster.simulator.kept(ME), whole=whole))
    node.step(Tick(1))
    assert state_of(node).voting_allowed is whole
    return node


def state_of(node: Node) -> ConsensusState:
    return node.durable.consensus_states[EVERYONE]


def told(node: Node, sender: str, message: ConsensusContent) -> list[Effect]:
    """Pass a message to the node's consensus group; return its immediate effects."""
    node.consensus_by_group[EVERYONE].on_consensus_message(sender, ConsensusMessage(group=EVERYONE, message=message))
    return node.take_effects()


def entries(effects: list[Effect]) -> list[Entry]:
    return [each.content for each in effects if isinstance(each, Persist) and isinstance(each.content, Entry)]


def introduced(node: Node, *peers: str, roster: int = 1) -> None:
    """Mark these peers as having met this process of the node, and as using this roster."""
    for peer in peers:
        other = node.state.others[peer]
        other.met, other.knows_us, other.roster = True, True, roster


# ------------------------------------------------------------------------------- its own signature in what others say


def vote(node: Node, *, ahead: int, candidate: str = OTHER, roster: int = 1, forged: bool = False) -> Heartbeat:
    """Return a heartbeat of a coordinator elected with the node's vote, so many terms after the one that it knows."""
    scope, term = node.consensus_by_group[EVERYONE].round_commit.election.scope, state_of(node).hard_state.term + ahead
    signature = node.state.sign(vote_text(scope, ME, term + forged, roster, candidate))
    votes = ((ME, signature), (THIRD, bytes(64)))
    return Heartbeat(LeaderCertificate(term, candidate, roster, votes), Progress())


def acceptance(node: Node, *, rounds: int, terms: int, roster: int = 1, forged: bool = False) -> Commit:
    """Return a commit with the node's acceptance, so many rounds and terms after those that it knows."""
    scope, holding = node.consensus_by_group[EVERYONE].round_commit.election.scope, state_of(node).holding
    proposal = Proposal(state_of(node).hard_state.term + terms, holding.round + rounds, roster, bytes(32))
    signature = node.state.sign(acceptance_text(scope, ME, replace(proposal, round=proposal.round + forged)))
    return Commit(Certificate(proposal, ((ME, signature), (THIRD, bytes(64)))))


@pytest.mark.parametrize(
    ("message", "forgotten"),
    [
        (lambda node: vote(node, ahead=1), True),
        (lambda node: vote(node, ahead=2**21), True),
        (lambda node: vote(node, ahead=0, candidate=ME), True),
        (lambda node: vote(node, ahead=1, roster=7), True),
        (lambda node: acceptance(node, rounds=1, terms=0), True),
        (lambda node: acceptance(node, rounds=9, terms=0), True),
        (lambda node: acceptance(node, rounds=0, terms=1), True),
        (lambda node: vote(node, ahead=0), False),
        (lambda node: vote(node, ahead=-1, candidate=ME), False),
        (lambda node: acceptance(node, rounds=0, terms=0), False),
        (lambda node: acceptance(node, rounds=-1, terms=-1), False),
        (lambda node: vote(node, ahead=1, forged=True), False),
        (lambda node: acceptance(node, rounds=1, terms=1, forged=True), False),
        (lambda node: HeartbeatReply(state_of(node).hard_state.term + 9, Progress(99, 99, 99)), False),
    ],
    ids=[
        "a vote in a later term",
        "in one that is too far ahead",
        "in this term, for another",
        "under a roster that is not known",
        "an acceptance of the next round",
        "of a later one",
        "in a later term",
        "its vote in this term",
        "in an earlier one",
        "what is in force",
        "what was in force before",
        "a vote that it did not sign",
        "an acceptance that it did not sign",
        "another's word",
    ],
)  # fmt: skip
def test_who_is_shown_a_promise_that_it_does_not_remember_gives_up_its_vote(
    message: Callable[[Node], ConsensusContent], *, forgotten: bool
) -> None:
    node = started()
    term = state_of(node).hard_state.term
    node.state.write(TermChanged(group=EVERYONE, term=term, voted=OTHER))
    node.take_effects()
    effects = told(node, THIRD, message(node))
    assert state_of(node).votes is not forgotten
    assert any(isinstance(each, VoteLost) for each in entries(effects)) is forgotten
    assert any(isinstance(each, Note) and each.what == "no_vote" for each in effects) is forgotten


def test_who_accepted_a_round_in_a_later_term_remembers_the_earlier_acceptance() -> None:
    node = started()
    holding, term = state_of(node).holding, state_of(node).hard_state.term
    accepted = Proposal(term, holding.round + 1, 1, bytes(32))
    node.state.write(commit_state_changed(EVERYONE, replace(holding, accepted=accepted)))
    told(node, THIRD, acceptance(node, rounds=1, terms=-1))
    assert state_of(node).votes


# ----------------------------------------------------------------------------------------------- at a Hello, by a start


def start_of(node: Node, number: int, nonce: int) -> Reminder:
    """Return a reminder of a start of the node that its key has signed."""
    text = generation_text(node.state.peer_groups.roster.federation_id, ME, 1, number, nonce)
    proof = GenerationProof(incarnation=1, generation=number, nonce=nonce, signature=node.state.sign(text))
    return Reminder(generation=proof, channels=())


@pytest.mark.parametrize(
    ("ahead", "nonce"),
    [(1, 2**62), (0, 2**63 - 1), (0, 0)],
    ids=["a later start", "as late, a later nonce", "as late, an earlier nonce"],
)
def test_who_finds_an_older_disk_by_a_start_gives_up_its_vote_before_anything_else(ahead: int, nonce: int) -> None:
    """Whichever part of the step is durable when the process dies, the next one does not vote, or finds it again."""
    node = started()
    before = node.durable.copy()
    shown = start_of(node, node.durable.generation + ahead, nonce)
    found = entries(node.step(MessageReceived(OTHER, node.durable.met[OTHER], 1, shown)))
    assert isinstance(found[0], VoteLost)
    assert not state_of(node).votes
    for entry in found:
        before.apply(entry)
        assert not before.consensus_states[EVERYONE].votes, entry


def test_an_earlier_start_on_this_disk_shows_nothing() -> None:
    node = started()
    for number in range(node.durable.first, node.durable.generation):
        node.step(MessageReceived(OTHER, node.durable.met[OTHER], 1, start_of(node, number, 5)))
    assert state_of(node).votes


@pytest.mark.parametrize("ahead", [-1, 1])
def test_the_second_start_on_an_empty_disk_knows_that_a_disk_was_lost(ahead: int) -> None:
    """The first one died before anybody had told it."""
    consensus_cluster = sat()
    first = consensus_cluster.node_factory.node(ME, Recovered(snapshot=None, entries=()))
    first.step(Tick(1))
    number = first.durable.generation
    second = first.again(first.restore_point())
    second.step(Tick(1))
    assert second.durable.generation == number + 1
    second.step(MessageReceived(OTHER, 1, 0, start_of(second, number, 6)))
    assert not state_of(second).lost, "its own first start"
    second.step(MessageReceived(OTHER, 1, 0, start_of(second, number + 2 * ahead, 6)))
    assert state_of(second).lost == 1
    assert second.durable.incarnation == 2


@pytest.mark.parametrize("nonce", [1, 2**62 - 1], ids=["an earlier nonce", "a later nonce"])
def test_who_starts_again_with_a_number_that_it_had_is_shown_the_process_that_had_it(nonce: int) -> None:
    """Its disk does not know that process; which of the two nonces is the later one is chance."""
    node = started()
    known = GenerationProof(incarnation=1, generation=7, nonce=2**61, signature=bytes(64))
    node.state.others[OTHER].proof = known
    hello = Hello(
        generation=7,
        nonce=nonce,
        known_generation=0,
        contract=node.setup.contract,
        groups=(),
        channels=(),
        round=1,
        begun=True,
        roster=1,
        answer=True,
    )
    effects = node.step(MessageReceived(OTHER, node.durable.met[OTHER], 1, hello))
    shown = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Reminder)]
    assert [each.generation for each in shown] == [known]


def test_a_store_that_lost_something_costs_the_vote_until_it_is_saved_that_it_does() -> None:
    """The snapshot of the first step tells the store that the loss was acted upon."""
    consensus_cluster = sat()
    node = consensus_cluster.node_factory.node(ME, replace(consensus_cluster.simulator.kept(ME), whole=False))
    effects = node.step(Tick(1))
    assert [type(each) for each in entries(effects)][:3] == [Started, VoteLost, Reborn]
    kinds = [each.kind for each in effects if isinstance(each, Persist)]
    assert kinds.count("snapshot") == 1
    assert kinds[:3] == ["entry"] * 3
    assert not state_of(node).votes


def test_who_finds_an_older_disk_by_a_share_gives_up_its_vote_in_all_groups() -> None:
    cluster = GroupCluster(world_with_shares(), Faults(links=LinkRules(delay=0.2, jitter=0.2)))
    cluster.simulator.start()
    assert cluster.reach(2, 1000.0)
    node = cluster.simulator.machines()[ME]
    assert isinstance(node, Node)
    durable, states = node.durable, node.durable.consensus_states
    (group,) = durable.groups
    other = next(iter(durable.groups[group].out))
    number, ends = durable.groups[group].out[other].made + 1, ((ME, 1), (other, 1))
    text = channel_text(node.state.peer_groups.roster.federation_id, group, *ends, "made", number, 9.0)
    proof = ChannelProof(group=group, way="made", number=number, weight=9.0, signature=node.state.sign(text))
    assert all(each.votes for each in states.values())
    found = entries(node.step(MessageReceived(other, 1, 1, Reminder(generation=None, channels=(proof,)))))
    assert [type(each) for each in found][: len(states) + 1] == [VoteLost] * len(states) + [Reborn]
    assert not any(each.votes for each in states.values())


# ----------------------------------------------------------------------------------------------- with another key


def readmitted() -> Node:
    """Return a node that starts on its disk after it was revoked, and admitted again with another key by roster 3."""
    cluster = ServerCluster(world(3), Faults(links=LinkRules(delay=0.2, jitter=0.2)), roster=world(3).peers)
    cluster.simulator.start()
    assert cluster.reach(2, 1000.0)
    again = cluster.signed(3, cluster.made.peers)
    cluster.node_factory.keys[ME] = key = bytes(range(32))
    entries = tuple(replace(each, key=key) if each.id == ME else each for each in again.entries)
    cluster.admit(sign(replace(again, entries=entries), AUTHORITY), [ME])
    node = cluster.node_factory.node(ME, cluster.simulator.kept(ME))
    node.step(Tick(1))
    assert node.durable.incarnation == 2
    return node


def test_who_is_admitted_again_with_another_key_has_forgotten_nothing_and_votes_under_the_roster_with_that() -> None:
    node = readmitted()
    consensus, term = node.consensus_by_group[EVERYONE], state_of(node).hard_state.term
    assert term > 0, "it knows what it promised with the old key"
    assert not consensus._votes(1), "its old key counts there"
    node.state.write(commit_state_changed(EVERYONE, replace(state_of(node).holding, roster=3)))
    assert consensus._votes(3)


@pytest.mark.parametrize("ahead", [-2, -1, 2])
def test_who_promised_something_with_its_new_key_on_another_disk_loses_its_vote(ahead: int) -> None:
    """The voter came back on an empty disk first, as incarnation 1, and then its old disk was put back.

    That start may have a number that a process on this disk had with the old key.
    """
    node = readmitted()
    number = node.durable.generation
    again = node.again(node.restore_point())
    again.step(Tick(1))
    again.step(MessageReceived(OTHER, 1, 0, start_of(again, number, 6)))
    assert not state_of(again).lost, "its own first start with this key"
    again.step(MessageReceived(OTHER, 1, 0, start_of(again, number + ahead, 6)))
    assert state_of(again).lost == 3


# ----------------------------------------------------------------------------------------------- without a vote


def test_a_coordinator_that_loses_its_vote_while_it_leaves_coordinates_no_more() -> None:
    """Whatever happens next, and in whichever phase: an acceptance that comes then would close its round."""
    cluster = ServerCluster(world(3), Faults(links=LinkRules(delay=0.2, jitter=0.2)))
    cluster.simulator.start()
    assert cluster.reach(2, 1000.0)
    leader = cluster.leading()
    assert leader is not None
    node = cluster.node(leader)
    node.step(OperatorCommand("leave"))
    election = node.consensus_by_group[EVERYONE].round_commit.election
    assert (node.phase, election.leading) == ("leaving", True)
    node.state.lose_vote()
    node.step(Tick(node.state.now + 1))
    assert not election.leading


def test_who_has_no_vote_answers_no_candidate_and_never_stands() -> None:
    node = started()
    term = state_of(node).hard_state.term
    node.state.lose_vote()
    effects = told(node, OTHER, VoteRequest(term + 1, False, 1, Progress(99, 99, 99)))
    for tick in range(2, 1000):
        effects += node.step(Tick(tick))
    said = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, ConsensusMessage)]
    assert not [each for each in said if isinstance(each.message, VoteRequest | Heartbeat)]
    assert state_of(node).hard_state.term == term


def test_a_coordinator_that_has_forgotten_a_promise_coordinates_no_more() -> None:
    consensus_cluster = ServerCluster(world(3), Faults(links=LinkRules(delay=0.2, jitter=0.2)))
    consensus_cluster.simulator.start()
    assert consensus_cluster.reach(2, 1000.0)
    leader = consensus_cluster.leading()
    assert leader is not None
    node = consensus_cluster.node(leader)
    assert node.consensus_by_group[EVERYONE].round_commit.election.leading
    node.state.lose_vote()
    effects = node.step(Tick(node.state.now + 1))
    assert not node.consensus_by_group[EVERYONE].round_commit.election.leading
    assert not [each for each in effects if isinstance(each, Send) and isinstance(each.message, ConsensusMessage)]
    done = max(consensus_cluster.rounds().values())
    assert consensus_cluster.reach(done + 3, 1000.0), "another one coordinates, and it follows"
    assert not state_of(node).votes
    consensus_cluster.judge()


# ------------------------------------------------------------------------------------------------------- voting again


def test_the_vote_is_lost_for_the_newest_roster_that_others_know() -> None:
    """The voter may have promised something under that roster, too, before it forgot it."""
    node = started()
    node.state.lose_vote()
    introduced(node, OTHER)
    introduced(node, THIRD, roster=2)
    node.step(Tick(2))
    assert not state_of(node).voting_allowed, "one of two others knows a roster that this peer has not seen"
    introduced(node, THIRD)
    effects = node.step(Tick(3))
    assert state_of(node).voting_allowed
    assert state_of(node).lost == 1
    assert "issue a new roster" in next(e.text for e in effects if isinstance(e, Note) and e.what == "no_vote")
    assert not state_of(node).votes
    node.state.write(commit_state_changed(EVERYONE, replace(state_of(node).holding, roster=2)))
    assert state_of(node).votes


def test_a_later_roster_that_a_voter_states_and_never_shows_keeps_nobody_from_voting() -> None:
    """A voter shows its roster in answer to a Hello; otherwise one liar of three would end another's vote for good."""
    node = started()
    node.state.lose_vote()
    introduced(node, OTHER)
    introduced(node, THIRD, roster=9)
    node.state.others[THIRD].later_since = 2
    node.step(Tick(4000))
    assert not state_of(node).voting_allowed
    node.step(Tick(4803))
    assert state_of(node).voting_allowed


def test_it_has_time_to_show_it_again_once_another_roster_was_adopted() -> None:
    node = started()
    node.state.lose_vote()
    introduced(node, OTHER)
    introduced(node, THIRD, roster=9)
    node.state.others[THIRD].later_since = 2
    node.state.enrolled_at = 1000
    node.step(Tick(4803))
    assert not state_of(node).voting_allowed
    node.step(Tick(5803))
    assert state_of(node).voting_allowed


def test_a_second_loss_costs_the_vote_that_came_back() -> None:
    node = started()
    node.state.write(VotingAllowed(group=EVERYONE, lost=1))
    node.state.write(commit_state_changed(EVERYONE, replace(state_of(node).holding, roster=2)))
    assert state_of(node).votes
    told(node, THIRD, vote(node, ahead=1))
    assert state_of(node).votes, "it has lost what it promised under roster 1 already"
    told(node, THIRD, vote(node, ahead=1, roster=2))
    assert not state_of(node).votes
    node.state.lose_vote(roster=1)
    assert state_of(node).lost == 2


def test_a_second_loss_while_the_vote_is_lost_is_counted_again() -> None:
    """An older disk, of when the vote was lost the first time, knows nothing of the later roster."""
    node = started()
    node.state.write(VotingAllowed(group=EVERYONE, lost=1))
    node.take_effects()
    shown = start_of(node, node.durable.generation + 1, 2**62)
    found = entries(node.step(MessageReceived(OTHER, node.durable.met[OTHER], 1, shown)))
    assert isinstance(found[0], VoteLost)
    assert not state_of(node).voting_allowed


def test_one_of_two_voters_votes_again_when_the_two_have_met() -> None:
    """The other voter takes part in each majority, and remembers; without this one no majority would be possible."""
    node = started(2)
    node.state.lose_vote()
    node.step(Tick(2))
    assert not state_of(node).votes
    introduced(node, OTHER)
    node.step(Tick(3))
    assert state_of(node).votes
