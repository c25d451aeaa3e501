"""A peer that comes back in the middle of the others' round: it sends shares in each exchange that they wait for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fedpeer.peer.node import rounds
from fedpeer.peer.node.skew import furthest, left_behind
from fedpeer.peer.state import neighbors
from fedpeer.peer.state.events import Send, Tick, Trained
from fedpeer.peer.state.neighbor import HELLO_MIN
from fedpeer.peer.state.neighbors import Neighbors
from fedpeer.peer.wire.messages import Hello
from fedpeer.sims.network.faults import Act, Faults, faults_from
from fedpeer.sims.network.links import LinkRules, partition
from tests.faults import isolation, liars
from tests.faults.peer_cluster import AddingTrainer, PeerCluster, world

#: Age in rounds of a peer's news of the others when it comes back; on real links, until answers arrive again.
OLD_ROUNDS = 1


@pytest.mark.soak
@pytest.mark.parametrize("old", [0, OLD_ROUNDS])
def test_who_comes_back_into_the_middle_of_a_round_costs_no_deadline(old: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings take a tick, so that exchanges are most of a round, and messages nearly a tick.

    It does not matter how old the rounds are that the membership states of each peer.
    """
    round_of = Neighbors.round_of
    monkeypatch.setattr(Neighbors, "round_of", lambda all, peer: max(all[peer].round, round_of(all, peer) - old))
    faults_of = isolation.faults_of
    monkeypatch.setattr(rounds, "furthest", lambda state: furthest(state) - OLD_ROUNDS)
    monkeypatch.setattr(
        isolation, "faults_of", lambda *fault: replace(faults_of(*fault), links=LinkRules(delay=0.8, jitter=0.0))
    )
    monkeypatch.setattr(PeerCluster, "_trainer", lambda cluster, peer, adding: short(adding))
    isolation.isolate("cut:1", 8.0, 10, 30.0, "complete", 0)


@pytest.mark.slow
def test_who_comes_back_waits_for_what_it_is_owed_and_so_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer trains faster than it repeats its transfers, so that none of them is acknowledged when it names its next
    round.

    It used to go through that round without the others, who then waited for its shares for a whole deadline.
    """
    monkeypatch.setattr(PeerCluster, "_trainer", lambda cluster, peer, adding: short(adding))
    made = world(3, gossip__exchanges=10, gossip__deadline=30.0, gossip__topology="complete")
    begin, heal, measured = 120.0, 430.0, 100.0
    cuts = partition(begin, heal, made.peers[:1], made.peers[1:])
    faults = Faults(seed=2, links=LinkRules(delay=0.8, jitter=0.3), cuts=cuts, heal=heal)
    cluster = PeerCluster(made, faults, look_every=20.0)
    watch = isolation.Watch(cluster.simulator)
    cluster.simulator.start()
    cluster.run(begin)
    before = watch.rate(begin - measured, begin)
    with monkeypatch.context() as patch:
        patch.setattr(cluster.node("peer1").repeats, "wait", lambda peer: 50.0)
        cluster.run(heal + 60.0)
    since = heal + 100.0
    cluster.run(since + measured)
    assert watch.rate(since, since + measured) >= isolation.RATE * before
    cluster.judge()


def short(adding: AddingTrainer) -> AddingTrainer:
    return replace(adding, steps=25)


@pytest.mark.parametrize(
    ("peers", "fault", "seed", "heal", "back"),
    [
        pytest.param(8, "cut:1+2,at=1.5,for=8.5", 1, 400.0, 550.0, marks=pytest.mark.slow),
        pytest.param(16, "freeze:1,at=10,for=30", 0, 1600.0, 2000.0, marks=pytest.mark.soak),
    ],
)
def test_who_comes_back_a_round_behind_catches_up_and_loses_no_weight_meanwhile(
    peers: int, fault: str, seed: int, heal: float, back: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a ring with one exchange, a peer a round behind takes part in nothing, and learns late how far others are.

    Here it does not ask for that. Its neighbors used to take a share in each round and to give none, until the others
    had all of its weight. In a large ring, where many may be a round ahead, it never caught up. Not every history
    brings a peer there.
    """
    monkeypatch.setattr(rounds, "_ask_for_rounds", lambda state, group: None)
    made = world(peers, gossip__exchanges=1, gossip__deadline=30.0, gossip__topology="ring")
    links = LinkRules(delay=0.2, jitter=0.2)
    faults = replace(faults_from(fault, made.peers), seed=seed, links=links, heal=heal)
    cluster = PeerCluster(made, faults, look_every=20.0)
    watch = isolation.Watch(cluster.simulator)
    cluster.simulator.start()
    cluster.run(back + 60.0)
    assert isolation.LEAST <= min(watch.weights(back)) <= max(watch.weights(back)) <= isolation.MOST

    def together() -> bool:
        rounds_of = isolation.rounds_of(cluster.nodes())
        return max(rounds_of.values()) - min(rounds_of.values()) <= 1

    assert cluster.run(heal + 650.0, together), cluster.phases()
    cluster.judge()


