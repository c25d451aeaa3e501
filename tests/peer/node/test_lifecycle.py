"""How peers join late, leave, and end after the last round.

`tests/faults/scenarios.py` checks that nothing is lost if others take it, whatever the links do.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedpeer.peer.node.lifecycle import JOIN_S
from fedpeer.peer.state.durable_state import NOTHING_HELD
from fedpeer.peer.state.events import Evaluate, Note, OperatorCommand, Work
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import Cut, LinkRules, partition
from fedpeer.sims.network.node_factory import NodeFactory
from tests.faults.peer_cluster import PeerCluster, world
from tests.faults.server_cluster import ServerCluster
from tests.faults.server_cluster import world as clients

#: Ticks after which peers have met and averaged for some rounds.
CALM = 80.0
#: Ticks of the 5 s in which others may take what a leaving peer holds, and of its farewell.
PATIENCE, FAREWELL = 200, 13
#: Largest difference between the values of members that average.
SAME = 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "times"),
    [
        pytest.param(4, -50.0, id="4-turned"),
        pytest.param(4, 50.0, id="4-plausible"),
        pytest.param(4, 1e6, id="4-absurd"),
        pytest.param(3, 50.0, id="3-plausible"),
        pytest.param(3, -50.0, marks=pytest.mark.soak, id="3-turned"),
        pytest.param(3, 1e6, marks=pytest.mark.soak, id="3-absurd"),
    ],
)
def test_one_liar_moves_no_late_joiner(count: int, times: float) -> None:
    """The liar answers first, with any value; with only one other member, the joiner's own value is the third."""
    made = world(count, gossip__gather=2.0)
    cluster = PeerCluster(made, Faults(seed=1, links=LinkRules(delay=0.2)), forgetful=True)
    simulator, (liar, *others, late) = cluster.simulator, made.peers
    (group,) = cluster.groups
    simulator.start(liar, *others)
    cluster.run(200.0)
    state = cluster.node(liar).state
    state.shown = lambda group: times * state.durable.estimate_D(group)  # type: ignore[method-assign]
    honest_D = cluster.node(others[0]).durable.estimate_D(group)
    simulator.start(late)
    own_D = cluster.node(late).durable.estimate_D(group)
    adopted: list[Tensor] = []

    def look(peer: str, effect: object) -> None:
        if isinstance(effect, Note) and effect.what == "joined" and not adopted:
            adopted.append(cluster.node(late).durable.estimate_D(group))

    simulator.on_effect = look
    options = simulator.now
    assert cluster.run(options + 2 * JOIN_S / made.federation.gossip.tick, lambda: bool(adopted)), cluster.phases()
    least_D, most_D = torch.minimum(own_D, honest_D) - SAME, torch.maximum(own_D, honest_D) + SAME
    assert bool(((least_D <= adopted[0]) & (adopted[0] <= most_D)).all())
    if len(others) > 1:
        assert float((adopted[0] - honest_D).abs().max()) <= SAME
        assert simulator.now - options < JOIN_S / made.federation.gossip.tick, "another one is asked"


@pytest.mark.slow
def test_who_leaves_alone_says_that_nobody_took_it() -> None:
    cluster = PeerCluster(world(2), Faults(seed=1, links=LinkRules(delay=0.2)))
    simulator = cluster.simulator
    simulator.start()
    cluster.run(CALM)
    simulator.kill("peer2")
    options = simulator.now
    simulator.feed("peer1", OperatorCommand("leave"))
    assert cluster.run(options + PATIENCE + FAREWELL + 1, lambda: "peer1" in simulator.stopped)
    assert simulator.stopped["peer1"].text == "left; what nobody took is written off"
    assert [peer for _, peer in cluster.notes("written_off", since=options + PATIENCE - 1)] == ["peer1"]
    assert len(cluster.notes("written_off")) == 1


@pytest.mark.slow
def test_who_finds_takers_goes_before_its_time_and_says_so() -> None:
    cluster = PeerCluster(world(2), Faults(seed=1, links=LinkRules(delay=0.2)))
    simulator = cluster.simulator
    simulator.start()
    cluster.run(CALM)
    options = simulator.now
    simulator.feed("peer1", OperatorCommand("leave"))
    assert cluster.run(options + PATIENCE / 4, lambda: "peer1" in simulator.stopped)
    assert simulator.stopped["peer1"].text == "left; what was held is handed over"
    (group,) = cluster.groups
    assert cluster.weight(["peer2"], group) == 2.0


