"""Peers that come by later rosters and have no round yet, while the peer that began the federation is away."""

from __future__ import annotations

import pytest

from fedpeer.peer.state import neighbors
from fedpeer.peer.state.events import NewRoster
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from tests.faults.scenarios import CALM
from tests.faults.server_cluster import ServerCluster, world

QUICK = LinkRules(delay=0.2, jitter=0.2)
FOUNDER, FIRST, SECOND = "peer1", "peer2", "peer3"


def left_alone(away: float) -> ServerCluster:
    """Return a cluster in which two newcomers have just met the founder, which is killed before a round names them."""
    made = world(3)
    consensus_cluster = ServerCluster(made, Faults(links=QUICK), roster=[FOUNDER])
    simulator = consensus_cluster.simulator
    simulator.start(FOUNDER)
    assert consensus_cluster.reach(4, 2 * CALM), consensus_cluster.rounds()
    rosters = [consensus_cluster.signed(2, [FOUNDER, FIRST]), consensus_cluster.signed(3, made.peers)]
    consensus_cluster.admit(rosters[1], made.peers)
    for roster in rosters:
        simulator.feed(FOUNDER, NewRoster(roster))
    simulator.start(FIRST, SECOND)

    def met() -> bool:
        return all(consensus_cluster.node(peer).state.others[FOUNDER].met for peer in (FIRST, SECOND))

    assert consensus_cluster.run(simulator.now + 100.0, met)
    simulator.kill(FOUNDER)
    consensus_cluster.run(simulator.now + away)
    return consensus_cluster


@pytest.mark.slow
def test_newcomers_do_not_begin_anew_without_the_one_that_has_rounds() -> None:
    """They are a majority of their roster, but no round has named it: each round would have two models."""
    consensus_cluster = left_alone(600.0)
    assert [consensus_cluster.rounds()[peer] for peer in (FIRST, SECOND)] == [0, 0]
    consensus_cluster.simulator.start(FOUNDER)
    before = max(consensus_cluster.seen.models)
    assert consensus_cluster.reach(before + 4, 1200.0), consensus_cluster.rounds()
    consensus_cluster.judge(strangers=[FIRST, SECOND])
    assert {
        node.durable.consensus_states["everyone"].holding.roster for node in consensus_cluster.nodes().values()
    } == {3}


@pytest.mark.slow
def test_they_begin_when_it_has_been_away_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim without proof must not keep a federation from its first round for good."""
    monkeypatch.setattr(neighbors, "AWAY_TICKS", 300)
    consensus_cluster = left_alone(700.0)
    assert min(consensus_cluster.rounds()[peer] for peer in (FIRST, SECOND)) > 0
