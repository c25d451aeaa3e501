"""Messages that a node in the middle of a run must reject, since they are out of order: named, and without effect.

They are the rows of the table of bad inputs that only a node can judge; their ids are the tests' ids.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpeer.gossip.claims import claim_text
from fedpeer.gossip.incarnations import INCARNATION_AHEAD_MAX
from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.node.node import Node
from fedpeer.peer.state.events import (
    Enrol,
    Evaluated,
    MessageReceived,
    NewRoster,
    Note,
    OperatorCommand,
    Persist,
    RejectEffect,
    Stop,
    Tick,
)
from fedpeer.peer.state.journal import snapshot_bytes
from fedpeer.peer.state.node_state import YOUNG_TICKS
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Hello, Ping, RosterNews, Transfer
from fedpeer.peer.wire.roster import to_bytes
from fedpeer.rejection import Rejection
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from tests.faults.peer_cluster import ENDLESS, AddingTrainer, PeerCluster, world
from tests.faults.scenarios import CALM
from tests.faults.storms import stormy


def met(peers: int = 4) -> tuple[PeerCluster, Node, str]:
    """Return a run in about its third round, one node, and a neighbor that has sent shares to it."""
    cluster = PeerCluster(world(peers), Faults(seed=1, links=LinkRules(delay=0.2)))
    cluster.simulator.start()
    cluster.run(80.0)
    other, me = sorted(cluster.all_edges())[0]
    return cluster, cluster.node(me), other


@pytest.fixture(scope="module")
def unchanged() -> tuple[PeerCluster, Node, str]:
    """Return one such run for all tests of rejections, since these change nothing."""
    return met()


@pytest.fixture
def running(unchanged: tuple[PeerCluster, Node, str]) -> tuple[PeerCluster, Node, str]:
    """Return that run, with no neighbor charged for what it sent in another test."""
    others = unchanged[1].state.others
    others.reputations.clear()
    others.changed()
    return unchanged


def given(cluster: PeerCluster, node: Node, other: str, **changed: Any) -> Transfer:
    """Return the next transfer that this neighbor could send, `ahead` numbers further on, with any fields changed."""
    group = cluster.groups[0]
    channel = node.durable.groups[group].into[other]
    good = Transfer(
        group=group,
        share=NumberedTransfer(
            seq=channel.taken + 1 + changed.pop("ahead", 0),
            round=channel.place[0],
            exchange=channel.place[1],
            weight=0.25,
            form="float32",
            payload=0.25 * node.durable.estimate_D(group).float(),
        ),
    )
    return replace(good, share=replace(good.share, **changed))


def received(node: Node, other: str, message: Any, incarnation: int = 1) -> list[str]:
    """Return the codes of the node's rejections; if there are any, it must persist nothing."""
    before = snapshot_bytes(node.durable, {})
    effects = node.step(MessageReceived(other, incarnation, node.durable.incarnation, message))
    codes = [effect.rejection.code for effect in effects if isinstance(effect, RejectEffect)]
    if codes:
        assert not [effect for effect in effects if isinstance(effect, Persist)]
        assert snapshot_bytes(node.durable, {}) == before
    return codes


@pytest.mark.slow
def test_what_could_be_given_next_is_taken() -> None:
    cluster, node, other = met(2)
    taken = node.durable.groups[cluster.groups[0]].into[other].taken
    assert received(node, other, given(cluster, node, other)) == []
    assert node.durable.groups[cluster.groups[0]].into[other].taken == taken + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "changed"),
    [
        pytest.param("early", {"ahead": 1}, id="S14"),
        pytest.param("sequence_jump", {"ahead": 2}, id="E11"),
        pytest.param("sequence_jump", {"seq": 2**63 - 1}, id="E11-far"),
        pytest.param("sequence_reused", {"ahead": -1}, id="S08"),
        pytest.param("stale_epoch", {"round": 0}, id="S10"),
        pytest.param("epoch_too_early", {"round": ENDLESS + 2}, id="S11"),
    ],
)
def test_out_of_order_is_refused_by_name(
    running: tuple[PeerCluster, Node, str], code: str, changed: dict[str, Any]
) -> None:
    cluster, node, other = running
    assert received(node, other, given(cluster, node, other, **changed)) == [code]


@pytest.mark.slow
def test_the_same_transfer_again_is_harmless() -> None:  # E10
    cluster, node, other = met(2)
    transfer = given(cluster, node, other)
    assert received(node, other, transfer) == []
    assert received(node, other, transfer) == ["repeated"]


@pytest.mark.slow
def test_an_absurd_value_is_implausible(running: tuple[PeerCluster, Node, str]) -> None:  # S09
    cluster, node, other = running
    absurd = torch.full_like(given(cluster, node, other).share.payload, 1e6)
    assert received(node, other, given(cluster, node, other, payload=absurd)) == ["implausible"]