@pytest.mark.slow
def test_what_rounding_leaves_of_a_weight_is_not_given_away() -> None:
    """The values that remain are rounding errors as well: an estimate made of them would be rejected."""
    made = world(4, gossip__topology="complete")
    cluster = PeerCluster(made, Faults(seed=2, links=LinkRules(delay=0.2, loss=0.1)), look_every=20.0)
    simulator = cluster.simulator
    simulator.start()
    (group,) = cluster.groups

    def rounds_off() -> bool:
        weight = cluster.node("peer1").durable.groups[group].weight
        return 0 < weight - 3 * (weight * (1 / 3)) <= NOTHING_HELD

    assert cluster.run(600.0, rounds_off)
    options = simulator.now
    simulator.feed("peer1", OperatorCommand("leave"))
    assert cluster.run(options + PATIENCE / 4, lambda: "peer1" in simulator.stopped)
    assert simulator.stopped["peer1"].text == "left; what was held is handed over"
    assert 0 < cluster.weight(["peer1"], group) <= NOTHING_HELD
    assert not [row for row in simulator.rows if row[1] == "refused" and row[3] == "implausible"]


@pytest.mark.slow
def test_who_leaves_and_is_not_heard_loses_no_more_than_its_own() -> None:
    """The others go on sending shares to the leaving peer, since they cannot know; it takes none of these."""
    (mute, _) = partition(CALM, CALM + 2 * PATIENCE, ["peer1"], ["peer2"])
    cluster = PeerCluster(world(2), Faults(seed=1, links=LinkRules(delay=0.2), cuts=(mute,)))
    simulator = cluster.simulator
    simulator.start()
    cluster.run(CALM)
    (group,) = cluster.groups

    def own() -> float:
        holding = cluster.durable_states()["peer1"].groups[group]
        return holding.weight + sum(share.weight for channel in holding.out.values() for share in channel.open)

    before = own()
    simulator.feed("peer1", OperatorCommand("leave"))
    assert cluster.run(simulator.now + PATIENCE + FAREWELL + 1, lambda: "peer1" in simulator.stopped)
    received = [row for row in simulator.rows if row[0] > CALM and row[1:] == ("heard", "peer1", "Transfer", "peer2")]
    assert received, "the other one gave"
    assert own() == before


# ------------------------------------------------------------------------------------------- the end of the last round

#: Tick at which a short federation is running, and ticks of a fault that lasts beyond its end: until the peer that is
#: cut off is considered dead, and until long after the others have finished.
UNDER_WAY, FAULT = 120.0, 450.0
#: Ticks after the heal in which the peer that was cut off receives news of the others, fetches what they have, and
#: finishes; and for which it then waits for acknowledgements of peers that are gone.
FETCHED, OWING = 200.0, 200.0


def ending(rounds: int = 16, peers: int = 3, **settings: Any) -> PeerCluster:
    """Run peers up to a cut that separates the first; their 16 rounds take some 300 ticks."""
    made = world(peers, learning__rounds=rounds, **settings)
    cut = partition(UNDER_WAY, UNDER_WAY + FAULT, made.peers[:1], made.peers[1:])
    faults = Faults(seed=1, links=LinkRules(delay=0.2, jitter=0.3), cuts=cut)
    cluster = PeerCluster(made, faults, drift=1e-3, look_every=20.0)
    cluster.simulator.start()
    cluster.run(UNDER_WAY)
    return cluster


def by_name(cluster: PeerCluster) -> dict[str, tuple[float, dict[str, float]]]:
    """Return, by peer, the weight that it holds, and the open weight by recipient."""
    (group,) = cluster.groups
    return {
        peer: (
            durable.groups[group].weight,
            {
                to: sum(each.weight for each in channel.open)
                for to, channel in durable.groups[group].out.items()
                if channel.open
            },
        )
        for peer, durable in cluster.durable_states().items()
    }


def results(cluster: PeerCluster) -> Tensor:
    """Return x_Pn, the models with which the peers ended."""
    return torch.stack([durable.x_n for durable in cluster.durable_states().values()])


def finish(cluster: PeerCluster) -> None:
    """Check that after the heal the peer that was cut off finishes, then all end, and no weight is missing."""
    simulator, (lone, *_) = cluster.simulator, cluster.simulator.peers
    assert cluster.run(simulator.now + FETCHED, lambda: cluster.node(lone).phase == "finished"), cluster.phases()
    ended = cluster.run(simulator.now + OWING + FETCHED, lambda: set(simulator.stopped) == {*simulator.peers})
    assert ended, cluster.phases()
    assert {stop.code for stop in simulator.stopped.values()} == {0}
    cluster.look()
    cluster.judge()


