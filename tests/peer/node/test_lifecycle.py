"""How a peer goes. That nothing is lost where others take it, whatever the links do: `tests/faults/scenarios.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedpeer.peer.node.lifecycle import JOIN_S
from fedpeer.peer.state.events import Note, OperatorCommand
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules, partition
from tests.faults.peer_cluster import PeerCluster, world
from tests.faults.scenarios import CALM
from tests.faults.server_cluster import ServerCluster
from tests.faults.server_cluster import world as clients

#: Ticks of the 5 s in which somebody may take what a leaver holds, and of its farewell.
PATIENCE, FAREWELL = 200, 13
#: By how much values of members that average may differ.
SAME = 1e-4


@pytest.mark.parametrize("times", [-50.0, 50.0, 1e6], ids=["turned", "plausible", "absurd"])
@pytest.mark.parametrize("count", [3, 4])
def test_one_liar_moves_no_late_joiner(count: int, times: float) -> None:
    """It answers first with any value; where only one other member is there, the joiner's own value is the third."""
    made = world(count, gossip__gather=2.0)
    village = PeerCluster(made, Faults(seed=1, links=LinkRules(delay=0.2)), forgetful=True)
    town, (liar, *others, late) = village.town, made.peers
    (group,) = village.groups
    town.start(liar, *others)
    village.run(CALM + 300.0)
    life = village.node(liar).life
    life.shown = lambda group: times * life.ledger.estimate_D(group)  # type: ignore[method-assign]
    honest_D = village.node(others[0]).ledger.estimate_D(group)
    town.start(late)
    own_D = village.node(late).ledger.estimate_D(group)
    adopted: list[Tensor] = []

    def look(peer: str, effect: object) -> None:
        if isinstance(effect, Note) and effect.what == "joined" and not adopted:
            adopted.append(village.node(late).ledger.estimate_D(group))

    town.said = look
    asked = town.now
    assert village.run(asked + 2 * JOIN_S / made.federation.gossip.tick, lambda: bool(adopted)), village.phases()
    least_D, most_D = torch.minimum(own_D, honest_D) - SAME, torch.maximum(own_D, honest_D) + SAME
    assert bool(((least_D <= adopted[0]) & (adopted[0] <= most_D)).all())
    if len(others) > 1:
        assert float((adopted[0] - honest_D).abs().max()) <= SAME
        assert town.now - asked < JOIN_S / made.federation.gossip.tick, "another one is asked"


def test_who_leaves_alone_says_that_nobody_took_it() -> None:
    village = PeerCluster(world(2), Faults(seed=1, links=LinkRules(delay=0.2)))
    town = village.town
    town.start()
    village.run(CALM)
    town.kill("peer2")
    asked = town.now
    town.tell("peer1", OperatorCommand("leave"))
    assert village.run(asked + PATIENCE + FAREWELL + 1, lambda: "peer1" in town.stopped)
    assert town.stopped["peer1"].text == "left; what nobody took is written off"
    assert [peer for _, peer in village.notes("written_off", since=asked + PATIENCE - 1)] == ["peer1"]
    assert len(village.notes("written_off")) == 1


def test_who_finds_takers_goes_before_its_time_and_says_so() -> None:
    village = PeerCluster(world(2), Faults(seed=1, links=LinkRules(delay=0.2)))
    town = village.town
    town.start()
    village.run(CALM)
    asked = town.now
    town.tell("peer1", OperatorCommand("leave"))
    assert village.run(asked + PATIENCE / 4, lambda: "peer1" in town.stopped)
    assert town.stopped["peer1"].text == "left; what was held is handed over"
    (group,) = village.groups
    assert village.weight(["peer2"], group) == 2.0


def test_who_leaves_and_is_not_heard_loses_no_more_than_its_own() -> None:
    """The others go on giving to it, since they cannot know; it takes nothing of that."""
    (mute, _) = partition(CALM, CALM + 2 * PATIENCE, ["peer1"], ["peer2"])
    village = PeerCluster(world(2), Faults(seed=1, links=LinkRules(delay=0.2), cuts=(mute,)))
    town = village.town
    town.start()
    village.run(CALM)
    (group,) = village.groups

    def own() -> float:
        holding = village.ledgers()["peer1"].groups[group]
        return holding.weight + sum(parcel.weight for lane in holding.out.values() for parcel in lane.open)

    before = own()
    town.tell("peer1", OperatorCommand("leave"))
    assert village.run(town.now + PATIENCE + FAREWELL + 1, lambda: "peer1" in town.stopped)
    heard = [row for row in town.rows if row[0] > CALM and row[1:] == ("heard", "peer1", "Transfer", "peer2")]
    assert heard, "the other one gave"
    assert own() == before


# ------------------------------------------------------------------------------------------- the end of the last round

#: Ticks in which a short federation is under way, a fault of half a minute over its end, and the time after which the
#: others give up whom they cannot reach.
UNDER_WAY, HALF_A_MINUTE, GATHER = 300.0, 1200.0, 2400.0
#: Ticks after the heal in which who was cut off has heard of the others, fetched what they have, and finished; and for
#: which it then waits for acknowledgements of those who are gone.
FETCHED, OWING = 200.0, 200.0


def ending(rounds: int = 40, **settings: Any) -> PeerCluster:
    """Four peers of 40 rounds, which take some 700 ticks; the first is cut off before the end for half a minute."""
    made = world(4, learning__rounds=rounds, **settings)
    cut = partition(UNDER_WAY, UNDER_WAY + HALF_A_MINUTE, made.peers[:1], made.peers[1:])
    village = PeerCluster(made, Faults(seed=1, links=LinkRules(delay=0.2, jitter=0.3), cuts=cut), drift=1e-3)
    village.town.start()
    village.run(UNDER_WAY)
    return village


