"""Earlier rosters, with which peers start: a group goes through each, also if no peer ran when they came."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpeer.peer.state.voters import EVERYONE
from fedpeer.peer.wire.roster import sign
from fedpeer.sims.network.faults import Act, Faults
from fedpeer.sims.network.links import LinkRules
from tests.faults.peer_cluster import AUTHORITY
from tests.faults.server_cluster import ServerCluster, world

QUICK = LinkRules(delay=0.2, jitter=0.2)
#: Ticks after which there is a coordinator and some rounds.
CALM = 60.0


@pytest.mark.slow
@pytest.mark.parametrize("knows", ["peer1", "peer2", "nobody"])
def test_a_voter_with_another_key_votes_if_somebody_knows_the_roster_between(knows: str) -> None:
    """It lost its disk and its key, was revoked and invited again, and no peer ran meanwhile. One peer has the file."""
    made = world(3)
    acts = (*(Act(CALM, "kill", peer, 60.0) for peer in ("peer1", "peer3")), Act(CALM, "lose", "peer2", 60.0))
    consensus_cluster = ServerCluster(made, Faults(links=QUICK, acts=acts, heal=CALM + 60.0), roster=made.peers)
    simulator, factory = consensus_cluster.simulator, consensus_cluster.node_factory
    simulator.start()
    consensus_cluster.run(CALM + 10.0)
    put_out, whole = consensus_cluster.signed(2, ["peer1", "peer3"]), consensus_cluster.signed(3, made.peers)
    factory.keys["peer2"] = key = bytes(range(32))
    entries = tuple(replace(each, key=key) if each.id == "peer2" else each for each in whole.entries)
    consensus_cluster.admit(sign(replace(whole, entries=entries), AUTHORITY), made.peers)
    if knows in made.peers:
        factory.setups[knows] = replace(factory.setups[knows], earlier=(put_out,))
    consensus_cluster.run(CALM + 360.0)
    states = [node.durable.consensus_states[EVERYONE] for node in consensus_cluster.nodes().values()]
    assert len(states) == 3
    assert {each.holding.roster for each in states} == {1 if knows == "nobody" else 3}
