"""Coordinated rounds at whole peers: what is taken, what is refused by name, and what follows for clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fedpeer.peer.consensus import round_consensus
from fedpeer.peer.consensus.polls import ElectionTiming
from fedpeer.peer.consensus.retries import AGAIN_MAX, RetryTimer
from fedpeer.peer.consensus.round_results import server_result
from fedpeer.peer.node.node import Node
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.events import (
    AggregateUpdates,
    ClientTrained,
    Effect,
    Event,
    FinishRound,
    Heard,
    NewRoster,
    Note,
    RejectEffect,
    RoundFinished,
    Send,
    Tick,
    TrainClient,
    UpdatesAggregated,
)
from fedpeer.peer.state.saving import Recovered
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.peer.wire.ballots import Certificate, Commit
from fedpeer.peer.wire.codec import decode
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import (
    Ack,
    ConsensusMessage,
    Hello,
    Message,
    ModelReply,
    ModelRequest,
    RejectMessage,
    Update,
)
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.peer.wire.tails import content_digest
from fedpeer.rejection import Rejection
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from tests.faults import server_cluster
from tests.faults.server_cluster import BYTES, Clerk, ServerCluster, world
from tests.peer.frames import framed

QUICK = LinkRules(delay=0.2, jitter=0.2)
#: What the town writes when an update leaves.
SENT = ("said", "Update")
#: Ticks in which all meet and begin.
CALM = 200.0


def sat(peers: int = 3, round: int = 2, **settings: object) -> ServerCluster:
    """Peers that have come to this round."""
    parliament = ServerCluster(world(peers), Faults(links=QUICK), **settings)  # type: ignore[arg-type]
    parliament.town.start()
    assert parliament.reach(round, 1000.0), parliament.rounds()
    return parliament


def told(node: Node, sender: str, message: Message) -> list[Effect]:
    """It comes as bytes, and passes the policy."""
    heard = read(node, sender, message)
    assert not isinstance(heard, Rejection), heard
    return node.step(Heard(sender, node.ledger.met[sender], node.ledger.incarnation, heard))


def read(node: Node, sender: str, message: Message) -> Message | Rejection:
    """What the policy makes of it."""
    policy = node.policy(sender)
    envelope = Envelope(
        federation=policy.federation,
        sender=sender,
        recipient=node.life.me,
        incarnation=node.ledger.met[sender],
        to_incarnation=node.ledger.incarnation,
    )
    found = decode(framed(message, envelope), policy)
    return found if isinstance(found, Rejection) else found[1]


def leader_of(parliament: ServerCluster) -> Node:
    leader = parliament.leading()
    assert leader is not None
    return parliament.node(leader)


def update(node: Node, content: bytes, *, late: int = 0) -> Update:
    """For the round that this coordinator gathers for, or an earlier one."""
    term, round = node.councils[EVERYONE].decrees.election.stand.term, node.councils[EVERYONE].applied + 1 - late
    return Update(group=EVERYONE, term=term, round=round, digest=content_digest(content), content=content)


def refusals(effects: Iterable[Effect]) -> list[str]:
    """Codes that were counted, each of them said to the one refused too."""
    codes = [each.rejection.code for each in effects if isinstance(each, RejectEffect)]
    said = [each.message.code for each in effects if isinstance(each, Send) and isinstance(each.message, RejectMessage)]
    assert codes == said
    return codes


def numbers(*values: float) -> bytes:
    return np.array(values).tobytes()


def test_an_update_is_taken_once_and_acknowledged_each_time() -> None:
    parliament = sat()
    node = leader_of(parliament)
    sender = next(peer for peer in parliament.made.peers if peer != node.life.me)
    own = update(node, numbers(1, 2))
    for _ in range(2):
        effects = told(node, sender, own)
        assert [each.message for each in effects if isinstance(each, Send)] == [
            Ack(group=EVERYONE, taken=own.term, round=own.round)
        ]
    assert refusals(told(node, sender, update(node, numbers(1, 3)))) == ["second_update"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
def test_an_update_with_numbers_that_are_none_is_refused(bad: float) -> None:
    parliament = sat()
    node = leader_of(parliament)
    sender = next(peer for peer in parliament.made.peers if peer != node.life.me)
    assert refusals(told(node, sender, update(node, numbers(1, bad)))) == ["not_finite"]


def test_an_update_that_comes_too_late_is_told_so() -> None:
    parliament = sat()
    node = leader_of(parliament)
    sender = next(peer for peer in parliament.made.peers if peer != node.life.me)
    assert refusals(told(node, sender, update(node, numbers(1, 2), late=1))) == ["round_closed"]


def test_an_update_that_comes_while_a_round_is_closed_is_told_so() -> None:
    parliament = sat()
    node = leader_of(parliament)
    council = node.councils[EVERYONE]
    sender = next(peer for peer in parliament.made.peers if peer != node.life.me)
    town = parliament.town
    assert parliament.run(town.now + 50.0, lambda: council._gathering.closed and council.decrees.gathering)
    assert refusals(told(node, sender, update(node, numbers(1, 2)))) == ["round_closed"]


def test_an_update_that_was_acknowledged_is_not_sent_again() -> None:
    """Nor is it sent for nothing while the slowest client trains, twice as long as an answer takes."""
    parliament = sat(3, round=4, pace={"peer3": 6.0})
    leader, said = parliament.leading(), Counter(row[2] for row in parliament.town.rows if row[1:4:2] == SENT)
    assert leader is not None
    assert {peer: count for peer, count in said.items() if peer != leader} == dict.fromkeys(
        sorted({"peer1", "peer2", "peer3"} - {leader}), max(said.values())
    )
    assert 4 <= max(said.values()) <= 5


def test_an_update_to_who_does_not_coordinate_is_refused() -> None:
    parliament = sat()
    leader = leader_of(parliament)
    one, other = [peer for peer in parliament.made.peers if peer != leader.life.me]
    assert refusals(told(parliament.node(one), other, update(leader, numbers(1, 2)))) == ["stale_term"]


def test_who_takes_no_part_in_a_round_is_refused() -> None:
    parliament = sat(5, share=0.4)
    node = leader_of(parliament)
    part = node.councils[EVERYONE].course.takes_part(
        node.councils[EVERYONE].applied + 1, node.councils[EVERYONE].clients
    )
    sender = next(peer for peer in parliament.made.peers if peer not in part and peer != node.life.me)
    assert refusals(told(node, sender, update(node, numbers(1, 2)))) == ["implausible"]


@pytest.mark.slow
def test_a_round_goes_on_without_who_sends_nonsense_and_it_is_told_once_a_round() -> None:
    liars = {"peer4": frozenset(range(3, 7))}
    # A round takes longer than it takes until an update is sent again.
    parliament = sat(5, round=9, liars=liars, pace={"peer5": 5.0})
    leader = parliament.leading()
    assert leader != "peer4", "else its own update would not count, without a word"
    assert Counter(parliament.seen.refused) == {(leader, "not_finite", "peer4"): 4}
    counted, _ = leader_of(parliament).councils[EVERYONE].in_force()
    assert counted["peer4"] >= 7
    late = parliament.town.rows
    assert not [row for row in late if row[1] == "note" and row[3] == "edge_paused"]
    level = parliament.run(parliament.town.now + 400.0, parliament.level)
    assert level
    assert not parliament.law(), "what did not count is not kept"


def test_a_coordinator_whose_own_training_fails_goes_on() -> None:
    first = leader_of(sat()).life.me
    parliament = ServerCluster(world(3), Faults(links=QUICK), liars={first: frozenset({3})})
    notes: list[str] = []
    said = parliament.town.said

    def hear(peer: str, effect: Effect) -> None:
        said(peer, effect)
        if isinstance(effect, Note) and effect.what == "update_void":
            notes.append(peer)

    parliament.town.said = hear
    parliament.town.start()
    assert parliament.reach(5, 500.0)
    assert notes == [first]
    assert not parliament.seen.refused


@pytest.mark.slow
def test_a_slow_client_takes_part_when_it_comes_and_keeps_what_counted() -> None:
    """Its training takes longer than the deadline: rounds close without it, and it is told."""
    parliament = sat(5, round=6, pace={"peer2": 12.0})
    assert (True, "round_closed") not in {(by == "peer2", code) for by, code, _ in parliament.seen.refused}
    assert parliament.run(parliament.town.now + 800.0, parliament.level)
    assert not parliament.law()
    parliament.judge()
    assert {row[2] for row in parliament.town.rows if row[1] == "note" and row[3] == "went_on_without"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_next_round_comes_soon_after_the_coordinator_was_killed(seed: int) -> None:
    """Who answers no heartbeat is not waited for, and first of all not who was deposed for that; what membership would
    say of it, and the 200 ticks in which that may be false, do not matter."""
    parliament = ServerCluster(world(5, gossip__deadline=30.0), Faults(seed=seed, links=QUICK))
    town = parliament.town
    town.start()
    assert parliament.reach(3, 1000.0)
    parliament.run(town.now + 4 * seed)
    victim, before = parliament.leading(), max(parliament.seen.models)
    assert victim is not None
    town.kill(victim)
    training = parliament.residents.craft().work_ticks("peer1", TrainClient(1, b"", b"", ()))
    bound = 3 * ElectionTiming().shortest + training
    assert parliament.run(town.now + bound, lambda: max(parliament.seen.models) > before), "no round without it"
    again = parliament.run(town.now + bound, lambda: max(parliament.seen.models) > before + 2)
    assert again, "nor do later rounds wait for it"
    town.start(victim)
    parliament.settle_down()


def test_a_round_whose_clients_are_all_gone_changes_nothing() -> None:
    """Of those who take part nobody is there: after the deadline the next round has others."""
    parliament = ServerCluster(world(5), Faults(links=QUICK), share=0.2)
    alone = parliament.clerks["peer1"]
    town = parliament.town
    town.start()
    assert parliament.reach(2, CALM)
    leader = parliament.leading()
    # The next round that a single client other than the coordinator takes part in.
    coming = ((n, alone.spec.takes_part(n, sorted(parliament.made.peers))) for n in range(4, 200))
    round, victim = next((n, part[0]) for n, part in coming if part[0] != leader)
    assert parliament.reach(round - 2, 4000.0)
    town.kill(victim)
    before = parliament.seen.contents
    assert parliament.reach(round + 1, 1200.0), parliament.rounds()
    assert before[round] == before[round - 1]
    assert parliament.seen.contents[round + 1] != before[round]


@pytest.mark.parametrize(("signer", "code"), [("peer9", "round_gap"), ("peer3", "bad_signature")])
def test_a_signature_of_who_was_put_out_is_no_proof_and_no_forgery(signer: str, code: str) -> None:
    """Its key is not known any more; of those whose key is, a wrong signature is one."""
    parliament = sat()
    node = leader_of(parliament)
    sender = next(peer for peer in parliament.made.peers if peer != node.life.me)
    applied = node.ledger.chambers[EVERYONE].holding.applied
    assert applied is not None
    signed = (*(each for each in applied.acceptances if each[0] != signer), ("peer1", bytes(64)), (signer, bytes(64)))
    signed = tuple(dict(signed).items())
    decree = replace(applied.decree, round=applied.decree.round + 1)
    effects = told(node, sender, ConsensusMessage(group=EVERYONE, said=Commit(Certificate(decree, signed))))
    assert [each.rejection.code for each in effects if isinstance(each, RejectEffect)] == [code]


def test_a_model_is_given_to_who_wants_it_and_none_else_is_known() -> None:
    parliament = sat()
    node = leader_of(parliament)
    sender = next(peer for peer in parliament.made.peers if peer != node.life.me)
    chamber = node.ledger.chambers[EVERYONE]
    digest, content = next(iter(chamber.models.items()))
    gave = told(node, sender, ModelRequest(group=EVERYONE, digest=digest))
    assert [each.message for each in gave if isinstance(each, Send)] == [
        ModelReply(group=EVERYONE, digest=digest, content=content)
    ]
    assert not [
        each for each in told(node, sender, ModelRequest(group=EVERYONE, digest=bytes(32))) if isinstance(each, Send)
    ]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (bytes(4) + numbers(1, 2), "digest_mismatch"),
        (b"\1" + bytes(3) + numbers(1, 2), "bad_metadata"),
        (bytes(4) + numbers(1, np.nan), "not_finite"),
    ],
    ids=["digest", "form", "finite"],
)
def test_a_model_that_is_not_what_was_decreed_is_refused(content: bytes, code: str) -> None:
    parliament = sat()
    node = leader_of(parliament)
    sender = next(peer for peer in parliament.made.peers if peer != node.life.me)
    digest = bytes(32) if code == "digest_mismatch" else content_digest(content)
    before = node.ledger.chambers[EVERYONE].models
    node.councils[EVERYONE]._wanted[digest] = RetryTimer()
    found = read(node, sender, ModelReply(group=EVERYONE, digest=digest, content=content))
    assert isinstance(found, Rejection)
    assert found.code == code
    assert node.ledger.chambers[EVERYONE].models == before


def test_an_update_in_another_clients_name_is_refused() -> None:
    """As MOCHA's, which says of which task it is; here its second number says it."""
    parliament = sat(5)
    node = leader_of(parliament)
    seat = node.councils[EVERYONE]
    seat.course = replace(seat.course, number=lambda content: int(np.frombuffer(content)[1]))
    number, sender = next(each for each in enumerate(seat.clients) if each[1] != node.life.me)
    assert refusals(told(node, sender, update(node, numbers(1.0, number + 1)))) == ["wrong_client"]
    assert "R17" in REJECTIONS["wrong_client"].ids
    other = next(each for each in enumerate(seat.clients) if each[1] not in (sender, node.life.me))
    assert refusals(told(node, other[1], update(node, numbers(1.0, other[0])))) == []


