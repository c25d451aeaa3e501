"""Peers that come by later rosters and have no round yet, while the peer that began the federation is away."""

from __future__ import annotations

from typing import Any

import pytest

from fedpeer.peer.state import neighbors
from fedpeer.peer.state.events import NewRoster
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from tests.faults import group_cluster
from tests.faults.group_cluster import GroupCluster
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


#: One group of all, in which three newcomers are a majority.
EVERYONE = {"everyone": group_cluster.MODELS["everyone"]}
#: The same group beside one by which the newcomers go on: shares of all peers, or means of the newcomers.
BESIDE: dict[str, dict[str, Any]] = {
    "alone": {},
    "shares": {"shared": {"neurons": {"hidden1": 1}, "gossip": {"protocol": "push-sum"}}},
    "means": {"own": {"depends_on": ["everyone"], "neurons": {"hidden1": 1}, "members": ["peer3", "peer4", "peer5"]}},
}


@pytest.mark.slow
@pytest.mark.parametrize("beside", BESIDE)
def test_newcomers_of_a_group_do_not_begin_anew_without_those_that_have_means(beside: str) -> None:
    made = group_cluster.world.__wrapped__(partial_models=EVERYONE | BESIDE[beside])
    founders, newcomers = made.peers[:2], made.peers[2:]
    cluster = GroupCluster(made, Faults(links=QUICK), roster=founders)
    simulator = cluster.simulator
    simulator.start(*founders)
    assert cluster.reach(4, 4 * CALM), cluster.rounds("everyone")
    rosters = [cluster.signed(number, made.peers[: number + 1]) for number in (2, 3, 4)]
    cluster.admit(rosters[-1], made.peers)
    for peer in founders:
        for roster in rosters:
            simulator.feed(peer, NewRoster(roster))
    simulator.start(*newcomers)

    def met() -> bool:
        return all(cluster.nodes()[new].state.others[old].met for new in newcomers for old in founders)

    assert cluster.run(simulator.now + 100.0, met)
    for peer in founders:
        simulator.kill(peer)
    cluster.run(simulator.now + 300.0)
    for peer in newcomers:  # their next processes know it from their disks
        simulator.kill(peer)
    simulator.start(*newcomers)
    cluster.run(simulator.now + 600.0)
    assert [cluster.rounds("everyone")[peer] for peer in newcomers] == [0, 0, 0]
    before = max(round for _, round in cluster.seen.models)
    simulator.start(*founders)
    assert cluster.reach(before + 4, 1200.0), cluster.rounds("everyone")
    cluster.judge(strangers=newcomers)


@pytest.mark.slow
def test_a_group_that_comes_to_be_with_a_newcomer_begins_at_once() -> None:
    """Its members have trained for long, and have no mean: a candidate that says so has nothing to be missed."""
    made = group_cluster.world.__wrapped__(partial_models=EVERYONE)
    pairs = made.peers[:2]
    cluster = GroupCluster(made, Faults(links=QUICK), roster=pairs[:1])
    simulator = cluster.simulator
    simulator.start(pairs[0])
    assert cluster.run(4 * CALM, lambda: cluster.nodes()[pairs[0]].durable.round > 4)
    roster = cluster.signed(2, pairs)
    cluster.admit(roster, pairs)
    simulator.feed(pairs[0], NewRoster(roster))
    simulator.start(pairs[1])
    assert cluster.reach(4, 4 * CALM), cluster.rounds("everyone")
    cluster.judge(strangers=pairs[1:])
