"""A coordinator for one slice and push-sum for another, in one round: the same numbers in all engines."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fedpeer.config.federation import Federation
from fedpeer.gossip.averaging import MESSAGE_HEAD_BYTES
from fedpeer.learning.bandwidth import sending
from fedpeer.learning.groups import averaging_of
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.processes.engine import ProcessesEngine
from fedpeer.sims.record import _graphs
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.vector.pool import Stopped
from fedpeer.sims.world import plan_of
from tests.sims.in_step import METHOD, PARITY, check_stop, check_whole_peers
from tests.sims.test_vector_engine import twin
from tests.sims.worlds import engine, federation, played, relative, world

ROUNDS = 4
NEURONS: dict[str, Any] = {
    "everyone": {"neurons": {"input": "all", "hidden1": 5, "output": "all"}},
    "core": {"depends_on": ["everyone"], "neurons": {"hidden1": 4}, "members": ["peer1", "peer2", "peer3", "peer4"]},
    "pair": {"depends_on": ["everyone"], "neurons": {"hidden1": 3}, "members": ["peer4", "peer5", "peer6"]},
}


def sliced(gossip: dict[str, dict[str, Any]], **settings: Any) -> Federation:
    """Return a federation of six peers whose slices are averaged as `gossip` says; peer4 has all three slices."""
    models = {name: {**model, "gossip": gossip.get(name)} for name, model in NEURONS.items()}
    return federation(**{"partial_models": models, "learning__rounds": ROUNDS + 4, **settings})


#: How slices are averaged, and settings of their federation.
WAYS: dict[str, tuple[dict[str, dict[str, Any]], dict[str, Any]]] = {
    "one has a coordinator": ({"core": {"protocol": "coordinator"}}, {}),
    "one has none": ({"everyone": {"protocol": "push-sum"}}, {"gossip__protocol": "coordinator"}),
    "each has a rhythm of its own": (
        {
            "everyone": {"protocol": "coordinator", "every": 2},
            "core": {"every": 3},
            "pair": {"protocol": "coordinator"},
        },
        {},
    ),
    "beside pairs, with momentum and outer steps": (
        {"core": {"protocol": "coordinator"}, "pair": {"protocol": "exact", "every": 2}},
        {
            "gossip__protocol": "push-pull",
            "learning__optimizer": "sgd,lr=0.1,momentum=0.9",
            "learning__outer": "sgd,lr=0.9,momentum=0.3",
        },
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_engine_computes_what_an_obvious_loop_computes(way: str) -> None:
    gossip, settings = WAYS[way]
    made = world(sliced(gossip, **{name: each for name, each in settings.items() if "outer" not in name}))
    averaging = averaging_of(plan_of(made, METHOD), made.federation, made.seed)
    assert {policy.coordinator is None for policy in averaging.values()} == {True, False}
    assert relative(played(made, ROUNDS), twin(made, "partial-averaging", ROUNDS)) < PARITY


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_whole_peers_have_the_same_numbers(way: str) -> None:
    gossip, settings = WAYS[way]
    check_whole_peers(world(sliced(gossip, **settings)), ROUNDS)


def test_a_run_that_was_stopped_goes_on_in_step() -> None:
    gossip, settings = WAYS["each has a rhythm of its own"]
    check_stop(world(sliced(gossip, **settings)), ROUNDS, stop=1)


def _play(running: ProcessesEngine, rounds: int) -> None:
    while running.round < rounds:
        running.step()


@pytest.mark.soak  # with a coordinator for all groups: `test_coordinated.py`; without: `test_engine.py`
@pytest.mark.usefixtures("forked")
def test_real_peers_that_all_pause_go_on_where_they_were(tmp_path: Path) -> None:
    """The peers are stopped in the middle, and may do more rounds before they hear of it: these rows come first."""
    gossip, _ = WAYS["one has a coordinator"]
    made = world(
        sliced(gossip, learning__rounds=25, gossip__tick=0.05, gossip__deadline=120.0, learning__evaluate_every=25)
    )
    stop = threading.Event()
    with ProcessesEngine(made, METHOD, folder=tmp_path / "peers", stop=stop) as running:
        running.step()
        stop.set()
        with pytest.raises(Stopped):
            _play(running, 25)
        tensors, state = running.snapshot()
    with ProcessesEngine(made, METHOD, folder=tmp_path / "peers") as again:
        again.restore(tensors, state)
        _play(again, 25)
        found = again.x_Pn
    assert relative(found, played(made, 25)) < PARITY


@pytest.mark.slow
def test_whole_peers_report_the_weights_of_all_their_groups() -> None:
    gossip, _ = WAYS["one has a coordinator"]
    made = world(sliced(gossip))
    with engine(made) as vector, NetworkEngine(made, METHOD) as network:
        for _ in range(2):
            vector.step()
            network.step()
        assert network.weights.keys() == vector.weights.keys() == NEURONS.keys()
        for group, weights in vector.weights.items():
            assert network.weights[group].tolist() == pytest.approx(weights.tolist())


def test_the_report_draws_a_coordinator_in_the_middle() -> None:
    gossip, _ = WAYS["one has a coordinator"]
    simulation = prepare_simulation(SimulationRequest(federation=sliced(gossip), methods=(METHOD,)))
    drawn = {graph["group"]: graph for graph in _graphs(plan_of(simulation.world, METHOD), simulation)}
    assert {frozenset(edge) for edge in drawn["core"]["edges"]} == {frozenset({0, other}) for other in (1, 2, 3)}
    assert drawn["core"]["nodes"][0] == "peer1"
    assert len(drawn["everyone"]["edges"]) == 6, "a ring"


def test_what_is_foretold_of_a_coordinated_slice_is_a_value_there_and_a_mean_back() -> None:
    made = world(sliced({"core": {"protocol": "coordinator", "wire": "float32"}}, gossip__wire="int8"))
    plan = plan_of(made, METHOD)
    length = next(group.length for group in plan.groups if group.id == "core")
    found = sending(plan, made.federation, made.seed, ["core"])
    assert [found[peer].messages for peer in made.peers] == [3, 1, 1, 1, 0, 0], "the first member coordinates"
    assert found["peer2"].bytes == MESSAGE_HEAD_BYTES + 4 * length
