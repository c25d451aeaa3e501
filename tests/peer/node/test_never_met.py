"""Two peers that can never meet, since nobody can connect to either: they average with the others, and nobody waits."""

from __future__ import annotations

import pytest

from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import Cut, LinkRules
from tests.faults.peer_cluster import PeerCluster, world

#: Ticks within which rounds go on, and five more are done; both are far below the deadline and the time to gather.
SOON, FIVE_ROUNDS = 400.0, 200.0
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

    def gone_on(since: dict[str, int], rounds: int) -> bool:
        return all(node.durable.round >= since[peer] + rounds for peer, node in cluster.nodes().items())

    assert cluster.run(SOON, lambda: gone_on(dict.fromkeys(made.peers, 0), 3)), cluster.phases()
    assert not cluster.node(one).state.others[other].met
    before = {peer: cluster.node(peer).durable.round for peer in made.peers}
    assert cluster.run(cluster.simulator.now + FIVE_ROUNDS, lambda: gone_on(before, 5)), cluster.phases()
    rates = {peer: cluster.node(peer).durable.round - before[peer] for peer in made.peers}
    assert max(rates.values()) - min(rates.values()) <= 1, "they go on together"
