"""A node in the middle of a run hears what the order of things forbids: refused by name, and nothing changes.

Rows of the table of bad inputs that only a node can judge; their ids are the tests' ids.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedpeer.gossip.claims import claim_text
from fedpeer.gossip.incarnations import INCARNATION_AHEAD_MAX
from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.node.node import Node
from fedpeer.peer.state.events import Enrol, Heard, OperatorCommand, Persist, RejectEffect, Stop
from fedpeer.peer.state.journal import snapshot_bytes
from fedpeer.peer.state.node_state import YOUNG_TICKS
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Hello, Ping, RosterNews, Transfer
from fedpeer.peer.wire.roster import to_bytes
from fedpeer.rejection import Rejection
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from tests.faults.peer_cluster import ENDLESS, PeerCluster, world
from tests.faults.scenarios import CALM, stormy


def met() -> tuple[PeerCluster, Node, str]:
    """A run in its third round or so; one node, and a neighbour of it that has given to it."""
    village = PeerCluster(world(4), Faults(seed=1, links=LinkRules(delay=0.2)))
    village.town.start()
    village.run(80.0)
    other, me = sorted(village.all_edges())[0]
    return village, village.node(me), other


@pytest.fixture(scope="module")
def running() -> tuple[PeerCluster, Node, str]:
    """Such a run for all who are refused, which changes nothing."""
    return met()


def given(village: PeerCluster, node: Node, other: str, **changed: Any) -> Transfer:
    """What this neighbour could give next, with anything changed; `ahead` numbers further on."""
    group = village.groups[0]
    lane = node.ledger.groups[group].into[other]
    good = Transfer(
        group=group,
        parcel=NumberedTransfer(
            seq=lane.taken + 1 + changed.pop("ahead", 0),
            round=lane.place[0],
            exchange=lane.place[1],
            weight=0.25,
            form="float32",
            payload=0.25 * node.ledger.estimate_D(group).float(),
        ),
    )
    return replace(good, parcel=replace(good.parcel, **changed))


def heard(node: Node, other: str, message: Any, incarnation: int = 1) -> list[str]:
    """The codes of what the node refuses then; it must persist nothing."""
    before = snapshot_bytes(node.ledger, {})
    effects = node.step(Heard(other, incarnation, node.ledger.incarnation, message))
    codes = [effect.rejection.code for effect in effects if isinstance(effect, RejectEffect)]
    if codes:
        assert not [effect for effect in effects if isinstance(effect, Persist)]
        assert snapshot_bytes(node.ledger, {}) == before
    return codes


@pytest.mark.slow
def test_what_could_be_given_next_is_taken() -> None:
    village, node, other = met()
    taken = node.ledger.groups[village.groups[0]].into[other].taken
    assert heard(node, other, given(village, node, other)) == []
    assert node.ledger.groups[village.groups[0]].into[other].taken == taken + 1


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
    village, node, other = running
    assert heard(node, other, given(village, node, other, **changed)) == [code]


def test_the_same_transfer_again_is_harmless() -> None:  # E10
    village, node, other = met()
    transfer = given(village, node, other)
    assert heard(node, other, transfer) == []
    assert heard(node, other, transfer) == ["repeated"]


@pytest.mark.slow
def test_an_absurd_value_is_implausible() -> None:  # S09
    village, node, other = met()
    absurd = torch.full_like(given(village, node, other).parcel.payload, 1e6)
    assert heard(node, other, given(village, node, other, payload=absurd)) == ["implausible"]


@pytest.mark.slow
def test_who_holds_more_than_others_take_gives_smaller_shares() -> None:  # S15
    """Whoever made it so heavy: nothing that it gives has to be refused, and it goes on giving."""
    village, node, _ = met()
    group, me = village.groups[0], node.life.me
    holding = node.ledger.groups[group]
    node.ledger.groups[group] = replace(holding, held=holding.held.scaled(40.0))
    given = len(village.town.rows)
    village.run(village.town.now + 300.0)
    rows = village.town.rows[given:]
    assert not [row for row in rows if row[1] == "refused" and row[3] == "bad_weight"]
    assert not [row for row in rows if row[1:4] == ("refused", me, "no_room") and row[0] > village.town.now - 200.0]
    for other in (receiver for sender, receiver in village.all_edges() if sender == me):
        lane = village.node(other).ledger.groups[group].into[me]
        back = village.node(other).ledger.groups[group].out[me]
        assert 1.5 < lane.taken_weight - back.weight_until(back.made) <= 3.0 * (1 + 1e-6)
        assert lane.place[0] >= node.ledger.round - 1, "it still gives"


@pytest.mark.slow
def test_another_plan_is_refused() -> None:  # S03
    village, node, other = met()
    node.life.others[other].agreed.clear()
    assert heard(node, other, given(village, node, other)) == ["plan_mismatch"]


@pytest.mark.parametrize(
    ("code", "incarnation"),
    [
        pytest.param("stale_incarnation", 0, id="E12"),
        pytest.param("incarnation_jump", INCARNATION_AHEAD_MAX + 2, id="E13"),
    ],
)
def test_incarnations_are_fenced(running: tuple[PeerCluster, Node, str], code: str, incarnation: int) -> None:
    _, node, other = running
    life = node.life.others[other]
    hello = Hello(
        life=life.life, nonce=life.nonce, known_life=0, contract=bytes(32), groups=(), lanes=(), round=1, begun=True,
        roster=1, answer=True,
    )  # fmt: skip
    assert heard(node, other, hello, incarnation) == [code]


@pytest.mark.slow
def test_who_is_known_to_all_yields_to_a_later_process_and_who_has_just_come_may_be_the_later_one() -> None:  # E15
    for known, stops in ((True, True), (False, False)):
        village, node, other = met()
        assert node.life.now < YOUNG_TICKS
        node.life.others[other].met = known
        mine = node.life.membership.statement
        assert mine.advert is not None
        later = replace(mine, version=mine.version + 1, advert=replace(mine.advert, life=mine.advert.life + 1))
        text = claim_text(village.residents.roster.federation_id, later)
        later = replace(later, signature=village.residents._sign(node.life.me, text))
        effects = node.step(Heard(other, 1, node.ledger.incarnation, Ping(number=1, claims=(later,))))
        assert [effect.code for effect in effects if isinstance(effect, Stop)] == ([2] if stops else [])
        assert (node.ledger.life > mine.advert.life + 1) is not stops


def test_who_is_no_neighbour_gives_nothing(running: tuple[PeerCluster, Node, str]) -> None:  # S12
    village, node, other = running
    (stranger,) = (
        peer for peer in village.town.peers if peer != node.life.me and (peer, node.life.me) not in village.all_edges()
    )
    envelope = Envelope(
        federation=village.residents.roster.federation_id,
        sender=stranger,
        recipient=node.life.me,
        incarnation=1,
        to_incarnation=1,
    )
    frame = b"".join(map(bytes, codec.encode(envelope, given(village, node, other))))
    found = codec.decode(frame, node.policy(stranger))
    assert isinstance(found, Rejection)
    assert found.code == "not_a_neighbour"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_read_from_the_disk_is_what_was_in_memory(seed: int) -> None:
    """To the last bit, after any run: a ledger is its snapshot and the entries after it."""
    made = world(4)
    village = PeerCluster(made, stormy(seed, made.peers, ("pause", "full", "kill")))
    village.town.start()
    village.run(CALM + 400.0)
    nodes = village.nodes()
    assert len(nodes) == 4
    for peer in nodes:
        village.town.tell(peer, OperatorCommand("pause"))
    village.run(village.town.now + 100.0)
    assert set(village.town.stopped) == set(nodes)
    for peer, node in nodes.items():
        again = village.residents.node(peer, village.town.kept(peer)).ledger
        assert snapshot_bytes(again, {}) == snapshot_bytes(node.ledger, {})


@pytest.mark.slow
def test_who_hears_the_roster_that_puts_it_out_stops_with_a_sentence() -> None:
    made = world(4)
    village = PeerCluster(made, Faults(seed=1), roster=made.peers)
    village.town.start()
    village.run(CALM)
    node = village.node("peer1")
    later = village.signed(2, made.peers[1:])
    effects = node.step(Heard("peer2", 1, 1, RosterNews(number=2, text=to_bytes(later))))
    assert effects[-1] == Stop(2, "peer1 was put out of the federation by roster 2")
    assert Enrol(later) in effects, "its file has the roster, so it does not start again"