def test_whose_update_is_left_out_of_a_round_is_told() -> None:
    parliament = sat()
    node = leader_of(parliament)
    seat, town = node.councils[EVERYONE], parliament.town
    assert parliament.run(town.now + 50.0, lambda: seat._gathering.closed and seat.decrees.gathering)
    sender = next(peer for peer in parliament.made.peers if peer != node.life.me)
    job = AggregateUpdates(
        seat.decrees.election.stand.term, seat.applied + 1, bytes(BYTES), {}, {sender: b""}, seat.clients
    )
    far = Rejection("too_far", "it moved by 9")
    effects = node.step(server_result(job, bytes(BYTES), sound=True, out={sender: far, node.life.me: far}))
    assert refusals(effects) == ["too_far"]
    notes = [each.text for each in effects if isinstance(each, Note) and each.what == "update_void"]
    assert notes == ["this peer's own update does not count: it moved by 9"]
    assert [each for each in effects if isinstance(each, Send) and isinstance(each.message, ConsensusMessage)], (
        "it is proposed"
    )


def test_the_clients_of_a_round_are_those_of_the_roster_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """On all peers alike, without a start."""
    made = world(4)
    *first, new = made.peers
    parliament = ServerCluster(made, Faults(links=QUICK), roster=first)
    asked: dict[int, set[tuple[str, ...]]] = {}
    last: dict[str, tuple[str, ...]] = {}
    work = Clerk.serve

    def worked(
        clerk: Clerk, job: TrainClient | AggregateUpdates | FinishRound
    ) -> ClientTrained | UpdatesAggregated | RoundFinished:
        if not isinstance(job, FinishRound):
            last[clerk.me] = job.clients
            if clerk.me != new or job.round > 2:  # it trains for the first round before it hears that this is over
                asked.setdefault(job.round, set()).add(job.clients)
        return work(clerk, job)

    monkeypatch.setattr(Clerk, "serve", worked)
    parliament.town.start(*first)
    assert parliament.reach(2, CALM)
    invited = parliament.signed(2, made.peers)
    parliament.admit(invited, made.peers)
    parliament.town.tell(first[0], NewRoster(invited))
    parliament.town.start(new)
    assert parliament.run(parliament.town.now + 600.0, lambda: len(parliament.rounds()) == 4)
    assert parliament.reach(max(parliament.rounds().values()) + 3, 600.0)
    assert {len(each) for each in asked.values()} == {1}
    assert {tuple(made.peers), tuple(first)} == set.union(*asked.values())
    assert last == dict.fromkeys(made.peers, tuple(made.peers))