@pytest.mark.slow
def test_who_holds_more_than_others_take_gives_smaller_shares() -> None:  # S15
    """Whatever made it so heavy, none of its shares has to be rejected, and it goes on sending them."""
    cluster, node, _ = met()
    cluster.simulator.stepped = lambda peer, machine: None  # the weight that is added here is not accounted for
    group, me = cluster.groups[0], node.state.me
    holding = node.durable.groups[group]
    node.durable.groups[group] = replace(holding, held=holding.held.scaled(40.0))
    given = len(cluster.simulator.rows)
    cluster.run(cluster.simulator.now + 150.0)
    rows = cluster.simulator.rows[given:]
    assert not [row for row in rows if row[1] == "refused" and row[3] == "bad_weight"]
    assert not [
        row for row in rows if row[1:4] == ("refused", me, "no_room") and row[0] > cluster.simulator.now - 100.0
    ]
    for other in (receiver for sender, receiver in cluster.all_edges() if sender == me):
        channel = cluster.node(other).durable.groups[group].into[me]
        back = cluster.node(other).durable.groups[group].out[me]
        assert 1.5 < channel.taken_weight - back.weight_until(back.made) <= 3.0 * (1 + 1e-6)
        assert channel.place[0] >= node.durable.round - 1, "it still gives"


@pytest.mark.slow
def test_another_plan_is_refused() -> None:  # S03
    cluster, node, other = met(2)
    node.state.others[other].agreed.clear()
    assert received(node, other, given(cluster, node, other)) == ["plan_mismatch"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "incarnation"),
    [
        pytest.param("stale_incarnation", 0, id="E12"),
        pytest.param("incarnation_jump", INCARNATION_AHEAD_MAX + 2, id="E13"),
    ],
)
def test_incarnations_are_fenced(running: tuple[PeerCluster, Node, str], code: str, incarnation: int) -> None:
    _, node, other = running
    state = node.state.others[other]
    hello = Hello(
        generation=state.generation, nonce=state.nonce, known_generation=0, contract=bytes(32), groups=(),
        channels=(), round=1, begun=True,         roster=1, answer=True,
    )  # fmt: skip
    assert received(node, other, hello, incarnation) == [code]


@pytest.mark.slow
def test_who_is_known_to_all_yields_to_a_later_process_and_who_has_just_come_may_be_the_later_one() -> None:  # E15
    for known, stops in ((True, True), (False, False)):
        cluster, node, other = met(3)
        assert node.state.now < YOUNG_TICKS
        node.state.others[other].met = known
        mine = node.state.membership.statement
        assert mine.advert is not None
        later = replace(
            mine, version=mine.version + 1, advert=replace(mine.advert, generation=mine.advert.generation + 1)
        )
        text = claim_text(cluster.node_factory.roster.federation_id, later)
        later = replace(later, signature=cluster.node_factory._sign(node.state.me, text))
        effects = node.step(MessageReceived(other, 1, node.durable.incarnation, Ping(number=1, claims=(later,))))
        assert [effect.code for effect in effects if isinstance(effect, Stop)] == ([2] if stops else [])
        assert (node.durable.generation > mine.advert.generation + 1) is not stops


def test_who_is_no_neighbor_gives_nothing(running: tuple[PeerCluster, Node, str]) -> None:  # S12
    cluster, node, other = running
    (stranger,) = (
        peer
        for peer in cluster.simulator.peers
        if peer != node.state.me and (peer, node.state.me) not in cluster.all_edges()
    )
    envelope = Envelope(
        federation=cluster.node_factory.roster.federation_id,
        sender=stranger,
        recipient=node.state.me,
        incarnation=1,
        to_incarnation=1,
    )
    frame = b"".join(map(bytes, codec.encode(envelope, given(cluster, node, other))))
    found = codec.decode(frame, node.policy(stranger))
    assert isinstance(found, Rejection)
    assert found.code == "not_a_neighbour"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_what_is_read_from_the_disk_is_what_was_in_memory(seed: int) -> None:
    """After any run, a durable state is its snapshot and the entries after it, to the last bit."""
    made = world(4)
    cluster = PeerCluster(made, stormy(seed, made.peers, ("pause", "full", "kill"), calm=CALM))
    cluster.simulator.start()
    cluster.run(CALM + 400.0)
    nodes = cluster.nodes()
    assert len(nodes) == 4
    for peer in nodes:
        cluster.simulator.feed(peer, OperatorCommand("pause"))
    cluster.run(cluster.simulator.now + 100.0)
    assert set(cluster.simulator.stopped) == set(nodes)
    for peer, node in nodes.items():
        again = cluster.node_factory.node(peer, cluster.simulator.kept(peer)).durable
        assert snapshot_bytes(again, {}) == snapshot_bytes(node.durable, {})


