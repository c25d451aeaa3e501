"""If our own program fails on a message, the message has no effect, its sender is charged, and the peer goes on.

The failures here happen in the middle of a step, after its entries are written: at each entry that a message causes,
and in each change that the message makes outside the durable state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.node import dispatch
from fedpeer.peer.node.atomic_step import Steps
from fedpeer.peer.node.node import Node, RestorePoint
from fedpeer.peer.state.events import MessageReceived, Persist, RejectEffect, Send, Stop, Tick, Trained
from fedpeer.peer.state.journal import snapshot_bytes
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.state.reputation import SUSPICIOUS_MAX
from fedpeer.peer.wire.messages import Ack, Hello, RejectMessage, RosterNews, Transfer
from fedpeer.peer.wire.roster import to_bytes
from tests.faults.peer_cluster import PeerCluster
from tests.peer.node.test_node import met

pytestmark = pytest.mark.slow


class Broken(Exception):  # noqa: N818
    """Stand-in for any error of our own program."""


def make_share(cluster: PeerCluster, node: Node, other: str) -> Transfer:
    """Return the next transfer that this neighbor can send."""
    group = cluster.groups[0]
    channel = node.durable.groups[group].into[other]
    round, exchange = channel.place
    payload = 0.25 * node.durable.estimate_D(group).float()
    share = NumberedTransfer(
        seq=channel.taken + 1, round=round, exchange=exchange, weight=0.25, form="float32", payload=payload
    )
    return Transfer(group=group, share=share)


def hello(cluster: PeerCluster, node: Node, other: str) -> Hello:
    """Return the Hello with which this neighbor answers a Hello."""
    there, group = cluster.node(other), cluster.groups[0]
    return Hello(
        generation=there.durable.generation,
        nonce=there.setup.nonce,
        known_generation=node.durable.generation,
        contract=there.setup.contract,
        groups=((group, there.state.digest_of(group)),),
        channels=(),
        round=there.durable.round,
        begun=True,
        roster=there.state.peer_groups.roster.number,
        answer=True,
    )


def received(node: Node, other: str, message: Any) -> MessageReceived:
    return MessageReceived(other, 1, node.durable.incarnation, message)


def durable(node: Node) -> bytes:
    """Return the bytes of the durable state without its generation."""
    durable = node.durable.copy()
    durable.generation = 0
    return snapshot_bytes(durable, {})


def failing(monkeypatch: pytest.MonkeyPatch, place: object, name: str) -> None:
    """Make this function raise from now on, after it has done its work."""
    usual = getattr(place, name)

    def fails(*given: Any, **named: Any) -> Any:
        usual(*given, **named)
        raise Broken(name)

    monkeypatch.setattr(place, name, fails)


def mending(broken: pytest.MonkeyPatch) -> Callable[[Node, RestorePoint], Node]:
    """Return a `Node.again` that first ends the failures: otherwise the new node could not even begin."""
    again = Node.again

    def mended(self: Node, point: RestorePoint) -> Node:
        broken.undo()
        return again(self, point)

    return mended


@pytest.mark.parametrize(
    ("place", "name"),
    [(dispatch, "on_transfer"), (NodeState, "write"), (Node, "_proceed")],
    ids=lambda each: str(each),
)
def test_nothing_of_a_message_stays_on_which_we_fail(monkeypatch: pytest.MonkeyPatch, place: object, name: str) -> None:
    cluster, node, other = met(2)
    told: list[tuple[str, str]] = []
    steps = Steps(node, lambda error, sender: told.append((type(error).__name__, sender)))
    before, said = durable(node), make_share(cluster, node, other)
    with monkeypatch.context() as broken:
        failing(broken, place, name)
        with pytest.MonkeyPatch.context() as mended:
            mended.setattr(Node, "again", mending(broken))
            effects = steps.step(received(node, other, said))
    assert told == [("Broken", other)]
    assert durable(steps.node) == before
    assert steps.node is not node
    assert [each.rejection.code for each in effects if isinstance(each, RejectEffect)] == ["internal_error"]
    answers = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, RejectMessage)]
    assert [each.code for each in answers] == ["internal_error"]
    entries = [each.content for each in effects if isinstance(each, Persist)]
    assert [type(entry).__name__ for entry in entries] == ["Started"], "nothing of the failed step is saved"
    assert not [each for each in effects if isinstance(each, Send) and isinstance(each.message, Ack)]


def test_the_disk_and_the_node_tell_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay of the entries persisted before and after a failure gives the durable state of the node."""
    cluster, node, other = met(2)
    steps, replayed = Steps(node, lambda *told: None), node.durable.copy()
    with monkeypatch.context() as broken:
        failing(broken, dispatch, "on_transfer")
        effects = steps.step(received(node, other, make_share(cluster, node, other)))
    effects += steps.step(Tick(steps.node.state.now + 1))
    for effect in effects:
        if isinstance(effect, Persist):
            assert effect.kind == "entry"
            replayed.apply(effect.content)  # type: ignore[arg-type]
    assert snapshot_bytes(replayed, {}) == snapshot_bytes(steps.node.durable, {})