@pytest.mark.slow
def test_who_is_cut_off_over_the_end_is_waited_for_and_has_the_model_of_the_others() -> None:
    """The peer that is cut off stays in its round, so its own training is not taken for what the others agreed on."""
    cluster = ending(peers=4)
    lone, *others = cluster.simulator.peers
    cluster.run(UNDER_WAY + FAULT)
    assert {peer: cluster.node(peer).phase for peer in others} == dict.fromkeys(others, "finished")
    assert cluster.node(lone).durable.round < 10
    finish(cluster)
    assert [peer for _, peer in cluster.notes("caught_up")] == [lone]
    far_Pn = results(cluster)[0] - results(cluster)[1:]
    assert float(far_Pn.abs().max()) <= 1e-5
    held = by_name(cluster)
    assert sum(weight for weight, _ in held.values()) == pytest.approx(4.0)
    assert not any(open_ for _, open_ in held.values()), held


@pytest.mark.slow
def test_who_waits_for_nobody_finishes_its_own_rounds_when_it_is_back() -> None:
    cluster = ending(rounds=45, learning__mode="asynchronous")
    lone, *others = cluster.simulator.peers
    cluster.run(UNDER_WAY + FAULT)
    assert cluster.phases() == {lone: cluster.phases()[lone], **dict.fromkeys(others, "finished 46")}
    assert cluster.node(lone).phase == "learning"
    finish(cluster)
    assert {durable.round for durable in cluster.durable_states().values()} == {46}


@pytest.mark.slow
def test_who_is_dead_at_the_end_is_waited_for_as_long_as_at_the_beginning() -> None:
    gather = 10.0
    cluster, ticks = ending(gossip__gather=gather), gather / 0.025
    simulator = cluster.simulator
    dead, *others = simulator.peers
    simulator.kill(dead)
    assert cluster.run(
        simulator.now + 1000.0, lambda: {node.phase for node in cluster.nodes().values()} == {"finished"}
    )
    finished = simulator.now
    cluster.run(finished + ticks - 200.0)
    assert not simulator.stopped
    assert cluster.run(finished + ticks + 200.0, lambda: set(simulator.stopped) == {*others}), cluster.phases()
    held = by_name(cluster)
    under_way = sum(sum(open_.values()) for _, open_ in held.values())
    assert {to for peer in others for to in held[peer][1]} <= {dead}, "all else is settled"
    assert sum(weight for weight, _ in held.values()) + under_way == pytest.approx(len(simulator.peers))
    cluster.judge()


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, pytest.param(2, marks=pytest.mark.soak), 3])
def test_who_begins_before_the_first_averaging_is_no_late_joiner(every: int) -> None:
    """Nobody needs its part before that, and its training counts like the others'. It receives nothing for a while from
    the moment when all others have begun."""
    made = world(4, gossip__every=every, gossip__deadline=30.0, gossip__topology="complete")
    calm = PeerCluster(made, Faults(links=LinkRules(delay=0.2)))
    calm.simulator.start()
    assert calm.run(50.0, lambda: sum(node.phase == "learning" for node in calm.nodes().values()) == 3)
    (last,) = (peer for peer, node in calm.nodes().items() if node.phase != "learning")
    others, begun = tuple(peer for peer in made.peers if peer != last), calm.simulator.now
    cut = Cut(begin=begun, end=begun + 60.0, senders=others, receivers=(last,))
    cluster = PeerCluster(made, Faults(links=LinkRules(delay=0.2), cuts=(cut,)))
    cluster.simulator.start()
    cluster.run(begun + 59.0)
    assert {cluster.node(peer).durable.round for peer in others} == {every}, "they wait at the first averaging"
    assert cluster.run(begun + 600.0, lambda: cluster.node(last).durable.round > every), cluster.phases()
    assert not cluster.notes("joined")


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_who_has_missed_an_averaging_joins_late(every: int) -> None:
    made = world(4, gossip__every=every, gossip__gather=0.5, gossip__topology="complete")
    cluster = PeerCluster(made, Faults(links=LinkRules(delay=0.2)))
    *others, last = made.peers
    cluster.simulator.start(*others)
    assert cluster.run(1000.0, lambda: min(cluster.node(peer).durable.round for peer in others) > every)
    cluster.simulator.start(last)
    assert cluster.run(cluster.simulator.now + 400.0, lambda: bool(cluster.notes("joined"))), cluster.phases()


