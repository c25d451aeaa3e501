"""Rounds that wait for some of their clients only: whole peers in virtual time, beside an obvious loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedpeer.algorithms.leaves import stack_states
from fedpeer.algorithms.private import Private
from fedpeer.config.choice import parse_choice
from fedpeer.peer.state.events import AggregateUpdates, Effect
from fedpeer.sims.network.engine import SECONDS, NetworkEngine
from fedpeer.sims.network.faults import Faults, faults_from
from fedpeer.sims.peers import local_tasks
from fedpeer.sims.world import World
from tests.sims import worlds
from tests.sims.network.test_served import algorithm, batches_of

ROUNDS, GOAL = 9, 3
#: A round of a peer's training is some ten times as long as the messages of a round.
SLOW = "slow:1-5,times=20/slow:2,times=200"


def world(**settings: Any) -> World:
    common = {
        "simulation__peers": 5,
        "simulation__split": "blocks:40,shuffle=true,test=50",
        "learning__algorithm": "fedavg",
        "learning__rounds": ROUNDS,
        "gossip__deadline": 300.0,
    }
    return worlds.world(worlds.federation(**{**common, **settings}))


def played(made: World, faults: Faults) -> tuple[NetworkEngine, dict[int, dict[str, int]]]:
    """Run all rounds; return the engine, and by round the round of each update that counted in it."""
    counted: dict[int, dict[str, int]] = {}
    with NetworkEngine(made, parse_choice("fedavg"), faults=faults) as engine:
        say = engine._simulator.on_effect

        def on_effect(peer: str, effect: Effect) -> None:
            if isinstance(effect, AggregateUpdates):
                counted[effect.round] = dict(effect.rounds)
            say(peer, effect)

        engine._simulator.on_effect = on_effect
        for _ in range(made.federation.learning.rounds):
            engine.step()
        engine.evaluate()
        return engine, counted


def obvious(made: World, counted: dict[int, dict[str, int]]) -> Tensor:
    """Return the server's model after all rounds: each update is trained from the model of its own round."""
    found = local_tasks(made)
    algorithms = {peer: algorithm(made, "fedavg", local_task) for peer, local_task in found.items()}
    first = algorithms[made.peers[0]]
    servers = [first.start_server(made.drawn(""))]
    for round in range(1, ROUNDS + 1):
        updates, ages = [], []
        for peer, since in sorted(counted[round].items()):
            client = algorithms[peer].start_client(made.start(peer), torch.tensor(found[peer].examples))
            broadcast, key = first.open(servers[since - 1], since), made.draws.key("dropout", peer, since)
            work = batches_of(made, found[peer], peer, since)
            updates.append(algorithms[peer].train(client, broadcast, work, [key])[1])
            ages.append(round - since)
        together = first.rebased(servers[-1], stack_states(updates), round, torch.tensor(ages))
        servers.append(first.close(servers[-1], together))
    server_n: Tensor = first.server_model(servers[-1])
    return server_n


@pytest.fixture(scope="module")
def late() -> tuple[World, NetworkEngine, dict[int, dict[str, int]]]:
    """Return rounds that wait for some of their clients, of which one is ten times slower; tests only read them."""
    made = world(learning__aggregation_goal=GOAL)
    return made, *played(made, faults_from(SLOW, made.peers))


def test_late_updates_count_once_each_with_the_weight_of_their_age(
    late: tuple[World, NetworkEngine, dict[int, dict[str, int]]],
) -> None:
    made, engine, counted = late
    ages = {(peer, since): round - since for round, each in counted.items() for peer, since in each.items()}
    assert sum(map(len, counted.values())) == len(ages), "no update counts twice"
    assert max(age for (peer, _), age in ages.items() if peer == "peer2") >= 3, "the slow peer is late"
    assert sorted(counted) == list(range(1, ROUNDS + 1))
    found = engine.evaluate_server()
    expected = [each.evaluate(obvious(made, counted)) for each in local_tasks(made).values()]
    assert found is not None
    # The slow peer's last evaluation is of the round that it settled last.
    for peer, (_, loss), (_, right) in zip(made.peers, found, expected, strict=True):
        assert loss == pytest.approx(right, rel=1e-5), peer


def test_a_peer_ten_times_slower_costs_the_others_nothing(
    late: tuple[World, NetworkEngine, dict[int, dict[str, int]]],
) -> None:
    """Compare the quick peers' seconds; rounds that wait for all take the slow peer's time, measured on a third."""

    def seconds(engine: NetworkEngine) -> float:
        return sorted(engine.statistics()[SECONDS])[2]

    waiting, some = world(learning__rounds=ROUNDS // 3), world(learning__aggregation_goal=GOAL)
    calm, _ = played(some, faults_from("slow:1-5,times=20", some.peers))
    for_all, _ = played(waiting, faults_from(SLOW, waiting.peers))
    slowed = seconds(late[1])
    assert slowed <= 1.1 * seconds(calm)
    assert 3 * seconds(for_all) >= 4 * slowed


def test_who_waits_for_all_has_the_plain_algorithms_numbers() -> None:
    made = world(learning__aggregation_goal=5, learning__rounds=4)
    plain = world(learning__rounds=4)
    (buffered, counted), (synchronous, _) = played(made, Faults()), played(plain, Faults())
    assert all(set(each.values()) == {round} for round, each in counted.items())
    assert worlds.relative(buffered.x_Pn, synchronous.x_Pn) < 1e-5


@pytest.mark.parametrize(("goal", "participants"), [(None, 5), (3, 3)])
def test_noise_is_made_for_as_many_updates_as_close_a_round(goal: int | None, participants: int) -> None:
    """Each client's noise is a share of what a round's sum needs: with fewer updates each needs a larger one."""
    made = world(learning__aggregation_goal=goal, learning__privacy="gaussian,clip=1.0,noise=1.0")
    private = algorithm(made, "fedavg", local_tasks(made)["peer1"])
    private = private.inner if goal else private
    assert isinstance(private, Private)
    assert private.participants_count == participants
