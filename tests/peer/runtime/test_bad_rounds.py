"""P9: false messages about coordinated rounds, sent over TLS to a running peer.

First bob coordinates round 1, then he follows others. The cases run in their order, because a finished round does not
come back. Each message is signed by its sender and rejected by name: one count, one line of the log, and nothing
durable changes. Ids are those of the table of bad inputs. Time advances only by the ticks that the test gives to bob.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpeer.peer.consensus.election import TERM_JUMP_MAX
from fedpeer.peer.runtime.view import view_of
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.peer.wire.consensus_messages import (
    Accept,
    HeartbeatReply,
    Progress,
    Proposal,
    Propose,
    VoteReply,
    VoteRequest,
    acceptance_text,
)
from fedpeer.peer.wire.leaf_bytes import split_leaves
from fedpeer.peer.wire.messages import Ack, ConsensusMessage, Message, ModelReply, RejectMessage, RosterNews, Update
from fedpeer.peer.wire.roster import sign, to_bytes
from fedpeer.peer.wire.tails import content_digest
from tests.peer.runtime.everything import FAR
from tests.peer.runtime.round_bob import OTHERS, RoundBob, round_bob_at

pytestmark = pytest.mark.slow

NOBODYS = b"n" * 32
Content = Callable[["RoundBob"], bytes]


Case = Callable[[RoundBob], None]


def told(code: str, message: Callable[[RoundBob], Message], sender: str = "ann") -> Case:
    """Return a case in which bob coordinates round 1, rejects a message, and sends the code to its sender."""

    def case(bob: RoundBob) -> None:
        said = message(bob)
        with bob.refuses(code), bob.tells(sender, lambda m: isinstance(m, RejectMessage) and m.code == code):
            bob.hears(said, sender)

    return case


def at_the_door(code: str, message: Callable[[RoundBob], Message]) -> Case:
    """Return a case in which a frame is rejected in the answer, before it is decoded as a message."""

    def case(bob: RoundBob) -> None:
        said = bob.framed(message(bob))
        with bob.refuses(code):
            answer = bob.say(said)
        assert answer is not None
        assert answer.code == code

    return case


def another(bob: RoundBob) -> Update:
    """Return a second update of ann's, after bob has taken her first."""
    with bob.tells("ann", lambda message: isinstance(message, Ack)):
        bob.hears(bob.update())
    return bob.update(times=2.0)


def gathered(message: Callable[[RoundBob], Update]) -> Callable[[RoundBob], Update]:
    """Let bob wait for the senders of bad updates again, so that the next case begins like this one."""

    def made(bob: RoundBob) -> Update:
        bob.peer.inside(bob.consensus._gathering.refused.clear)
        return message(bob)

    return made


COORDINATING: dict[str, Case] = {
    "R06-update": told("stale_term", lambda bob: replace(bob.update(), term=bob.term + 1)),
    "R09-update": told("round_gap", lambda bob: bob.update(late=-1)),
    "R10-update": at_the_door("digest_mismatch", lambda bob: replace(bob.update(), digest=NOBODYS)),
    "R13-none": told("bad_sample_count", gathered(lambda bob: bob.update(examples=0))),
    "R13-negative": told("bad_sample_count", gathered(lambda bob: bob.update(examples=-40))),
    "R13-huge": told("bad_sample_count", gathered(lambda bob: bob.update(examples=10**12))),
    "R14-zero": told("bad_precision", gathered(lambda bob: bob.update(precision=0.0))),
    "R14-negative": told("bad_precision", gathered(lambda bob: bob.update(precision=-1.0))),
    "R14-infinite": told("not_finite", gathered(lambda bob: bob.update(precision=torch.inf))),
    "R17": told("wrong_client", gathered(lambda bob: bob.update(of="cas"))),
    "R12": told("second_update", gathered(another)),
}


@pytest.mark.parametrize("case", COORDINATING.values(), ids=COORDINATING)
def test_refused_by_who_coordinates(consensus: RoundBob, case: Case) -> None:
    case(consensus)