def test_where_the_server_has_a_place_for_each_client_another_roster_ends_the_rounds() -> None:
    """All alike, who say so; and so do they at their next start."""
    made = world(4)
    *first, _ = made.peers
    parliament = ServerCluster(made, Faults(links=QUICK), roster=first)
    for clerk in parliament.clerks.values():
        clerk.fixed = True
    town = parliament.town
    town.start(*first)
    assert parliament.reach(2, CALM)
    invited = parliament.signed(2, made.peers)
    parliament.admit(invited, made.peers)
    town.tell(first[0], NewRoster(invited))
    assert parliament.run(town.now + 200.0, lambda: set(town.stopped) >= set(first)), town.stopped
    words = "the server has a place for each of the 3 peers of roster 1, and roster 2 has others"
    for peer in first:
        assert town.stopped[peer].code == 2
        assert words in town.stopped[peer].text
    town.stopped.clear()
    town.start(first[1])
    assert parliament.run(town.now + 50.0, lambda: first[1] in town.stopped)
    assert words in town.stopped[first[1]].text


def test_a_model_that_nobody_asked_for_is_not_kept() -> None:
    parliament = sat()
    node = leader_of(parliament)
    sender = next(peer for peer in parliament.made.peers if peer != node.life.me)
    content = bytes(4) + numbers(1, 2)
    assert not told(node, sender, ModelReply(group=EVERYONE, digest=content_digest(content), content=content))
    assert content_digest(content) not in node.ledger.chambers[EVERYONE].models