def test_the_same_share_is_taken_once_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two peers meet again, and the neighbor repeats the share: mass is exact."""
    cluster, node, other = met(2)
    group, said = cluster.groups[0], make_share(cluster, node, other)
    steps = Steps(node, lambda *told: None)
    held, taken_weight = node.durable.groups[group].weight, node.durable.groups[group].into[other].taken_weight
    with monkeypatch.context() as broken:
        failing(broken, dispatch, "on_transfer")
        steps.step(received(node, other, said))
    assert steps.node.durable.groups[group].weight == held
    steps.step(received(steps.node, other, hello(cluster, steps.node, other)))
    assert steps.node.state.others[other].met
    steps.step(received(steps.node, other, said))
    channel = steps.node.durable.groups[group].into[other]
    assert (channel.taken, channel.taken_weight) == (said.share.seq, taken_weight + 0.25)


def test_who_makes_us_fail_is_soon_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, node, other = met(3)
    told: list[Exception] = []
    steps = Steps(node, lambda error, sender: told.append(error))
    failing(monkeypatch, dispatch, "on_hello")
    said = hello(cluster, node, other)
    for _ in range(3 * SUSPICIOUS_MAX):
        steps.step(received(steps.node, other, said))
    assert len(told) == SUSPICIOUS_MAX
    assert not steps.node.state.others.listens(other)
    others = set(steps.node.state.others) - {other}
    assert all(steps.node.state.others.listens(peer) for peer in others), "nobody else pays"


def test_a_roster_on_which_we_fail_is_not_gone_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer groups stay as they were, even if the failure is in the middle of the switch to other ones."""
    cluster, node, other = met(3)
    steps = Steps(node, lambda *told: None)
    later = cluster.signed(node.state.peer_groups.roster.number + 1, sorted(node.state.peer_groups.peers)[:-1])
    news = RosterNews(number=later.number, text=to_bytes(later))
    peer_groups = node.state.peer_groups
    with monkeypatch.context() as broken:
        failing(broken, Node, "_update_consensus_groups")
        with pytest.MonkeyPatch.context() as mended:
            mended.setattr(Node, "again", mending(broken))
            steps.step(received(node, other, news))
    assert steps.node.state.peer_groups == peer_groups
    assert steps.node.durable.groups.keys() == node.setup.peer_groups.groups.keys()


def test_a_mistake_that_nobody_sent_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error would occur again at once: the program that runs the node ends it, and the service starts it again."""
    _, node, _ = met(2)
    steps = Steps(node, lambda *told: None)
    failing(monkeypatch, Node, "_proceed")
    for event in (Tick(node.state.now + 1), Trained(1, torch.zeros(1), torch.zeros(1))):
        with pytest.raises(Broken):
            steps.step(event)


def test_who_leaves_goes_on_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, node, other = met(2)
    steps = Steps(node, lambda *told: None)
    node.state.enter("leaving")
    with monkeypatch.context() as broken:
        failing(broken, dispatch, "on_transfer")
        effects = steps.step(received(node, other, make_share(cluster, node, other)))
    assert steps.node.phase == "leaving"
    assert not [each for each in effects if isinstance(each, Stop)]