def too_far(bob: RoundBob) -> None:
    """An update that is too far away is recognized when the round closes, and the round goes on without it."""
    bob.pardon()
    since, counted = len(bob.peer.lines), bob.peer.counted("too_far")
    for sender, times in (("cas", 2.0), ("dan", 1e5)):
        with bob.tells(sender, lambda message: isinstance(message, Ack)):
            bob.hears(bob.update(sender, times=times), sender)
    bob.peer.line("too_far", since)
    assert bob.peer.counted("too_far") == counted + 1
    assert "dan" in bob.peer.line("too_far", since).text


#: A case in which the round closes, and one that comes too late for it.
CLOSING: dict[str, Case] = {
    "R16": too_far,
    "R11": told("round_closed", lambda bob: bob.update("dan"), "dan"),
}


@pytest.mark.parametrize("case", CLOSING.values(), ids=CLOSING)
def test_refused_by_who_closes_the_round(consensus: RoundBob, case: Case) -> None:
    case(consensus)


def test_the_round_is_that_of_the_others(consensus: RoundBob) -> None:
    """An update that was left out does not count, and round 1 comes into force."""
    proposal = consensus.peer.inside(lambda: consensus.consensus.round_commit._open)
    assert proposal is not None
    found = split_leaves(
        consensus.consensus.consensus_state.models[proposal.digest], consensus.server_side.spec.server_bytes
    )
    assert found is not None
    assert found[0].keys() == {"ann", "bob", "cas"}
    scope = consensus.consensus.round_commit.election.scope
    for who in ("ann", "cas"):
        accepted = consensus.signed_by(who, acceptance_text(scope, who, proposal))
        consensus.hears(consensus.ballot(Accept(proposal.term, proposal.round, accepted)), who)
    consensus.waits(lambda: consensus.consensus.applied == 1)


def received(code: str, said: Callable[[RoundBob, int], Any], sender: str = "ann", *, times: int = 1) -> Case:
    """Return a case in which bob follows ann in this term, after round 1, and rejects a message."""

    def case(bob: RoundBob) -> None:
        message = said(bob, bob.follows())
        with bob.refuses(code, times=times):
            bob.hears(message, sender)

    return case


def proposed(round: int, term: int = 0) -> Callable[[RoundBob, int], ConsensusMessage]:
    return lambda bob, now: bob.ballot(Propose(bob.proposal(now + term, round, NOBODYS)))


FOLLOWING: dict[str, Case] = {
    # Without a vote of bob's, which would show him that he had forgotten it.
    "R04": received("double_vote", lambda bob, term: bob.lead("dan", term, "cas", "dan", "eve"), "dan", times=2),
    "R09-with-a-stranger": received("round_gap", lambda bob, term: _beside_a_stranger(bob, term, *OTHERS)),
    "R05-lead": received("two_coordinators", lambda bob, term: bob.lead("cas", term, "cas", "dan", "eve"), "cas"),
    "R05-propose": received("two_coordinators", proposed(2), "cas"),
    "R06-lead": received("stale_term", lambda bob, term: bob.lead("cas", term - 1, *OTHERS), "cas"),
    "R06-propose": received("stale_term", proposed(2, -1)),
    "R06-update-to-a-follower": told("stale_term", lambda bob: replace(bob.update(), term=bob.follows())),
    "R07-lead": received("term_jump", lambda bob, term: bob.lead("cas", term + TERM_JUMP_MAX + 1, *OTHERS), "cas"),
    "R07-follow": received(
        "term_jump", lambda bob, term: bob.ballot(HeartbeatReply(term + TERM_JUMP_MAX + 1, Progress()))
    ),
    "R19": received("too_many_terms", lambda bob, term: _again(bob, term)),
    "R20-lead": received("stale_roster", lambda bob, term: bob.lead("ann", term + 1, "ann", roster=_founded(bob))),
    "R20-canvass": received(
        "stale_roster", lambda bob, term: bob.ballot(VoteRequest(term + 1, False, _founded(bob), Progress(9, 9, 9)))
    ),
    "R20-commit": received(
        "stale_roster",
        lambda bob, term: bob.commit(Proposal(term + 1, 9, _founded(bob), NOBODYS), voters=["ann"]),
    ),
    "R08": received("already_applied", proposed(1)),
    "R09-propose": received("round_gap", proposed(3)),
    "R09-commit": received("round_gap", lambda bob, term: bob.commit(bob.proposal(term, 3, NOBODYS))),
    "R10-commit": received("digest_mismatch", lambda bob, term: bob.commit(bob.proposal(term, 1, NOBODYS))),
    "R10-model": at_the_door(
        "digest_mismatch", lambda bob: ModelReply(group=EVERYONE, digest=NOBODYS, content=bob.model(0))
    ),
    "R15": at_the_door("bad_task_matrix", lambda bob: _model(bob, 2 * FAR)),
    "E07-vote-of-a-stranger": received("bad_signature", lambda bob, term: _by_a_stranger(bob, term + 1), "cas"),
    "E07-with-a-stranger": received("bad_signature", lambda bob, term: _beside_a_stranger(bob, term, *OTHERS[:1])),
    "E07-mandate": received("bad_signature", lambda bob, term: bob.lead("cas", term + 1, *OTHERS, signed=term), "cas"),
    "E07-decree": received(
        "bad_signature",
        lambda bob, term: bob.commit(bob.proposal(term, 2, NOBODYS), signed=bob.proposal(term, 2, b"o" * 32)),
    ),
}


