"""Slices with a rhythm, exchanges and a graph of their own: the same numbers in all engines, and fewer bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.learning.bandwidth import rhythms, sending
from fedpeer.learning.groups import averaging_of, gossip_of
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.world import plan_of
from tests.sims.in_step import METHOD, PARITY, check_real_peers, check_stop, check_whole_peers
from tests.sims.test_vector_engine import twin
from tests.sims.worlds import engine, federation, played, relative, world

#: Rounds after which each slice has been averaged, and one has waited again.
ROUNDS = 4
#: All of six peers average `everyone` in every third round, four of them `core` in each, two of them `pair` in every
#: second until they agree.
MODELS: dict[str, Any] = {
    "everyone": {"neurons": {"input": "all", "hidden1": 5, "output": "all"}, "gossip": {"every": 3}},
    "core": {
        "depends_on": ["everyone"],
        "neurons": {"hidden1": 4},
        "members": ["peer1", "peer2", "peer3", "peer4"],
        "gossip": {"topology": "star", "exchanges": 1},
    },
    "pair": {
        "depends_on": ["everyone"],
        "neurons": {"hidden1": 3},
        "members": ["peer5", "peer6"],
        "gossip": {"tolerance": 1e-6, "every": 2},
    },
}


def sliced(**settings: Any) -> Federation:
    return federation(partial_models=MODELS, learning__rounds=ROUNDS + 4, **settings)


def test_a_slice_averages_as_it_says_and_in_all_else_as_the_federation() -> None:
    options = sliced(gossip__protocol="push-pull")
    plan = plan_of(world(options), METHOD)
    everyone, core, pair = (gossip_of(plan, options, name) for name in MODELS)
    assert (everyone.every, everyone.exchanges, everyone.topology) == (3, 2, options.gossip.topology)
    assert (core.every, core.exchanges, str(core.topology)) == (1, 1, "star")
    assert (pair.every, pair.exchanges, pair.tolerance) == (2, None, 1e-6)
    assert {each.protocol for each in (everyone, core, pair)} == {"push-pull"}
    assert gossip_of(plan, options, "core+pair") == options.gossip, "they do not say the same"
    assert gossip_of(plan, options, "another") == options.gossip


@pytest.mark.parametrize("method", ["full-averaging", "fedper"])
def test_a_method_with_models_of_its_own_averages_as_the_federation_says(method: str) -> None:
    """Full averaging's one group has the name of a model of the file."""
    made = world(sliced())
    plan = plan_of(made, parse_choice(method))
    assert all(gossip_of(plan, made.federation, name) == made.federation.gossip for name in MODELS)
    if method == "full-averaging":
        assert relative(played(made, ROUNDS, method=method), twin(made, method, ROUNDS)) < PARITY
        assert [policy.every for policy in averaging_of(plan, made.federation, 0).values()] == [1]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gossip__protocol": "push-pull"},
        {"gossip__protocol": "exact"},
        {"learning__optimizer": "sgd,lr=0.1,momentum=0.9"},
    ],
    ids=str,
)
def test_the_engine_computes_what_an_obvious_loop_computes(settings: dict[str, Any]) -> None:
    """The loop averages each group in the rounds in which it is due, and no group in the others."""
    made = world(sliced(**settings))
    averaging = averaging_of(plan_of(made, METHOD), made.federation, made.seed)
    assert {id: policy.every for id, policy in averaging.items()} == {"everyone": 3, "core": 1, "pair": 2}
    assert relative(played(made, ROUNDS), twin(made, "partial-averaging", ROUNDS)) < PARITY


@pytest.mark.slow
def test_whole_peers_have_the_same_numbers() -> None:
    check_whole_peers(world(sliced()), ROUNDS)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_real_peers_have_the_same_numbers(tmp_path: Path) -> None:
    check_real_peers(world(sliced(learning__evaluate_every=ROUNDS + 4)), ROUNDS + 4, tmp_path / "peers")


def test_a_run_that_was_stopped_goes_on_in_step() -> None:
    check_stop(world(sliced()), ROUNDS, stop=1)


@pytest.mark.slow
@pytest.mark.parametrize("drift", [1e-9, 0.02])
def test_slices_that_have_not_moved_keep_their_own_rhythm(drift: float) -> None:
    models = {**MODELS, "core": {**MODELS["core"], "gossip": {"every": 2}}}
    made = world(federation(partial_models=models, learning__rounds=ROUNDS + 4, gossip__drift=drift))
    with engine(made) as vector, NetworkEngine(made, METHOD) as network:
        for _ in range(ROUNDS):
            vector.step()
            network.step()
        assert relative(network.x_Pn, vector.x_Pn) < PARITY


def test_what_is_foretold_of_each_rhythm_is_what_is_sent() -> None:
    made = world(sliced())
    plan = plan_of(made, METHOD)
    found = rhythms(plan, made.federation, made.seed)
    assert found == {1: ("core",), 2: ("pair",), 3: ("everyone",)}
    foretold = {
        every: [each.messages for each in sending(plan, made.federation, made.seed, groups).values()]
        for every, groups in found.items()
    }
    with engine(made) as running:
        for number in range(1, 7):
            running.step()
            due = [foretold[every] for every in foretold if number % every == 0]
            assert running.traffic[0] == torch.tensor(due).sum(0).tolist(), f"round {number}"
