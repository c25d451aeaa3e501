"""Timers of transfers that are not acknowledged: when a transfer is sent again."""

from __future__ import annotations

import pytest

from fedpeer.peer.node.retransmission import Retransmissions
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from tests.faults import isolation
from tests.faults.peer_cluster import PeerCluster, world

#: Ticks after which no more messages are lost, after which all lost ones have arrived, and in which rounds are counted.
HEAL, CALM, MEASURED = 150.0, 150.0, 100.0


def test_what_is_missed_is_not_waited_for_as_long_as_on_a_link_that_carries_nothing() -> None:
    """Once a later number has passed the link, the earlier one is due after the usual wait, even after many repeats."""
    one, other = ("peer2", "everyone", 1), ("peer3", "everyone", 1)
    repeats = Retransmissions()
    for key in (one, other):
        for now in (0, 16, 48):
            repeats.sent(key, now)
    repeats.sent(("peer2", "everyone", 2), 48)
    assert repeats.due(48 + 17) == [("peer2", "everyone", 2)], "waits double"
    repeats.missed("peer2", "everyone", 2)
    assert repeats.due(48 + 15) == []
    assert repeats.due(48 + 17) == [one, ("peer2", "everyone", 2)]
    assert other in repeats.due(48 + 64)


def test_what_came_too_early_is_due_once_the_one_before_it_is_there() -> None:
    repeats = Retransmissions()
    for seq in (1, 2):
        repeats.sent(("peer2", "everyone", seq), 0)
    repeats.missed("peer2", "everyone", 2)
    assert repeats.due(3) == []
    repeats.answered("peer2", "everyone", 0, 3)
    repeats.answered("peer3", "everyone", 1, 3)
    assert repeats.due(3) == [], "neither an older answer nor another one's"
    repeats.answered("peer2", "everyone", 1, 4)
    assert repeats.due(4) == [("peer2", "everyone", 2)]
    repeats.sent(("peer2", "everyone", 2), 4)
    repeats.missed("peer2", "everyone", 2)
    repeats.answered("peer2", "everyone", 1, 5)
    assert repeats.due(5) == [], "who says both again and again is sent it once"
    assert repeats.due(19) == []
    assert repeats.due(20) == [("peer2", "everyone", 2)], "it was not lost, so its wait is the usual one"


def test_what_was_sent_again_since_is_not_sent_a_third_time() -> None:
    repeats = Retransmissions()
    for seq in (1, 2):
        repeats.sent(("peer2", "everyone", seq), 0)
    repeats.missed("peer2", "everyone", 2)
    repeats.sent(("peer2", "everyone", 2), 16)
    repeats.answered("peer2", "everyone", 1, 17)
    assert repeats.due(17) == []


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_rounds_are_as_fast_again_once_nothing_is_lost(seed: int) -> None:
    """Where answers took long, a transfer that came too early in each round used to delay each round by as much."""

    def rate(loss: float) -> float:
        made = world(4, gossip__exchanges=1, gossip__deadline=30.0, gossip__topology="ring")
        faults = Faults(seed=seed, links=LinkRules(delay=0.8, loss=loss), heal=HEAL)
        cluster = PeerCluster(made, faults, look_every=50.0)
        watch = isolation.Watch(cluster.simulator)
        cluster.simulator.start()
        for node in cluster.nodes().values():
            node.repeats.wait = lambda peer: 50.0  # type: ignore[method-assign]  # as they were
        cluster.run(HEAL + CALM + MEASURED)
        cluster.judge()
        return watch.rate(HEAL + CALM, HEAL + CALM + MEASURED)

    assert rate(0.3) >= isolation.RATE * rate(0.0)