def test_nothing_is_hashed_or_looked_through_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both take long for a large model, and are done where messages are read, or in the trainer's thread."""
    town, inside, slow = sat().town, [False], Counter[str]()
    step = Node.step

    def stepped(node: Node, event: Event) -> list[Effect]:
        inside[0] = True
        effects = step(node, event)
        inside[0] = False
        return effects

    def watched(function: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        def called(content: bytes) -> Any:
            slow[function.__name__] += inside[0]
            return function(content)

        return called

    monkeypatch.setattr(Node, "step", stepped)
    monkeypatch.setattr(round_consensus, "content_digest", watched(content_digest))
    monkeypatch.setattr(server_cluster, "pair", watched(server_cluster.pair))  # a clerk's check calls it
    town.run(town.now + 200.0)
    assert slow["pair"] == 0
    assert slow["content_digest"] == 0
    assert "pair" in slow, "it is called elsewhere"


def test_nobody_votes_before_most_others_know_its_process() -> None:
    """Of the voters whom a peer met before it promised anything, one at least is among more than half of the others."""
    parliament = ServerCluster(world(5, gossip__gather=1.0), Faults(links=QUICK))
    town, (*few, fourth, _) = parliament.town, parliament.made.peers
    town.start(*few)
    parliament.run(400.0)
    assert parliament.leading() is None, "three of five are a majority, and each has met two of four others"
    assert not any(node.ledger.chambers[EVERYONE].sworn for node in parliament.nodes().values())
    town.start(fourth)
    assert parliament.reach(2, 600.0)
    assert all(node.ledger.chambers[EVERYONE].votes for node in parliament.nodes().values())
    town.kill("peer1")
    assert parliament.reach(max(parliament.rounds().values()) + 3, 600.0), "once sworn, three of five are enough"


def test_a_hello_of_who_has_not_heard_from_this_process_proves_nothing() -> None:
    """It may know an earlier one, which promised something."""
    parliament = ServerCluster(world(3, gossip__gather=1.0))
    node = parliament.residents.node("peer1", Recovered(snapshot=None, entries=()))
    node.step(Tick(0))

    def hello(known_life: int) -> Hello:
        return Hello(
            life=7,
            nonce=7,
            known_life=known_life,
            contract=node.setup.contract,
            groups=((EVERYONE, node.life.digest_of(EVERYONE)),),
            lanes=(),
            round=1,
            begun=True,
            roster=1,
            answer=True,
        )

    for known_life, sworn in ((0, False), (node.ledger.life - 1, False), (node.ledger.life, True)):
        for other in ("peer2", "peer3"):
            node.step(Heard(other, 1, 1, hello(known_life)))
        node.step(Tick(node.life.now + 60))
        assert node.phase == "learning"
        assert node.ledger.chambers[EVERYONE].sworn is sworn


def test_what_is_not_answered_is_said_again_more_and_more_seldom() -> None:
    asked = RetryTimer()
    said = [tick for tick in range(2000) if asked.due("one", tick)]
    gaps = np.diff(said)
    assert said[0] == 0
    assert all(later == min(2 * gap, AGAIN_MAX) for gap, later in pairwise(gaps))
    assert asked.due("another", 2000)
    asked.answered("one")
    assert asked.due("another", 2000 + int(gaps[0]))
    asked.answered("another")
    assert not asked.due("another", 10_000)


def test_a_course_says_how_long_states_are() -> None:
    course: AlgorithmSpec = ServerCluster(world(3)).clerks["peer1"].spec
    assert (course.server_bytes, course.update_bytes, len(course.server), len(course.client)) == (BYTES,) * 4