def _founded(bob: RoundBob) -> int:
    """Show bob an earlier roster, in which ann is the only peer; return its number."""
    people = bob.people
    alone = sign(replace(people.roster, number=2, entries=(people.roster.by_id["ann"],)), people.key)
    bob.hears(RosterNews(number=alone.number, text=to_bytes(alone)))
    return alone.number


def _by_a_stranger(bob: RoundBob, term: int) -> ConsensusMessage:
    """Return the heartbeat of cas with a vote of a peer that the authority certified and that is in no roster.

    A candidate is elected by voters of its roster, and bob knows that roster.
    """
    _met_fay(bob)
    return bob.lead("cas", term, "cas", "eve", "fay")


def _beside_a_stranger(bob: RoundBob, term: int, *voters: str) -> ConsensusMessage:
    """Return the commit of a round by these voters and a peer that is in no roster that bob has received.

    A voter that the round's roster puts out has accepted it, too. Beside a majority it proves nothing.
    """
    _met_fay(bob)
    return bob.commit(bob.proposal(term, 2, NOBODYS), voters=[*voters, "fay"])


def _met_fay(bob: RoundBob) -> None:
    if "fay" not in bob.keys:
        bob.keys = {**bob.keys, "fay": bob.people.identity("fay", admitted=False)}


def _again(bob: RoundBob, term: int) -> ConsensusMessage:
    """Send bob a vote request of ann's, and return her request as a candidate in the next term."""
    bob.peer.inside(bob.consensus.round_commit.election._failed.begin_anew)
    bob.hears(bob.ballot(VoteRequest(term + 1, False, bob.people.roster.number, Progress())))
    return bob.ballot(VoteRequest(term + 2, False, bob.people.roster.number, Progress()))


def _model(bob: RoundBob, value: float) -> ModelReply:
    content = bob.model(value)
    return ModelReply(group=EVERYONE, digest=content_digest(content), content=content)


@pytest.mark.parametrize("case", FOLLOWING.values(), ids=FOLLOWING)
def test_refused_by_who_follows(consensus: RoundBob, case: Case) -> None:
    case(consensus)