#: Rounds that the seven others of a ring of eight are ahead of peer1, by their distance from it; the two neighbors may
#: differ. Whether peer1, which has just trained, is left behind.
AHEAD: list[tuple[tuple[int, int], dict[int, int], bool]] = [
    ((0, 0), {}, False),
    ((0, 0), {2: 1, 3: 2, 4: 3}, False),  # as far as they can be while the neighbors wait
    ((0, 0), {2: 1, 3: 3, 4: 3}, False),  # the two that claim to be further may lie
    ((0, 0), {2: 1, 3: 3, 4: 4}, True),  # three of seven are a third
    ((99, 0), {2: 1, 3: 1, 4: 1}, False),  # one lies
    ((99, 99), {}, False),  # two lie, and no peer is where they claim to be
    ((1, 1), {2: 1, 3: 1, 4: 1}, True),
]


@pytest.fixture(scope="module")
def ring() -> PeerCluster:
    """Return a ring of eight with one exchange in each averaging, some rounds old."""
    made = world(8, gossip__exchanges=1, gossip__topology="ring")
    cluster = PeerCluster(made, Faults(seed=0, links=LinkRules(delay=0.2)), look_every=50.0)
    cluster.simulator.start()
    cluster.run(100.0)
    return cluster


@pytest.mark.parametrize(("neighbors", "distant", "expected"), AHEAD)
def test_who_is_left_behind_is_told_by_distance_and_by_all_neighbors(
    ring: PeerCluster,
    neighbors: tuple[int, int],
    distant: dict[int, int],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = ring.node("peer1").state
    leads = {f"peer{1 + k}": distant.get(min(k, 8 - k), 0) for k in range(1, 8)}
    leads["peer2"], leads["peer8"] = neighbors
    monkeypatch.setattr(Neighbors, "round_of", lambda all, peer: state.durable.round + leads[peer])
    assert {peer for peer in state.others if state.others[peer].met} == leads.keys()
    assert left_behind(state) is expected


def test_who_finds_its_neighbors_in_a_later_round_asks_all_peers_for_their_rounds(
    ring: PeerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer does not follow its neighbors alone, and what it knows of the others is some rounds old."""
    node = ring.node("peer1")
    state, round = node.state, node.state.durable.round
    monkeypatch.setattr(Neighbors, "round_of", lambda all, peer: max(round, all[peer].round))
    for peer in ("peer2", "peer8"):
        state.others[peer].round = round + 1
    node.rounds.training = True
    effects = node.step(Trained(round, state.durable.x_n, state.durable.s_k))
    for tick in range(state.now + 1, state.now + 1 + HELLO_MIN):
        effects += node.step(Tick(tick))
    asked = {each.to for each in effects if isinstance(each, Send) and isinstance(each.message, Hello)}
    assert asked == state.others.keys()


@pytest.mark.slow
@pytest.mark.parametrize("gone", [pytest.param(3, marks=pytest.mark.soak), 4])
def test_who_waits_for_nobody_goes_on_averaging_when_half_of_its_neighbors_are_gone(gone: int) -> None:
    """Shares that are under way to peers that are gone do not keep a peer from giving to others."""
    made = world(6, learning__mode="asynchronous", gossip__topology="complete")
    cluster = PeerCluster(made, Faults(seed=1, links=LinkRules(delay=0.2)))
    simulator, left = cluster.simulator, made.peers[:-gone]
    simulator.start()
    cluster.run(60.0)
    for peer in made.peers[-gone:]:
        simulator.kill(peer)
    cluster.run(simulator.now + 400.0)
    since = simulator.now
    cluster.run(since + 50.0)
    gave = {(row[4], row[2]) for row in simulator.rows if row[0] > since and row[1] == "heard" and row[3] == "Transfer"}
    assert gave == {(one, other) for one in left for other in left if one != other}


@pytest.mark.slow
def test_who_comes_back_to_two_of_nine_is_in_step_with_them_once_the_others_count_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six peers never come back, and the two others might be liars: so the peer follows them late, but does follow."""
    monkeypatch.setattr(neighbors, "AWAY_TICKS", 400)
    made = world(9, gossip__topology="complete", gossip__gather=2.0, gossip__exchanges=1)
    lost, survivors, begin, back = made.peers[:6], made.peers[6:], 50.0, 550.0
    acts = tuple(Act(begin, "kill", peer, math.inf) for peer in lost)
    acts += (Act(begin, "kill", survivors[0], back - begin),)
    faults = Faults(links=LinkRules(delay=0.2, jitter=0.3), acts=acts)
    cluster = PeerCluster(made, faults, forgetful=True, look_every=20.0)
    cluster.simulator.start()

    def behind() -> int:
        rounds = [cluster.node(peer).durable.round for peer in survivors]
        return max(rounds) - min(rounds)

    cluster.run(back + 300.0)
    assert behind() > 10, "two of eight others may lie"
    assert cluster.run(back + 800.0, lambda: behind() <= 1), cluster.phases()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, pytest.param(5, marks=pytest.mark.soak)])
def test_one_liar_is_not_followed_however_long_the_others_are_away(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbors, "AWAY_TICKS", 50)
    for name, ticks in {"MEASURED": 50.0, "BEGIN": 200.0, "COMPANY": 300.0, "AFTERWARDS": 150.0}.items():
        monkeypatch.setattr(liars, name, ticks)
    liars.liars_ahead(seed)
