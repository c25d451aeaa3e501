"""A peer that comes back in the middle of the others' round: it sends shares in each exchange that they wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpeer.peer.node import rounds
from fedpeer.peer.node.skew import furthest
from fedpeer.peer.state.neighbors import Neighbors
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules, partition
from tests.faults.isolation import RATE, Watch
from tests.faults.peer_cluster import AddingTrainer, PeerCluster, world

#: Rounds by which a peer's news of the others is old when it comes back; on real links, until answers arrive again.
OLD_ROUNDS = 1
#: Ticks between which the first peer is cut off, long enough to be taken for dead.
CUT, HEAL = 200.0, 480.0
#: Tick at which rounds have to go on as before, and ticks in which they are counted: together less than the deadline,
#: so that a peer that waits for a whole one counts none.
BACK, COUNTED = 680.0, 160.0
DEADLINE_S = 30.0


def cut_off(monkeypatch: pytest.MonkeyPatch, jitter: float) -> tuple[PeerCluster, Watch]:
    """Return peers of which the first is cut off for a while, and their rounds.

    Trainings take a tick, so that exchanges are most of a round, and messages nearly a tick.
    """
    monkeypatch.setattr(PeerCluster, "_trainer", lambda cluster, peer, adding: short(adding))
    made = world(3, gossip__exchanges=10, gossip__deadline=DEADLINE_S, gossip__topology="complete")
    cuts = partition(CUT, HEAL, made.peers[:1], made.peers[1:])
    cluster = PeerCluster(made, Faults(links=LinkRules(delay=0.8, jitter=jitter), cuts=cuts, heal=HEAL), look_every=5.0)
    watch = Watch(cluster.simulator)
    cluster.simulator.start()
    return cluster, watch


def short(adding: AddingTrainer) -> AddingTrainer:
    return replace(adding, steps=25)


def judge(cluster: PeerCluster, watch: Watch) -> None:
    """Check that rounds go on as before the cut, together, and that nothing is missing."""
    cluster.run(BACK + COUNTED)
    rate, before = watch.rate(BACK, BACK + COUNTED), watch.rate(CUT - COUNTED, CUT)
    print(f"rounds per tick: {rate:g}, {before:g} before the cut")
    assert rate >= RATE * before
    now = [node.durable.round for node in cluster.nodes().values()]
    assert max(now) - min(now) <= 1, cluster.phases()
    cluster.judge()


@pytest.mark.slow
@pytest.mark.parametrize("old", [pytest.param(0, marks=pytest.mark.soak), OLD_ROUNDS])
def test_who_comes_back_into_the_middle_of_a_round_costs_no_deadline(old: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not matter how old the rounds are that the membership states of each peer."""
    round_of = Neighbors.round_of
    monkeypatch.setattr(Neighbors, "round_of", lambda all, peer: max(all[peer].round, round_of(all, peer) - old))
    monkeypatch.setattr(rounds, "furthest", lambda state: furthest(state) - OLD_ROUNDS)
    judge(*cut_off(monkeypatch, 0.0))


@pytest.mark.slow
def test_who_comes_back_waits_for_what_it_is_owed_and_so_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It trains faster than it repeats its transfers, so that none of them is acknowledged when it names its next
    round.

    It used to go through that round without the others, who then waited for its shares for a whole deadline.
    """
    cluster, watch = cut_off(monkeypatch, 0.3)
    cluster.run(CUT)
    with monkeypatch.context() as patch:
        patch.setattr(cluster.node("peer1").repeats, "wait", lambda peer: 50.0)
        cluster.run(HEAL + 60.0)
    judge(cluster, watch)