def test_numbers_depose_nobody(consensus: RoundBob) -> None:
    """bob goes on following in his term while a member claims later terms.

    The member states a term that is one higher each time, in refused votes, in heartbeat replies, and as a candidate.
    """
    consensus.pardon()
    term, election = consensus.follows(), consensus.consensus.round_commit.election
    number = consensus.people.roster.number
    for more in range(1, 4):
        for pre in (True, False):
            consensus.hears(consensus.ballot(VoteReply(term + more, pre, False, b"")), "dan")
            consensus.hears(consensus.ballot(VoteRequest(term + more, pre, number, Progress())), "dan")
        consensus.hears(consensus.ballot(HeartbeatReply(term + more, Progress())), "dan")
        consensus.hears(consensus.lead("ann", term, "ann", "cas", "eve"))
        assert (consensus.term, consensus.peer.inside(lambda: election.coordinator)) == (term, "ann")
    consensus.pardon()


def test_the_good_messages_of_which_these_are_variants_are_taken(consensus: RoundBob) -> None:
    """bob accepts them and goes on to round 2 with ann."""
    term, content = consensus.follows(), consensus.model(3.0)
    proposal = consensus.proposal(term, 2, content_digest(content))
    consensus.hears(consensus.commit(proposal))
    consensus.hears(ModelReply(group=EVERYONE, digest=proposal.digest, content=content))
    consensus.waits(lambda: consensus.consensus.applied == 2)


def test_who_was_put_out_voted_while_it_belonged(consensus: RoundBob) -> None:
    """A vote of a peer that was revoked later counts, by its key in the earlier roster.

    So a peer that did not receive the votes at the time still learns which peer coordinates.
    """
    people, term = consensus.people, consensus.term + 1
    rest = tuple(entry for entry in people.roster.entries if entry.id != "eve")
    said = consensus.lead("ann", term, "ann", "cas", "eve")
    forged = consensus.lead("dan", term, "dan", "cas", "eve", signed=term + 1)
    later = sign(replace(people.roster, number=people.roster.number + 1, entries=rest), people.key)
    consensus.hears(RosterNews(number=later.number, text=to_bytes(later)))
    assert consensus.peer.inside(lambda: "eve" not in consensus.peer.state.peer_groups.roster.by_id)
    seen = consensus.peer.inside(lambda: view_of(consensus.peer.process._node, {}, 0.0)).consensus_by_group[0]
    assert "eve" in seen.voters, "the later roster is not committed yet"
    assert "eve" not in seen.voters_there
    with consensus.refuses("bad_signature"):
        consensus.hears(forged, "dan")
    assert consensus.term < term
    consensus.hears(said)
    assert consensus.term == term
    assert consensus.peer.inside(lambda: consensus.consensus.coordinator) == "ann"


def test_who_was_admitted_again_voted_with_the_key_of_that_roster(consensus: RoundBob) -> None:
    """eve's vote under the roster with her old key counts by that key and by no other, and nobody is blamed for
    passing it on."""
    consensus.pardon()
    people, term, old = consensus.people, consensus.term + 1, consensus.keys["eve"]
    said = consensus.lead("ann", term, "ann", "cas", "eve")
    new = Ed25519PrivateKey.generate()
    consensus.keys = {**consensus.keys, "eve": replace(old, key=new)}
    forged = consensus.lead("cas", term, "ann", "cas", "eve")
    key = new.public_key().public_bytes_raw()
    again = tuple(replace(each, key=key) if each.id == "eve" else each for each in people.roster.entries)
    later = sign(replace(people.roster, number=people.roster.number + 2, entries=again), people.key)
    consensus.hears(RosterNews(number=later.number, text=to_bytes(later)))
    assert consensus.peer.inside(lambda: consensus.peer.state.peer_groups.roster.by_id["eve"].key == key)
    with consensus.refuses("bad_signature"):
        consensus.hears(forged, "cas")
    assert consensus.term < term
    consensus.hears(said)
    assert consensus.term == term
    assert consensus.peer.inside(lambda: consensus.consensus.coordinator) == "ann"
    consensus.keys = {**consensus.keys, "eve": old}


@pytest.fixture(scope="module")
def consensus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoundBob]:
    """bob, elected, in round 1 as its coordinator."""
    with round_bob_at(tmp_path_factory.mktemp("council")) as bob:
        bob.coordinates()
        yield bob
