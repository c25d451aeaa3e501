"""The roster decides with which peers a peer averages, also after a restart under another one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
import torch

from fedpeer.config.address import PeerUrl
from fedpeer.config.choice import parse_choice
from fedpeer.peer.node.node import Node
from fedpeer.peer.node.node_setup import disk_bytes, setup_of
from fedpeer.peer.state.entries import Began, Closed, LocalTrained
from fedpeer.peer.state.events import Effect, Note, Persist, Tick
from fedpeer.peer.state.saving import Recovered
from fedpeer.sims.network.node_factory import NodeFactory
from tests.faults.peer_cluster import world

ME = "peer1"


@dataclass
class Disk:
    """The state of one of two peers, and its restarts under rosters with one or both of them."""

    made: NodeFactory
    snapshot: bytes | None = None
    entries: list[bytes] = field(default_factory=list)

    @classmethod
    def blank(cls, protocol: str) -> Disk:
        return cls(NodeFactory.of(world(2, gossip__protocol=protocol), parse_choice("partial-averaging")))

    def start(self, peers: int) -> Node:
        roster = replace(self.made.roster, entries=self.made.roster.entries[:peers])
        setup = setup_of(self.made.world, roster, ME, nonce=0, method=self.made.method)
        self.made.setups[ME] = replace(setup, reader=self.made.trainers[ME])
        return self.made.node(ME, Recovered(snapshot=self.snapshot, entries=self.entries))

    def save(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                data = disk_bytes(effect, self.made.setups[ME])
                whole = effect.kind == "snapshot"
                self.snapshot, self.entries = (data, []) if whole else (self.snapshot, [*self.entries, data])


def test_a_peer_whose_group_is_gone_after_a_restart_keeps_its_own_values() -> None:
    """The only other member of its group was revoked while it was away: nothing tells where the group's values were."""
    disk = Disk.blank("push-sum")
    node = disk.start(peers=2)
    disk.save(node.step(Tick(1)))
    trained_n = node.durable.x_n + 1
    for entry in (Began(round=1), LocalTrained(round=1, x_n=trained_n, s_k=node.durable.s_k), Began(round=2)):
        node.state.write(entry)
    disk.save(node.take_effects())
    node = disk.start(peers=1)
    again = node.durable
    assert not again.groups
    assert (again.round, again.trained) == (2, False)
    assert torch.equal(again.x_n, trained_n)
    notes = [each for each in node.step(Tick(1)) if isinstance(each, Note) and each.what == "written_off"]
    assert [each.fields for each in notes] == [{"group": "everyone", "weight": 1.0}]


@pytest.mark.parametrize("protocol", ["push-sum", "coordinator"])
def test_a_group_that_is_new_at_a_restart_is_saved_before_anything_of_it(protocol: str) -> None:
    """It has no place in the snapshot from before, so the entries of a group in it could not be read."""
    disk = Disk.blank(protocol)
    disk.save(disk.start(peers=1).step(Tick(1)))
    node = disk.start(peers=2)
    disk.save(node.step(Tick(1)))
    for group in node.durable.groups:
        node.state.write(Closed(group=group, without=()))
    disk.save(node.take_effects())
    again = disk.start(peers=2).durable
    assert {id: each.at for id, each in again.groups.items()} == dict.fromkeys(node.durable.groups, (0, 1))
    assert again.consensus_states.keys() == node.durable.consensus_states.keys()
    assert again.groups or again.consensus_states


@pytest.mark.slow
def test_peers_to_which_nobody_can_connect_are_no_neighbors_where_the_graph_allows_it() -> None:
    one = world(8, gossip__topology="ring")
    made = NodeFactory.of(one, parse_choice("partial-averaging"))
    apart = {"peer1", "peer2", "peer5"}

    def neighbors(peer: str) -> set[str]:
        entries = tuple(
            replace(entry, address=str(PeerUrl.nowhere(entry.id))) if entry.id in apart else entry
            for entry in made.roster.entries
        )
        (policy,) = setup_of(one, replace(made.roster, entries=entries), peer, nonce=0).peer_groups.averaging.values()
        members, graph = policy.overlay.members, policy.overlay.union
        return {members[node] for node in graph.neighbors(members.index(peer))}

    found = {peer: neighbors(peer) for peer in one.peers}
    assert all(len(each) == 2 and peer not in each for peer, each in found.items())
    assert all(peer in found[other] for peer, each in found.items() for other in each), "all see the same graph"
    assert not [peer for peer in apart if found[peer] & apart]
