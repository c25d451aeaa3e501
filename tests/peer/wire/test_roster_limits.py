"""A message that is legal under its sender's roster costs the sender nothing at a peer that uses a smaller one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedpeer.gossip.transfers import Incoming, NumberedTransfer
from fedpeer.peer.node import handshake
from fedpeer.peer.node.handshake import send_hello
from fedpeer.peer.node.node import Node
from fedpeer.peer.state.events import MessageReceived, NewRoster, RejectEffect, Send
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
#: The peers that remain, and two of them: the first one uses the smaller roster, the other one not yet.
REST = PEERS[:3]
ONE, OTHER = REST[:2]


def smaller() -> tuple[PeerCluster, Node]:
    """Return a run of six peers, and the node of one after it has received the roster that revokes three."""
    cluster = PeerCluster(
        world(6, gossip__topology="complete", gossip__exchanges=2),
        Faults(seed=1, links=LinkRules(delay=0.2)),
        forgetful=True,
        roster=PEERS,
    )
    cluster.simulator.start()
    met = cluster.run(CALM, lambda: min(node.durable.round for node in cluster.nodes().values()) > 2)
    assert met, cluster.phases()
    node = cluster.node(ONE)
    node.step(NewRoster(cluster.signed(2, REST)))
    assert node.state.peer_groups.roster.number == 2
    return cluster, node


def make_share(
    cluster: PeerCluster, node: Node, weight: float, ahead: int = 0, exchange: int | None = None
) -> Transfer:
    """Return the next transfer of the other peer, with this weight."""
    (group,) = cluster.groups
    channel = node.durable.groups[group].into.get(OTHER, Incoming())
    share = NumberedTransfer(
        seq=channel.taken + 1 + ahead,
        round=channel.place[0],
        exchange=channel.place[1] if exchange is None else exchange,
        weight=weight,
        form="float32",
        payload=weight * node.durable.estimate_D(group).float(),
    )
    return Transfer(group=group, share=share)


def refusals(node: Node, message: Transfer | Hello, incarnation: int = 1) -> list[str]:
    effects = node.step(MessageReceived(OTHER, incarnation, node.durable.incarnation, message))
    return [effect.rejection.code for effect in effects if isinstance(effect, RejectEffect)]


def meets_again(cluster: PeerCluster, node: Node, made: int) -> None:
    """Let the other peer send a Hello under the smaller roster, which states that it has made so many transfers."""
    other = cluster.node(OTHER)
    other.step(NewRoster(cluster.signed(2, REST)))
    other.state.effects.clear()
    send_hello(other.state, ONE, answer=True)
    (hello,) = (each.message for each in other.state.effects if isinstance(each, Send))
    assert isinstance(hello, Hello)
    channels = tuple(replace(channel, made=made) for channel in hello.channels)
    assert refusals(node, replace(hello, channels=channels), other.durable.incarnation) == []
    assert node.state.others[OTHER].roster == 2


def kinds(codes: list[str]) -> set[str]:
    return {REJECTIONS[code].kind for code in codes}


@pytest.mark.slow
def test_more_weight_than_a_smaller_federation_has_is_refused_and_costs_nothing() -> None:
    cluster, node = smaller()
    heavy = make_share(cluster, node, 2.9)  # together with the weight in transit less than the five others put in
    assert kinds(refusals(node, heavy)) == {"h"}
    meets_again(cluster, node, made=heavy.share.seq)
    assert kinds(refusals(node, heavy)) == {"h"}, "it was made before its sender went over"


@pytest.mark.slow
@pytest.mark.parametrize("weight", [2.9, pytest.param(5.9, marks=pytest.mark.soak)])
def test_who_goes_by_the_same_roster_is_charged(weight: float) -> None:
    cluster, node = smaller()
    channel = node.durable.groups[cluster.groups[0]].into[OTHER]
    meets_again(cluster, node, made=channel.taken)
    assert refusals(node, make_share(cluster, node, weight)) == ["bad_weight"]


@pytest.mark.slow
def test_who_says_to_have_made_any_number_of_transfers_is_charged_soon() -> None:
    cluster, node = smaller()
    meets_again(cluster, node, made=2**40)
    assert refusals(node, make_share(cluster, node, 0.01)) == []
    assert refusals(node, make_share(cluster, node, 0.01)) == []
    assert refusals(node, make_share(cluster, node, 2.9)) == ["bad_weight"]


@pytest.mark.slow
def test_a_share_that_is_heavier_than_a_smaller_federation_is_not_refused_at_the_door() -> None:
    cluster, node = smaller()
    heavy = make_share(cluster, node, 5.9)
    roster = node.state.peer_groups.roster
    envelope = Envelope(federation=roster.federation_id, sender=OTHER, recipient=ONE, incarnation=1, to_incarnation=1)
    frame = b"".join(codec.encode(envelope, heavy))
    assert not isinstance(codec.decode(frame, node.policy(OTHER)), Rejection)
    assert kinds(refusals(node, heavy)) == {"h"}
    meets_again(cluster, node, made=heavy.share.seq - 1)
    found = codec.decode(frame, node.policy(OTHER))
    assert isinstance(found, Rejection)
    assert found.code == "bad_weight"


@pytest.mark.slow
def test_an_exchange_of_a_larger_federation_costs_nothing_after_a_restart_either() -> None:
    """This peer was restarted after the change, and knows nothing of the larger roster."""
    cluster, node = smaller()
    node.state.exchanges.clear()
    last = node.state.exchanges_max(cluster.groups[0])
    late = make_share(cluster, node, 0.01, exchange=last + 3)
    assert kinds(refusals(node, late)) == {"h"}
    meets_again(cluster, node, made=late.share.seq)
    assert kinds(refusals(node, late)) == {"h"}
    assert torch.isfinite(node.durable.estimate_D(cluster.groups[0])).all()


@pytest.mark.slow
def test_who_could_not_be_told_what_its_earlier_incarnations_gave_is_not_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Hello about many groups has no room for all these weights."""
    cluster, node = smaller()
    (group,) = cluster.groups
    holding = node.durable.groups[group]
    meets_again(cluster, node, made=holding.into[OTHER].taken)
    node.durable.groups[group] = replace(node.durable.groups[group], before={OTHER: len(REST) - 1.0})
    share = make_share(cluster, node, 1.0)
    send_hello(node.state, OTHER, answer=True)
    assert refusals(node, share) == ["bad_weight"]
    monkeypatch.setattr(handshake, "weights_in_hello", lambda groups, weights: {})
    send_hello(node.state, OTHER, answer=True)
    assert refusals(node, share) == ["no_room"]
