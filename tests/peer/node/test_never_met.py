"""Two peers that can never meet, since nobody can connect to either: they average with the others, and nobody waits."""

from __future__ import annotations

import pytest

from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import Cut, LinkRules
from tests.faults.peer_cluster import PeerCluster, world

#: Ticks within which rounds go on, much less than the deadline and the time to gather.
SOON = 400.0
GATHER_S = DEADLINE_S = 60.0


@pytest.mark.slow
@pytest.mark.parametrize("exchanges", [1, 4])
def test_two_that_can_never_meet_hold_up_nobody(exchanges: int) -> None:
    made = world(
        4,
        gossip__exchanges=exchanges,
        gossip__deadline=DEADLINE_S,
        gossip__gather=GATHER_S,
        gossip__topology="complete",
    )
    one, *_, other = made.peers
    cuts = tuple(
        Cut(begin=0.0, end=1e9, senders=(sender,), receivers=(receiver,))
        for sender, receiver in ((one, other), (other, one))
    )
    cluster = PeerCluster(made, Faults(links=LinkRules(delay=0.3, jitter=0.2), cuts=cuts))
    cluster.simulator.start()
    cluster.run(SOON)
    assert all(not cluster.node(one).state.others[peer].met for peer in (other,))
    before = {peer: cluster.node(peer).durable.round for peer in made.peers}
    assert min(before.values()) > 2, before
    cluster.run(SOON + 200.0)
    rates = {peer: cluster.node(peer).durable.round - before[peer] for peer in made.peers}
    assert min(rates.values()) >= 5, rates
    assert max(rates.values()) - min(rates.values()) <= 1, "they go on together"
