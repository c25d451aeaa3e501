"""Coordinated rounds with whole peers: what they accept, what they reject by name, what follows for clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fedpeer.peer.consensus import round_consensus
from fedpeer.peer.consensus.polls import ElectionTiming
from fedpeer.peer.consensus.retries import AGAIN_MAX, AGAIN_MIN, RetryTimer
from fedpeer.peer.consensus.roster_keys import RosterKeys
from fedpeer.peer.consensus.round_results import server_result
from fedpeer.peer.node import handshake
from fedpeer.peer.node.node import Node
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.events import (
    AggregateUpdates,
    ClientTrained,
    Effect,
    Event,
    FinishRound,
    MessageReceived,
    NewRoster,
    Note,
    RejectEffect,
    RoundFinished,
    Send,
    Tick,
    TrainClient,
    UpdatesAggregated,
)
from fedpeer.peer.state.reputation import Reputation
from fedpeer.peer.state.saving import Recovered
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.peer.wire.codec import decode
from fedpeer.peer.wire.consensus_messages import (
    MODELS_MAX,
    Accept,
    Certificate,
    Commit,
    Heartbeat,
    Proposal,
    Propose,
    ShortHeartbeat,
    VoteReply,
    VoteRequest,
    acceptance_text,
)
from fedpeer.peer.wire.leaf_bytes import content_of
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
from tests.faults.server_cluster import BYTES, ServerCluster, VectorTrainer, world
from tests.peer.frames import framed

QUICK = LinkRules(delay=0.2, jitter=0.2)
#: Part of the simulator's row about an update that is sent.
SENT = ("said", "Update")
#: Ticks in which all peers meet and begin.
CALM = 200.0


def sat(peers: int = 3, round: int = 2, **settings: object) -> ServerCluster:
    """Return a cluster whose peers have reached this round."""
    consensus_cluster = ServerCluster(world(peers), Faults(links=QUICK), **settings)  # type: ignore[arg-type]
    consensus_cluster.simulator.start()
    assert consensus_cluster.reach(round, 1000.0), consensus_cluster.rounds()
    return consensus_cluster


@pytest.fixture(scope="module")
def unchanged() -> ServerCluster:
    """Return one such cluster for all tests of rejections, since these change nothing."""
    return sat()


@pytest.fixture
def cluster(unchanged: ServerCluster) -> ServerCluster:
    """Return that cluster, with no peer charged for what it sent in another test."""
    for node in unchanged.nodes().values():
        node.state.others.reputations.clear()
        node.state.others.changed()
    return unchanged


def told(node: Node, sender: str, message: Message) -> list[Effect]:
    """Hand the node a message that comes as bytes and passes its policy; return the effects."""
    received = read(node, sender, message)
    assert not isinstance(received, Rejection), received
    return node.step(MessageReceived(sender, node.durable.met[sender], node.durable.incarnation, received))


def read(node: Node, sender: str, message: Message) -> Message | Rejection:
    """Return the message as the node's policy decodes it, or its rejection."""
    policy = node.policy(sender)
    envelope = Envelope(
        federation=policy.federation,
        sender=sender,
        recipient=node.state.me,
        incarnation=node.durable.met[sender],
        to_incarnation=node.durable.incarnation,
    )
    found = decode(framed(message, envelope), policy)
    return found if isinstance(found, Rejection) else found[1]


def leader_of(consensus_cluster: ServerCluster) -> Node:
    leader = consensus_cluster.leading()
    assert leader is not None
    return consensus_cluster.node(leader)


def update(node: Node, content: bytes, *, late: int = 0) -> Update:
    """Return an update for the round for which this coordinator collects updates, or for one `late` rounds before."""
    term, round = (
        node.consensus_by_group[EVERYONE].round_commit.election.hard_state.term,
        node.consensus_by_group[EVERYONE].applied + 1 - late,
    )
    return Update(group=EVERYONE, term=term, round=round, digest=content_digest(content), content=content)


def refusals(effects: Iterable[Effect]) -> list[str]:
    """Return the codes of the rejections, each of which was also sent to the rejected peer."""
    codes = [each.rejection.code for each in effects if isinstance(each, RejectEffect)]
    said = [each.message.code for each in effects if isinstance(each, Send) and isinstance(each.message, RejectMessage)]
    assert codes == said
    return codes


