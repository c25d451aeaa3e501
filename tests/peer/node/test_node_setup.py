"""The roster decides with which peers a peer averages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpeer.config.address import PeerUrl
from fedpeer.config.choice import parse_choice
from fedpeer.peer.node.node_setup import setup_of
from fedpeer.sims.network.node_factory import NodeFactory
from tests.faults.peer_cluster import world


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