def all_rounds(monkeypatch: pytest.MonkeyPatch, evaluation: float) -> PeerCluster:
    """Return three peers with four rounds, the first of which evaluates itself for so many ticks."""
    usual = NodeFactory._work_ticks

    def ticks(node_factory: NodeFactory, peer: str, effect: Work) -> float:
        slow = peer == "peer1" and isinstance(effect, Evaluate)
        return evaluation if slow else usual(node_factory, peer, effect)

    monkeypatch.setattr(NodeFactory, "_work_ticks", ticks)
    made = world(3, learning__rounds=4, learning__evaluate_every=4)
    cluster = PeerCluster(made, Faults(seed=1, links=LinkRules(delay=0.2)))
    cluster.simulator.start()
    return cluster


@pytest.mark.slow
def test_nobody_ends_before_its_last_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last evaluation writes the scores and the model, and may take longer than all other peers need to end."""
    cluster, long = all_rounds(monkeypatch, 600.0), 600.0
    simulator = cluster.simulator
    assert cluster.run(2000.0, lambda: set(simulator.stopped) >= {"peer2", "peer3"}), cluster.phases()
    assert "peer1" not in simulator.stopped
    assert not [peer for _, peer in cluster.notes("evaluated") if peer == "peer1"]
    assert cluster.run(simulator.now + long, lambda: len(simulator.stopped) == 3), cluster.phases()
    assert [peer for _, peer in cluster.notes("evaluated") if peer == "peer1"] == ["peer1"]


@pytest.mark.slow
def test_who_was_killed_in_its_last_evaluation_makes_up_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = all_rounds(monkeypatch, 100.0)
    simulator = cluster.simulator
    assert cluster.run(2000.0, lambda: cluster.node("peer1").phase == "finished")
    simulator.kill("peer1")
    simulator.start("peer1")
    assert cluster.run(simulator.now + 2000.0, lambda: len(simulator.stopped) == 3), cluster.phases()
    assert [peer for _, peer in cluster.notes("evaluated") if peer == "peer1"] == ["peer1"]


@pytest.mark.slow
def test_who_comes_back_after_the_end_has_the_model_of_the_others() -> None:
    """The peer is killed before the end, and started again while the others wait."""
    cluster = ending()
    simulator = cluster.simulator
    simulator.kill("peer1")
    cluster.run(UNDER_WAY + FAULT)
    simulator.start("peer1")
    finish(cluster)
    far_Pn = results(cluster)[0] - results(cluster)[1:]
    assert float(far_Pn.abs().max()) <= 1e-5


@pytest.mark.slow
def test_a_client_that_is_cut_off_over_the_end_has_the_last_model_of_the_server() -> None:
    made = clients(4, learning__rounds=8)
    cut = partition(80.0, 80.0 + FAULT, made.peers[:1], made.peers[1:])
    consensus_cluster = ServerCluster(made, Faults(seed=1, links=LinkRules(delay=0.2, jitter=0.3), cuts=cut))
    simulator = consensus_cluster.simulator
    simulator.start()
    consensus_cluster.run(80.0 + FAULT)
    assert set(consensus_cluster.rounds().values()) != {8}, "it has not heard of the last rounds"
    assert not simulator.stopped
    assert consensus_cluster.run(simulator.now + 2 * FETCHED, lambda: len(simulator.stopped) == 4), (
        consensus_cluster.rounds()
    )
    durable_states = [consensus_cluster.node_factory.node(peer, simulator.kept(peer)).durable for peer in made.peers]
    assert {durable.consensus_states[EVERYONE].settled for durable in durable_states} == {8}
    consensus_cluster.judge()


@pytest.mark.slow
def test_who_was_left_alone_finishes_when_one_of_the_others_is_started_again() -> None:
    cluster = ending(gossip__gather=1.0)
    simulator = cluster.simulator
    cluster.run(UNDER_WAY + FAULT + FETCHED)
    assert set(simulator.stopped) == {"peer2", "peer3"}
    assert cluster.node("peer1").phase == "learning"
    del simulator.stopped["peer2"]
    simulator.start("peer2")
    assert cluster.run(simulator.now + 4 * FETCHED, lambda: len(simulator.stopped) == 3), cluster.phases()
    x_Pn = results(cluster)
    assert float((x_Pn[0] - x_Pn[1]).abs().max()) <= 1e-5
    cluster.judge()