def numbers(*values: float) -> bytes:
    return np.array(values).tobytes()


@pytest.mark.slow
def test_an_update_is_taken_once_and_acknowledged_each_time() -> None:
    consensus_cluster = sat()
    node = leader_of(consensus_cluster)
    sender = next(peer for peer in consensus_cluster.made.peers if peer != node.state.me)
    own = update(node, numbers(1, 2))
    for _ in range(2):
        effects = told(node, sender, own)
        assert [each.message for each in effects if isinstance(each, Send)] == [
            Ack(group=EVERYONE, taken=own.term, round=own.round)
        ]
    assert refusals(told(node, sender, update(node, numbers(1, 3)))) == ["second_update"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
def test_an_update_with_numbers_that_are_none_is_refused(cluster: ServerCluster, bad: float) -> None:
    node = leader_of(cluster)
    sender = next(peer for peer in cluster.made.peers if peer != node.state.me)
    assert refusals(told(node, sender, update(node, numbers(1, bad)))) == ["not_finite"]


def test_an_update_that_comes_too_late_is_told_so(cluster: ServerCluster) -> None:
    node = leader_of(cluster)
    sender = next(peer for peer in cluster.made.peers if peer != node.state.me)
    assert refusals(told(node, sender, update(node, numbers(1, 2), late=1))) == ["round_closed"]


@pytest.mark.slow
def test_an_update_that_comes_while_a_round_is_closed_is_told_so() -> None:
    consensus_cluster = sat()
    node = leader_of(consensus_cluster)
    consensus = node.consensus_by_group[EVERYONE]
    sender = next(peer for peer in consensus_cluster.made.peers if peer != node.state.me)
    simulator = consensus_cluster.simulator
    assert consensus_cluster.run(
        simulator.now + 50.0, lambda: consensus._gathering.closed and consensus.round_commit.gathering
    )
    assert refusals(told(node, sender, update(node, numbers(1, 2)))) == ["round_closed"]


@pytest.mark.slow
def test_an_update_that_was_acknowledged_is_not_sent_again() -> None:
    """No update is repeated while the slowest client trains, which takes twice as long as an answer."""
    consensus_cluster = sat(3, round=4, pace={"peer3": 6.0})
    leader, said = (
        consensus_cluster.leading(),
        Counter(row[2] for row in consensus_cluster.simulator.rows if row[1:4:2] == SENT),
    )
    assert leader is not None
    assert {peer: count for peer, count in said.items() if peer != leader} == dict.fromkeys(
        sorted({"peer1", "peer2", "peer3"} - {leader}), max(said.values())
    )
    assert 4 <= max(said.values()) <= 5


@pytest.mark.parametrize(("code", "again"), [("too_many_requests", True), ("round_closed", False)])
def test_an_update_is_sent_again_unless_it_is_refused_itself(code: str, again: bool) -> None:
    """A coordinator whose messages wait for its disk has no room, which is no word about the update."""
    consensus_cluster = sat()
    leader = leader_of(consensus_cluster).state.me
    node = next(each for peer, each in consensus_cluster.nodes().items() if peer != leader)
    consensus, until = node.consensus_by_group[EVERYONE], consensus_cluster.simulator.now + 100.0
    assert consensus_cluster.run(until, lambda: consensus.update_waits)
    told(node, leader, RejectMessage(code=code, group=EVERYONE, seq=0, text="", claims=()))
    ticks = range(node.state.now + 1, node.state.now + 2 * AGAIN_MIN)
    sent = [each for now in ticks for each in node.step(Tick(now)) if isinstance(each, Send)]
    assert any(isinstance(each.message, Update) for each in sent) is again


def test_an_update_to_who_does_not_coordinate_is_refused(cluster: ServerCluster) -> None:
    leader = leader_of(cluster)
    one, other = [peer for peer in cluster.made.peers if peer != leader.state.me]
    assert refusals(told(cluster.node(one), other, update(leader, numbers(1, 2)))) == ["stale_term"]


@pytest.mark.slow
def test_who_takes_no_part_in_a_round_is_refused() -> None:
    consensus_cluster = sat(5, share=0.4)
    node = leader_of(consensus_cluster)
    part = node.consensus_by_group[EVERYONE].spec.takes_part(
        node.consensus_by_group[EVERYONE].applied + 1, node.consensus_by_group[EVERYONE].clients
    )
    sender = next(peer for peer in consensus_cluster.made.peers if peer not in part and peer != node.state.me)
    assert refusals(told(node, sender, update(node, numbers(1, 2)))) == ["implausible"]


@pytest.mark.slow
def test_a_round_goes_on_without_who_sends_nonsense_and_it_is_told_once_a_round() -> None:
    liars = {"peer4": frozenset((3, 4))}
    # A round takes longer than the wait before an update is sent again.
    consensus_cluster = sat(5, round=7, liars=liars, pace={"peer5": 5.0})
    leader = consensus_cluster.leading()
    assert leader != "peer4", "else its own update would not count, without a word"
    assert Counter(consensus_cluster.seen.refused) == {(leader, "not_finite", "peer4"): 2}
    counted, _ = leader_of(consensus_cluster).consensus_by_group[EVERYONE].in_force
    assert counted["peer4"] >= 5
    late = consensus_cluster.simulator.rows
    assert not [row for row in late if row[1] == "note" and row[3] == "edge_paused"]
    level = consensus_cluster.run(consensus_cluster.simulator.now + 400.0, consensus_cluster.level)
    assert level
    assert not consensus_cluster.law(), "what did not count is not kept"


@pytest.mark.slow
def test_a_coordinator_whose_own_training_fails_goes_on() -> None:
    first = leader_of(sat()).state.me
    consensus_cluster = ServerCluster(world(3), Faults(links=QUICK), liars={first: frozenset({3})})
    notes: list[str] = []
    said = consensus_cluster.simulator.on_effect

    def on_event(peer: str, effect: Effect) -> None:
        said(peer, effect)
        if isinstance(effect, Note) and effect.what == "update_void":
            notes.append(peer)

    consensus_cluster.simulator.on_effect = on_event
    consensus_cluster.simulator.start()
    assert consensus_cluster.reach(5, 500.0)
    assert notes == [first]
    assert not consensus_cluster.seen.refused


def test_a_coordinator_whose_own_training_comes_too_late_says_so_once() -> None:
    consensus_cluster = sat()
    node = leader_of(consensus_cluster)
    consensus, until = node.consensus_by_group[EVERYONE], consensus_cluster.simulator.now + 100.0
    assert consensus_cluster.run(until, lambda: consensus.round_commit.gathering and node.client.working)  # type: ignore[union-attr]
    consensus._gather()
    consensus._gathering.closed = True  # at the deadline; its updates are being aggregated
    content = numbers(1, 2)
    done: list[Event] = [ClientTrained(consensus.applied + 1, bytes(BYTES), content, content_digest(content))]
    events = done + [Tick(node.state.now + ticks) for ticks in range(1, 9)]
    effects = [each for event in events for each in node.step(event)]
    assert len([each for each in effects if isinstance(each, Note) and each.what == "update_void"]) == 1


@pytest.mark.slow
def test_a_slow_client_takes_part_when_it_comes_and_keeps_what_counted() -> None:
    """The client's training takes longer than the deadline: rounds close without it, and it is notified."""
    consensus_cluster = sat(3, round=6, pace={"peer2": 12.0})
    assert (True, "round_closed") not in {(by == "peer2", code) for by, code, _ in consensus_cluster.seen.refused}
    assert consensus_cluster.run(consensus_cluster.simulator.now + 800.0, consensus_cluster.level)
    assert not consensus_cluster.law()
    consensus_cluster.judge()
    assert {row[2] for row in consensus_cluster.simulator.rows if row[1] == "note" and row[3] == "went_on_without"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_the_next_round_comes_soon_after_the_coordinator_was_killed(seed: int) -> None:
    """No round waits for a peer that answers no heartbeat, least of all for the deposed coordinator; its state in
    membership, and the 200 ticks for which that may be wrong, do not matter."""
    consensus_cluster = ServerCluster(world(5, gossip__deadline=30.0), Faults(seed=seed, links=QUICK))
    simulator = consensus_cluster.simulator
    simulator.start()
    assert consensus_cluster.reach(3, 1000.0)
    consensus_cluster.run(simulator.now + 4 * seed)
    victim, before = consensus_cluster.leading(), max(consensus_cluster.seen.models)
    assert victim is not None
    simulator.kill(victim)
    training = consensus_cluster.node_factory.driver().work_ticks("peer1", TrainClient(1, b"", b"", ()))
    bound = 3 * ElectionTiming().shortest + training
    assert consensus_cluster.run(simulator.now + bound, lambda: max(consensus_cluster.seen.models) > before), (
        "no round without it"
    )
    again = consensus_cluster.run(simulator.now + bound, lambda: max(consensus_cluster.seen.models) > before + 2)
    assert again, "nor do later rounds wait for it"
    simulator.start(victim)
    consensus_cluster.settle_down()


def test_a_peer_without_a_vote_says_that_rounds_pause() -> None:
    """It does not stand, so no election of its own ends the term of a coordinator that is gone."""
    consensus_cluster = sat()
    leader = leader_of(consensus_cluster).state.me
    node = next(each for peer, each in consensus_cluster.nodes().items() if peer != leader)
    node.state.lose_vote()
    ticks = range(node.state.now + 1, node.state.now + 3 * round_consensus.PAUSED_TICKS)
    notes = [each.what for now in ticks for each in node.step(Tick(now)) if isinstance(each, Note)]
    assert notes.count("rounds_paused") == 1
    consensus = node.consensus_by_group[EVERYONE]
    assert consensus.paused


@pytest.mark.slow
def test_a_round_whose_clients_are_all_gone_changes_nothing() -> None:
    """No participant is present; after the deadline the next round has others."""
    consensus_cluster = ServerCluster(world(5), Faults(links=QUICK), share=0.2)
    alone = consensus_cluster.trainers["peer1"]
    simulator = consensus_cluster.simulator
    simulator.start()
    assert consensus_cluster.reach(2, CALM)
    leader = consensus_cluster.leading()
    # The next round whose only participant is not the coordinator.
    coming = ((n, alone.spec.takes_part(n, sorted(consensus_cluster.made.peers))) for n in range(4, 200))
    round, victim = next((n, part[0]) for n, part in coming if part[0] != leader)
    assert consensus_cluster.reach(round - 2, 4000.0)
    simulator.kill(victim)
    before = consensus_cluster.seen.contents
    assert consensus_cluster.reach(round + 1, 1200.0), consensus_cluster.rounds()
    assert before[round] == before[round - 1]
    assert consensus_cluster.seen.contents[round + 1] != before[round]


@pytest.mark.parametrize(
    ("signers", "code"),
    [
        ("01x", "round_gap"),
        ("0!x", "bad_signature"),
        ("0!", "bad_signature"),
        ("0x", "bad_signature"),
    ],
    ids=["beside a majority", "beside a forgery", "a forgery", "instead of a majority"],
)
def test_a_signature_of_who_was_put_out_is_no_proof_and_no_forgery(
    cluster: ServerCluster, signers: str, code: str
) -> None:
    """A revoked peer's key (x) may be unknown. A wrong signature under a known key (!) is a forgery, whatever other
    peers signed; so is a round without a majority of the voters whose keys are known.
    """
    node = leader_of(cluster)
    others = [peer for peer in cluster.made.peers if peer != node.state.me]
    scope = node.consensus_by_group[EVERYONE].round_commit.election.scope
    applied = node.durable.consensus_states[EVERYONE].holding.applied
    assert applied is not None
    proposal = replace(applied.proposal, round=applied.proposal.round + 1)

    def acceptance(signer: str) -> tuple[str, bytes]:
        if not signer.isdigit():
            return {"x": "peer9", "!": others[1]}[signer], bytes(64)
        who = others[int(signer)]
        return who, cluster.node(who).state.sign(acceptance_text(scope, who, proposal))

    message = Commit(Certificate(proposal, tuple(map(acceptance, signers))))
    effects = told(node, others[0], ConsensusMessage(group=EVERYONE, message=message))
    assert [each.rejection.code for each in effects if isinstance(each, RejectEffect)] == [code]


def test_who_aggregates_what_a_later_coordinator_has_committed_applies_it_and_proposes_nothing() -> None:
    """The same updates give the same model. As that of the next round, it would discard the trainings of that round."""
    consensus_cluster = sat()
    node = leader_of(consensus_cluster)
    consensus = node.consensus_by_group[EVERYONE]
    election, round = consensus.round_commit.election, consensus.applied + 1
    content = content_of({}, numbers(1, 2))
    proposal = Proposal(election.hard_state.term + 1, round, 1, content_digest(content))
    others = [peer for peer in consensus_cluster.made.peers if peer != node.state.me]
    acceptances = tuple(
        (peer, consensus_cluster.node(peer).state.sign(acceptance_text(election.scope, peer, proposal)))
        for peer in others
    )
    told(node, others[0], ConsensusMessage(group=EVERYONE, message=Commit(Certificate(proposal, acceptances))))
    consensus._gather()
    consensus._gathering.closed = True
    node.step(UpdatesAggregated(election.hard_state.term, round, content, proposal.digest))
    assert consensus.applied == round
    assert consensus.consensus_state.holding.accepted is None


def test_a_model_is_given_to_who_wants_it_and_none_else_is_known(cluster: ServerCluster) -> None:
    node = leader_of(cluster)
    sender = next(peer for peer in cluster.made.peers if peer != node.state.me)
    consensus_state = node.durable.consensus_states[EVERYONE]
    digest, content = next(iter(consensus_state.models.items()))
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
def test_a_model_that_is_not_what_was_committed_is_refused(cluster: ServerCluster, content: bytes, code: str) -> None:
    node = leader_of(cluster)
    sender = next(peer for peer in cluster.made.peers if peer != node.state.me)
    digest = bytes(32) if code == "digest_mismatch" else content_digest(content)
    before = node.durable.consensus_states[EVERYONE].models
    node.consensus_by_group[EVERYONE]._wanted[digest] = RetryTimer()
    found = read(node, sender, ModelReply(group=EVERYONE, digest=digest, content=content))
    assert isinstance(found, Rejection)
    assert found.code == code
    assert node.durable.consensus_states[EVERYONE].models == before


@pytest.mark.slow
def test_an_update_in_another_clients_name_is_refused() -> None:
    """An update may name its client, as MOCHA's names its task; here its second number does."""
    consensus_cluster = sat(5)
    node = leader_of(consensus_cluster)
    seat = node.consensus_by_group[EVERYONE]
    seat.spec = replace(seat.spec, number=lambda content: int(np.frombuffer(content)[1]))
    number, sender = next(each for each in enumerate(seat.clients) if each[1] != node.state.me)
    assert refusals(told(node, sender, update(node, numbers(1.0, number + 1)))) == ["wrong_client"]
    assert "R17" in REJECTIONS["wrong_client"].ids
    other = next(each for each in enumerate(seat.clients) if each[1] not in (sender, node.state.me))
    assert refusals(told(node, other[1], update(node, numbers(1.0, other[0])))) == []


@pytest.mark.slow
def test_who_states_no_capability_for_it_is_sent_no_short_heartbeat() -> None:
    consensus_cluster = sat()
    node = leader_of(consensus_cluster)
    one, other = (peer for peer in consensus_cluster.made.peers if peer != node.state.me)
    assert beats(node) == {one: (ShortHeartbeat, 2), other: (ShortHeartbeat, 2)}
    member = consensus_cluster.node(one)
    hello = replace(
        _hello(member, node.durable.generation), generation=member.durable.generation, nonce=member.setup.nonce
    )
    told(node, one, replace(hello, capabilities=("proofs",)))
    assert beats(node) == {one: (Heartbeat, 2), other: (ShortHeartbeat, 2)}
    node.state.others[other].speak_older(node.state.now)
    assert beats(node) == {one: (Heartbeat, 2), other: (Heartbeat, 1)}


def beats(node: Node) -> dict[str, tuple[type, int]]:
    """Return, by member, the kind of this coordinator's next heartbeat and the version of the wire."""
    found: dict[str, tuple[type, int]] = {}
    while not found:
        for effect in node.step(Tick(node.state.now + 1)):
            match effect:
                case Send(message=ConsensusMessage(message=Heartbeat() | ShortHeartbeat() as message)):
                    found[effect.to] = type(message), effect.version
    return found


@pytest.mark.slow
def test_among_peers_of_an_earlier_release_each_heartbeat_has_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "CAPABILITIES", ("proofs",))
    consensus_cluster = sat()
    assert {kind for kind, _ in beats(leader_of(consensus_cluster)).values()} == {Heartbeat}
    consensus_cluster.judge()


@pytest.mark.slow
def test_whose_update_is_left_out_of_a_round_is_told() -> None:
    consensus_cluster = sat()
    node = leader_of(consensus_cluster)
    seat, simulator = node.consensus_by_group[EVERYONE], consensus_cluster.simulator
    assert consensus_cluster.run(simulator.now + 50.0, lambda: seat._gathering.closed and seat.round_commit.gathering)
    sender = next(peer for peer in consensus_cluster.made.peers if peer != node.state.me)
    job = AggregateUpdates(
        seat.round_commit.election.hard_state.term, seat.applied + 1, bytes(BYTES), {}, {sender: b""}, seat.clients
    )
    far = Rejection("too_far", "it moved by 9")
    effects = node.step(server_result(job, bytes(BYTES), sound=True, out={sender: far, node.state.me: far}))
    assert refusals(effects) == ["too_far"]
    notes = [each.text for each in effects if isinstance(each, Note) and each.what == "update_void"]
    assert notes == ["this peer's own update does not count: it moved by 9"]
    assert [each for each in effects if isinstance(each, Send) and isinstance(each.message, ConsensusMessage)], (
        "it is proposed"
    )


@pytest.mark.slow
def test_the_clients_of_a_round_are_those_of_the_roster_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """All peers have the same clients in each round, without a restart."""
    made = world(4)
    *first, new = made.peers
    consensus_cluster = ServerCluster(made, Faults(links=QUICK), roster=first)
    options: dict[int, set[tuple[str, ...]]] = {}
    last: dict[str, tuple[str, ...]] = {}
    work = VectorTrainer.serve

    def worked(
        trainer: VectorTrainer, job: TrainClient | AggregateUpdates | FinishRound
    ) -> ClientTrained | UpdatesAggregated | RoundFinished:
        if not isinstance(job, FinishRound):
            last[trainer.me] = job.clients
            if trainer.me != new or job.round > 2:  # it trains for the first round before it learns that this is over
                options.setdefault(job.round, set()).add(job.clients)
        return work(trainer, job)

    monkeypatch.setattr(VectorTrainer, "serve", worked)
    consensus_cluster.simulator.start(*first)
    assert consensus_cluster.reach(2, CALM)
    invited = consensus_cluster.signed(2, made.peers)
    consensus_cluster.admit(invited, made.peers)
    consensus_cluster.simulator.feed(first[0], NewRoster(invited))
    consensus_cluster.simulator.start(new)
    assert consensus_cluster.run(consensus_cluster.simulator.now + 600.0, lambda: len(consensus_cluster.rounds()) == 4)
    assert consensus_cluster.reach(max(consensus_cluster.rounds().values()) + 3, 600.0)
    assert {len(each) for each in options.values()} == {1}
    assert {tuple(made.peers), tuple(first)} == set.union(*options.values())
    assert last == dict.fromkeys(made.peers, tuple(made.peers))


@pytest.mark.slow
def test_where_the_server_has_a_place_for_each_client_another_roster_ends_the_rounds() -> None:
    """All peers stop and state the reason, and a peer that is started again does the same."""
    made = world(4)
    *first, _ = made.peers
    consensus_cluster = ServerCluster(made, Faults(links=QUICK), roster=first)
    for trainer in consensus_cluster.trainers.values():
        trainer.fixed = True
    simulator = consensus_cluster.simulator
    simulator.start(*first)
    assert consensus_cluster.reach(2, CALM)
    invited = consensus_cluster.signed(2, made.peers)
    consensus_cluster.admit(invited, made.peers)
    simulator.feed(first[0], NewRoster(invited))
    assert consensus_cluster.run(simulator.now + 200.0, lambda: set(simulator.stopped) >= set(first)), simulator.stopped
    words = "the server has a place for each of the 3 peers of roster 1, and roster 2 has others"
    for peer in first:
        assert simulator.stopped[peer].code == 2
        assert words in simulator.stopped[peer].text
    simulator.stopped.clear()
    simulator.start(first[1])
    assert consensus_cluster.run(simulator.now + 50.0, lambda: first[1] in simulator.stopped)
    assert words in simulator.stopped[first[1]].text


def test_a_model_that_nobody_asked_for_is_not_kept(cluster: ServerCluster) -> None:
    node = leader_of(cluster)
    sender = next(peer for peer in cluster.made.peers if peer != node.state.me)
    content = bytes(4) + numbers(1, 2)
    assert not told(node, sender, ModelReply(group=EVERYONE, digest=content_digest(content), content=content))
    assert content_digest(content) not in node.durable.consensus_states[EVERYONE].models


@pytest.mark.slow
def test_who_has_another_key_under_a_roster_neither_votes_nor_accepts_nor_stands_under_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consensus_cluster = sat()
    leader = leader_of(consensus_cluster).state.me
    node = next(node for peer, node in consensus_cluster.nodes().items() if peer != leader)
    consensus = node.consensus_by_group[EVERYONE]
    holding, election = consensus.round_commit.holding, consensus.round_commit.election
    assert holding.applied is not None
    same = Proposal(election.hard_state.term, holding.round + 1, 1, holding.applied.proposal.digest)
    asked = VoteRequest(election.hard_state.term + 1, True, 1, holding.progress)
    for may, kinds in ((False, set()), (True, {VoteReply, Accept})):
        monkeypatch.setattr(RosterKeys, "signs_under", lambda keys, number, may=may: may)
        effects = [
            effect
            for message in (asked, Propose(same))
            for effect in told(node, leader, ConsensusMessage(group=EVERYONE, message=message))
        ]
        said = {
            type(e.message.message) for e in effects if isinstance(e, Send) if isinstance(e.message, ConsensusMessage)
        }
        assert said & {VoteReply, Accept} == kinds
    monkeypatch.setattr(RosterKeys, "signs_under", lambda keys, number: False)
    effects = [effect for _ in range(600) for effect in node.step(Tick(node.state.now + 1))]
    assert not [e for e in effects if isinstance(e, Send) and isinstance(e.message, ConsensusMessage)]


@pytest.mark.slow
def test_who_coordinates_and_proposes_many_models_is_asked_for_the_last_few() -> None:
    """A proposal that is not accepted yet does not bind its coordinator: it may send another, and another."""
    consensus_cluster = sat()
    leader = leader_of(consensus_cluster).state.me
    node = next(node for peer, node in consensus_cluster.nodes().items() if peer != leader)
    consensus = node.consensus_by_group[EVERYONE]
    term, contents = consensus.round_commit.election.hard_state.term, [bytes(4) + numbers(9, n) for n in range(100)]
    for content in contents:
        proposal = Proposal(term, consensus.applied + 1, 1, content_digest(content))
        told(node, leader, ConsensusMessage(group=EVERYONE, message=Propose(proposal)))
    assert len(consensus._wanted) <= MODELS_MAX
    first, last = (ModelReply(group=EVERYONE, digest=content_digest(each), content=each) for each in contents[::99])
    told(node, leader, first)
    assert first.digest not in consensus.consensus_state.models
    told(node, leader, last)
    assert last.digest in consensus.consensus_state.models


@pytest.mark.slow
def test_nothing_is_hashed_or_looked_through_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both take long for a large model, so only the decoder of messages, or the trainer's thread, does them."""
    simulator, inside, slow = sat().simulator, [False], Counter[str]()
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
    monkeypatch.setattr(server_cluster, "pair", watched(server_cluster.pair))  # checks of contents call it
    simulator.run(simulator.now + 100.0)
    assert slow["pair"] == 0
    assert slow["content_digest"] == 0
    assert "pair" in slow, "it is called elsewhere"


@pytest.mark.slow
def test_nobody_votes_before_most_others_know_its_process() -> None:
    """An earlier process of a peer met more than half of the other voters before it promised anything, so any majority
    of them has a voter that knows of it."""
    consensus_cluster = ServerCluster(world(5, gossip__gather=1.0), Faults(links=QUICK))
    simulator, (*few, fourth, _) = consensus_cluster.simulator, consensus_cluster.made.peers
    simulator.start(*few)
    consensus_cluster.run(200.0)
    assert consensus_cluster.leading() is None, "three of five are a majority, and each has met two of four others"
    assert not any(
        node.durable.consensus_states[EVERYONE].voting_allowed for node in consensus_cluster.nodes().values()
    )
    simulator.start(fourth)
    assert consensus_cluster.reach(2, 600.0)
    assert all(node.durable.consensus_states[EVERYONE].votes for node in consensus_cluster.nodes().values())
    simulator.kill("peer1")
    assert consensus_cluster.reach(max(consensus_cluster.rounds().values()) + 3, 600.0), (
        "once sworn, three of five are enough"
    )


def _hello(node: Node, known_generation: int) -> Hello:
    return Hello(
        generation=7,
        nonce=7,
        known_generation=known_generation,
        contract=node.setup.contract,
        groups=((EVERYONE, node.state.digest_of(EVERYONE)),),
        channels=(),
        round=1,
        begun=True,
        roster=1,
        answer=True,
    )


def test_a_hello_of_who_has_not_heard_from_this_process_proves_nothing() -> None:
    """The sender of the Hello may know only an earlier process of this peer, which promised something."""
    consensus_cluster = ServerCluster(world(3, gossip__gather=1.0))
    node = consensus_cluster.node_factory.node("peer1", Recovered(snapshot=None, entries=()))
    node.step(Tick(0))
    for known_generation, voting_allowed in (
        (0, False),
        (node.durable.generation - 1, False),
        (node.durable.generation, True),
    ):
        for other in ("peer2", "peer3"):
            node.step(MessageReceived(other, 1, 1, _hello(node, known_generation)))
        node.step(Tick(node.state.now + 60))
        assert node.phase == "learning"
        assert node.durable.consensus_states[EVERYONE].voting_allowed is voting_allowed


@pytest.mark.parametrize(("liars", "voting_allowed"), [((), False), (("peer3",), True), (("peer2", "peer3"), False)])
def test_one_liar_of_three_does_not_keep_the_others_from_voting(liars: Sequence[str], voting_allowed: bool) -> None:
    """peer1 has met only peer2, which is enough if it ignores peer3; a peer that ignores everybody does not vote."""
    consensus_cluster = ServerCluster(world(3, gossip__gather=1.0))
    node = consensus_cluster.node_factory.node("peer1", Recovered(snapshot=None, entries=()))
    node.step(Tick(0))
    node.step(MessageReceived("peer2", 1, 1, _hello(node, node.durable.generation)))
    for liar in liars:
        node.state.others.reputations[liar] = Reputation(closed=True)
    for tick in range(60, 600, 60):  # it waits for the peers that it has not met, and then begins
        node.step(Tick(tick))
    assert node.phase == "learning"
    assert node.durable.consensus_states[EVERYONE].voting_allowed is voting_allowed


def test_what_is_not_answered_is_said_again_more_and_more_seldom() -> None:
    options = RetryTimer()
    said = [tick for tick in range(2000) if options.due("one", tick)]
    gaps = np.diff(said)
    assert said[0] == 0
    assert all(later == min(2 * gap, AGAIN_MAX) for gap, later in pairwise(gaps))
    assert options.due("another", 2000)
    options.answered("one")
    assert options.due("another", 2000 + int(gaps[0]))
    options.answered("another")
    assert not options.due("another", 10_000)


def test_a_spec_says_how_long_states_are() -> None:
    spec: AlgorithmSpec = ServerCluster(world(3)).trainers["peer1"].spec
    assert (spec.server_bytes, spec.update_bytes, len(spec.server), len(spec.client)) == (BYTES,) * 4