@pytest.mark.slow
def test_who_hears_the_roster_that_puts_it_out_stops_with_a_sentence() -> None:
    made = world(3)
    cluster = PeerCluster(made, Faults(seed=1), roster=made.peers)
    cluster.simulator.start()
    assert cluster.run(CALM, lambda: cluster.node("peer1").durable.round == 2)
    node = cluster.node("peer1")
    later = cluster.signed(2, made.peers[1:])
    effects = node.step(MessageReceived("peer2", 1, 1, RosterNews(number=2, text=to_bytes(later))))
    assert effects[-1] == Stop(2, "peer1 was revoked by roster 2")
    assert Enrol(later) in effects, "its file has the roster, so it does not start again"


def test_who_was_admitted_again_with_another_key_while_it_was_cut_off_stops() -> None:
    """It was revoked by a roster that it never saw: no peer talks to its key any more, and it went on alone."""
    _, node, _ = met(2)
    roster, me = node.state.peer_groups.roster, node.state.me
    entries = tuple(replace(each, key=bytes(range(32))) if each.id == me else each for each in roster.entries)
    effects = node.step(NewRoster(replace(roster, number=3, entries=entries)))
    assert effects[-1] == Stop(2, f"{me} was revoked by roster 3 or an earlier one")


@pytest.mark.slow
def test_a_later_roster_is_logged_with_what_it_changes() -> None:
    _, node, _ = met(3)
    first = node.state.peer_groups.roster
    moved = replace(first.entries[1], address="https://127.0.0.1:9999")
    rosters = [
        replace(first, number=number, entries=(first.entries[0], moved, *first.entries[2:])) for number in (2, 3)
    ]
    texts = [
        e.text for each in rosters for e in node.step(NewRoster(each)) if isinstance(e, Note) and e.what == "roster"
    ]
    assert texts == [f"roster 2: {moved.id} has another address", "roster 3: the same peers"]


def test_an_evaluation_is_told_with_what_examples_held_out_say() -> None:
    _, node, _ = met(2)
    effects = node.step(Evaluated(1, 0.9, 0.25, validation=(0.75, 0.5)))
    (note,) = [each for each in effects if isinstance(each, Note) and each.what == "evaluated"]
    assert note.text == "round 1: score 0.9000, loss 0.2500; validation: score 0.7500, loss 0.5000"
    assert note.fields == {
        "round": 1, "score": 0.9, "loss": 0.25, "validation_score": 0.75, "validation_loss": 0.5
    }  # fmt: skip


def test_a_score_that_is_not_finite_silences_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others refuse each message of membership with such a statement, so its peer would be thought dead."""
    monkeypatch.setattr(AddingTrainer, "evaluate", lambda trainer, x_n: (math.inf, math.nan))
    cluster = PeerCluster(world(2, learning__evaluate_every=1), Faults(seed=1, links=LinkRules(delay=0.2)))
    cluster.simulator.start()
    cluster.run(80.0)
    for node in cluster.nodes().values():
        assert node.state.score == math.inf
        (statement,) = map(node.state.membership.last_statement, node.state.others)
        assert statement is not None
        assert statement.advert is not None
        assert (statement.advert.score, statement.advert.round > 1) == (None, True)


def test_a_peer_that_restarts_in_an_averaging_says_that_it_lasts() -> None:
    cluster, node, _ = met(3)
    assert cluster.run(cluster.simulator.now + 40.0, lambda: node.durable.trained)
    again, deadline = node.again(node.restore_point()), node.state.longest_deadline
    effects = [each for now in range(1, 4 * deadline) for each in again.step(Tick(now))]
    assert [each.what for each in effects if isinstance(each, Note) and each.what == "rounds_stalled"]


def test_a_training_that_diverges_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all that its peer holds and gets would be NaN for good, also with a lower learning rate."""

    def train(trainer: AddingTrainer, round: int, x_n: Tensor, s_k: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        return (x_n * math.nan if round == 2 else x_n), s_k

    monkeypatch.setattr(AddingTrainer, "train", train)
    cluster = PeerCluster(world(2), Faults(seed=1, links=LinkRules(delay=0.2)))
    notes: list[str] = []
    cluster.simulator.on_effect = lambda peer, effect: notes.append(effect.what) if isinstance(effect, Note) else None
    cluster.simulator.start()
    cluster.run(80.0)
    assert notes.count("update_void") == 2
    assert cluster.error() < 1e-6, "they average all the same"
    for node in cluster.nodes().values():
        assert node.durable.round > 3
        assert torch.isfinite(node.durable.x_n).all()


@pytest.mark.slow
def test_an_evaluation_is_told_with_all_its_metrics() -> None:
    _, node, _ = met(2)
    effects = node.step(Evaluated(1, 0.9, 0.25, metrics={"f1": 0.875}))
    (note,) = [each for each in effects if isinstance(each, Note) and each.what == "evaluated"]
    assert note.text == "round 1: score 0.9000, loss 0.2500, f1 0.8750"
    assert note.fields == {"round": 1, "score": 0.9, "loss": 0.25, "metrics": {"f1": 0.875}}