def by_name(village: PeerCluster) -> dict[str, tuple[float, dict[str, float]]]:
    """By peer, what it holds, and what is open to whom."""
    (group,) = village.groups
    return {
        peer: (
            ledger.groups[group].weight,
            {to: sum(each.weight for each in lane.open) for to, lane in ledger.groups[group].out.items() if lane.open},
        )
        for peer, ledger in village.ledgers().items()
    }


def results(village: PeerCluster) -> Tensor:
    """x_Pn: the models that peers ended with."""
    return torch.stack([ledger.x_n for ledger in village.ledgers().values()])


def finish(village: PeerCluster) -> None:
    """From the heal on: the one that was cut off finishes, then all end, and no weight is missing."""
    town, (lone, *_) = village.town, village.town.peers
    assert village.run(town.now + FETCHED, lambda: village.node(lone).phase == "finished"), village.phases()
    assert village.run(town.now + OWING + FETCHED, lambda: len(town.stopped) == 4), village.phases()
    assert {stop.code for stop in town.stopped.values()} == {0}
    village.look()
    village.judge()


def test_who_is_cut_off_over_the_end_is_waited_for_and_has_the_model_of_the_others() -> None:
    """It stays in its round, so what it trained alone is not what the others agreed on."""
    village = ending()
    lone, *others = village.town.peers
    village.run(UNDER_WAY + HALF_A_MINUTE)
    assert {peer: village.node(peer).phase for peer in others} == dict.fromkeys(others, "finished")
    assert village.node(lone).ledger.round < 25
    finish(village)
    assert [peer for _, peer in village.notes("caught_up")] == [lone]
    far_Pn = results(village)[0] - results(village)[1:]
    assert float(far_Pn.abs().max()) <= 1e-5
    held = by_name(village)
    assert sum(weight for weight, _ in held.values()) == pytest.approx(4.0)
    assert not any(open_ for _, open_ in held.values()), held


@pytest.mark.slow
def test_who_waits_for_nobody_finishes_its_own_rounds_when_it_is_back() -> None:
    village = ending(rounds=80, learning__mode="asynchronous")
    lone, *others = village.town.peers
    village.run(UNDER_WAY + HALF_A_MINUTE)
    assert village.phases() == {lone: village.phases()[lone], **dict.fromkeys(others, "finished 81")}
    assert village.node(lone).phase == "learning"
    finish(village)
    assert {ledger.round for ledger in village.ledgers().values()} == {81}


def test_who_is_dead_at_the_end_is_waited_for_as_long_as_at_the_beginning() -> None:
    village = ending()
    town = village.town
    town.kill("peer1")
    assert village.run(town.now + 1000.0, lambda: {node.phase for node in village.nodes().values()} == {"finished"})
    finished = town.now
    village.run(finished + GATHER - 200.0)
    assert not town.stopped
    assert village.run(finished + GATHER + 200.0, lambda: len(town.stopped) == 3), village.phases()
    held = by_name(village)
    under_way = sum(sum(open_.values()) for _, open_ in held.values())
    assert {to for peer in ("peer2", "peer3", "peer4") for to in held[peer][1]} <= {"peer1"}, "all else is settled"
    assert sum(weight for weight, _ in held.values()) + under_way == pytest.approx(4.0)
    village.judge()


@pytest.mark.slow
def test_who_comes_back_after_the_end_has_the_model_of_the_others() -> None:
    """Killed before the end, and started again while the others wait."""
    village = ending()
    town = village.town
    town.kill("peer1")
    village.run(UNDER_WAY + HALF_A_MINUTE)
    town.start("peer1")
    finish(village)
    far_Pn = results(village)[0] - results(village)[1:]
    assert float(far_Pn.abs().max()) <= 1e-5


def test_a_client_that_is_cut_off_over_the_end_has_the_last_model_of_the_server() -> None:
    made = clients(4, learning__rounds=8)
    cut = partition(80.0, 80.0 + HALF_A_MINUTE, made.peers[:1], made.peers[1:])
    parliament = ServerCluster(made, Faults(seed=1, links=LinkRules(delay=0.2, jitter=0.3), cuts=cut))
    town = parliament.town
    town.start()
    parliament.run(80.0 + HALF_A_MINUTE)
    assert set(parliament.rounds().values()) != {8}, "it has not heard of the last rounds"
    assert not town.stopped
    assert parliament.run(town.now + 2 * FETCHED, lambda: len(town.stopped) == 4), parliament.rounds()
    ledgers = [parliament.residents.node(peer, town.kept(peer)).ledger for peer in made.peers]
    assert {ledger.chambers[EVERYONE].settled for ledger in ledgers} == {8}
    parliament.judge()


@pytest.mark.slow
def test_who_was_left_alone_finishes_when_one_of_the_others_is_started_again() -> None:
    village = ending(gossip__gather=1.0)
    town = village.town
    village.run(UNDER_WAY + HALF_A_MINUTE + FETCHED)
    assert set(town.stopped) == {"peer2", "peer3", "peer4"}
    assert village.node("peer1").phase == "learning"
    del town.stopped["peer2"]
    town.start("peer2")
    assert village.run(town.now + 4 * FETCHED, lambda: len(town.stopped) == 4), village.phases()
    x_Pn = results(village)
    assert float((x_Pn[0] - x_Pn[1]).abs().max()) <= 1e-5
    village.judge()
