"""A message that was legal by the roster of its sender costs the sender nothing with who goes by a smaller one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedpeer.gossip.transfers import Incoming, NumberedTransfer
from fedpeer.peer.node.handshake import say_hello
from fedpeer.peer.node.node import Node
from fedpeer.peer.state.events import Heard, NewRoster, RejectEffect, Send
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Hello, Transfer
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.rejection import Rejection
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from tests.faults.peer_cluster import PeerCluster, world
from tests.faults.scenarios import CALM

PEERS = world(6).peers
#: Who is left, and of them two: the one goes by the smaller roster, the other not yet.
REST = PEERS[:3]
ONE, OTHER = REST[:2]


def smaller() -> tuple[PeerCluster, Node]:
    """A run of six, and one of them after it has heard that three are put out."""
    village = PeerCluster(
        world(6, gossip__topology="complete"),
        Faults(seed=1, links=LinkRules(delay=0.2)),
        forgetful=True,
        roster=PEERS,
    )
    village.town.start()
    village.run(CALM + 60.0)
    node = village.node(ONE)
    node.step(NewRoster(village.signed(2, REST)))
    assert node.life.circle.roster.number == 2
    return village, node


def share(village: PeerCluster, node: Node, weight: float, ahead: int = 0, exchange: int | None = None) -> Transfer:
    """What the other one gives next, as heavy as this."""
    (group,) = village.groups
    lane = node.ledger.groups[group].into.get(OTHER, Incoming())
    parcel = NumberedTransfer(
        seq=lane.taken + 1 + ahead,
        round=lane.place[0],
        exchange=lane.place[1] if exchange is None else exchange,
        weight=weight,
        form="float32",
        payload=weight * node.ledger.estimate_D(group).float(),
    )
    return Transfer(group=group, parcel=parcel)


def refusals(node: Node, message: Transfer | Hello, incarnation: int = 1) -> list[str]:
    effects = node.step(Heard(OTHER, incarnation, node.ledger.incarnation, message))
    return [effect.rejection.code for effect in effects if isinstance(effect, RejectEffect)]


def meets_again(village: PeerCluster, node: Node, made: int) -> None:
    """The other one says Hello by the smaller roster, and that it has made so many transfers."""
    other = village.node(OTHER)
    other.step(NewRoster(village.signed(2, REST)))
    other.life.effects.clear()
    say_hello(other.life, ONE, answer=True)
    (hello,) = (each.message for each in other.life.effects if isinstance(each, Send))
    assert isinstance(hello, Hello)
    lanes = tuple(replace(lane, made=made) for lane in hello.lanes)
    assert refusals(node, replace(hello, lanes=lanes), other.ledger.incarnation) == []
    assert node.life.others[OTHER].roster == 2


def kinds(codes: list[str]) -> set[str]:
    return {REJECTIONS[code].kind for code in codes}


def test_more_weight_than_a_smaller_federation_has_is_refused_and_costs_nothing() -> None:
    village, node = smaller()
    heavy = share(village, node, 2.9)  # along with what else is under way less than the five others put in
    assert kinds(refusals(node, heavy)) == {"h"}
    meets_again(village, node, made=heavy.parcel.seq)
    assert kinds(refusals(node, heavy)) == {"h"}, "it was made before its sender went over"


@pytest.mark.parametrize("weight", [2.9, 5.9])
def test_who_goes_by_the_same_roster_is_charged(weight: float) -> None:
    village, node = smaller()
    lane = node.ledger.groups[village.groups[0]].into[OTHER]
    meets_again(village, node, made=lane.taken)
    assert refusals(node, share(village, node, weight)) == ["bad_weight"]


def test_who_says_to_have_made_any_number_of_transfers_is_charged_soon() -> None:
    village, node = smaller()
    meets_again(village, node, made=2**40)
    assert refusals(node, share(village, node, 0.01)) == []
    assert refusals(node, share(village, node, 0.01)) == []
    assert refusals(node, share(village, node, 2.9)) == ["bad_weight"]


def test_a_share_that_is_heavier_than_a_smaller_federation_is_not_refused_at_the_door() -> None:
    village, node = smaller()
    heavy = share(village, node, 5.9)
    roster = node.life.circle.roster
    envelope = Envelope(federation=roster.federation_id, sender=OTHER, recipient=ONE, incarnation=1, to_incarnation=1)
    frame = b"".join(codec.encode(envelope, heavy))
    assert not isinstance(codec.decode(frame, node.policy(OTHER)), Rejection)
    assert kinds(refusals(node, heavy)) == {"h"}
    meets_again(village, node, made=heavy.parcel.seq - 1)
    found = codec.decode(frame, node.policy(OTHER))
    assert isinstance(found, Rejection)
    assert found.code == "bad_weight"


def test_an_exchange_of_a_larger_federation_costs_nothing_after_a_restart_either() -> None:
    """This peer was started again since, and knows nothing of the larger roster."""
    village, node = smaller()
    node.life.exchanges.clear()
    last = node.life.exchanges_max(village.groups[0])
    late = share(village, node, 0.01, exchange=last + 3)
    assert kinds(refusals(node, late)) == {"h"}
    meets_again(village, node, made=late.parcel.seq)
    assert kinds(refusals(node, late)) == {"h"}
    assert torch.isfinite(node.ledger.estimate_D(village.groups[0])).all()
