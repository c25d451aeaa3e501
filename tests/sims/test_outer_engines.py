"""Outer steps by slice: the same numbers in all engines, in an obvious loop with torch's optimizers, after a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.learning.groups import gossip_of
from fedpeer.learning.outer import outer_of, outer_rules
from fedpeer.sims.world import World, plan_of
from tests.reference.outer_by_torch import OuterByTorch
from tests.sims.in_step import PARITY, check_real_peers, check_stop, check_whole_peers
from tests.sims.test_vector_engine import twin
from tests.sims.worlds import federation, played, relative, same_bits, start_of, world

ROUNDS = 7
#: All six peers take DiLoCo's steps in every second round, four take SlowMo's in each, and two take plain averages.
MODELS: dict[str, Any] = {
    "everyone": {"neurons": {"input": "all", "hidden1": 5, "output": "all"}, "gossip": {"every": 2}},
    "core": {
        "depends_on": ["everyone"],
        "neurons": {"hidden1": 4},
        "members": ["peer1", "peer2", "peer3", "peer4"],
        "outer": "sgd,lr=0.9,momentum=0.4",
    },
    "pair": {"depends_on": ["everyone"], "neurons": {"hidden1": 3}, "members": ["peer5", "peer6"], "outer": "none"},
}


def stepping(**settings: Any) -> Federation:
    options = {
        "partial_models": MODELS,
        "learning__rounds": ROUNDS + 3,
        "learning__outer": "nesterov,lr=0.5",
        **settings,
    }
    return federation(**options)


def loop(made: World, method: str, rounds: int) -> Tensor:
    """Return the result of an obvious loop after these rounds, with an optimizer of torch's for each peer's part of a
    group."""
    plan = plan_of(made, parse_choice(method))
    by_torch: dict[tuple[str, str], OuterByTorch] = {}

    def begin(number: int, x_Pn: Tensor) -> None:
        for group in plan.groups:
            outer = outer_of(plan, made.federation, group.id)
            if outer is None:
                continue
            for peer in group.members:
                where = (made.peers.index(peer), torch.from_numpy(group.indices[peer]))
                if number == 0:
                    by_torch[group.id, peer] = OuterByTorch(outer, x_Pn[where])
                elif number % gossip_of(plan, made.federation, group.id).every == 0:
                    x_Pn[where] = by_torch[group.id, peer].step(x_Pn[where])

    return twin(made, method, rounds, begin)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gossip__protocol": "push-pull"},
        {"gossip__protocol": "exact", "learning__optimizer": "sgd,lr=0.1,momentum=0.9"},
        {"gossip__every": 3},
    ],
    ids=str,
)
def test_the_engine_computes_what_an_obvious_loop_computes(settings: dict[str, Any]) -> None:
    made = world(stepping(**settings))
    assert relative(played(made, ROUNDS), loop(made, "partial-averaging", ROUNDS)) < PARITY


def test_full_averaging_takes_the_federations_outer_steps() -> None:
    made = world(stepping())
    found, plain = played(made, ROUNDS, method="full-averaging"), twin(made, "full-averaging", ROUNDS)
    assert relative(found, loop(made, "full-averaging", ROUNDS)) < PARITY
    assert relative(found, plain) > 0.01


def test_whoever_averages_nothing_takes_none() -> None:
    made = world(stepping())
    assert outer_rules(plan_of(made, parse_choice("local")), made.federation) is None
    assert relative(played(made, 3, method="local"), twin(made, "local", 3)) < PARITY


def test_the_weights_between_two_models_take_their_steps_if_both_name_the_same() -> None:
    between = {name: {**MODELS[name], "members": ["peer1", "peer2", "peer3", "peer4"]} for name in ("core", "pair")}
    for of_pair, expected in (("sgd,lr=0.9,momentum=0.4", 0.9), ("none", 0.5)):
        models = {**MODELS, **between, "pair": {**between["pair"], "outer": of_pair}}
        made = world(stepping(partial_models=models))
        plan = plan_of(made, parse_choice("partial-averaging,cross_model=true"))
        found = outer_of(plan, made.federation, "core+pair")
        assert found is not None
        assert found.lr == expected


@pytest.mark.slow
def test_whole_peers_have_the_same_numbers() -> None:
    check_whole_peers(world(stepping()), ROUNDS)


@pytest.mark.slow
def test_a_coordinators_averages_have_the_same_numbers() -> None:
    models = {name: {**model, "gossip": None} for name, model in MODELS.items()}
    check_whole_peers(world(stepping(partial_models=models, gossip__protocol="coordinator")), 4)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_real_peers_have_the_same_numbers(tmp_path: Path) -> None:
    """All peers take two steps, so that momentum counts."""
    models = {**MODELS, "core": {**MODELS["core"], "members": ["peer1", "peer2"]},
              "pair": {**MODELS["pair"], "members": ["peer3", "peer4"]}}  # fmt: skip
    made = world(stepping(partial_models=models, simulation__peers=4, learning__rounds=4, learning__evaluate_every=4))
    check_real_peers(made, 4, tmp_path / "peers")


def test_a_run_that_was_stopped_goes_on_in_step() -> None:
    check_stop(world(stepping()), ROUNDS, stop=3)


def test_workers_and_blocks_do_not_change_a_bit() -> None:
    made = world(stepping(learning__common_start=False))
    assert same_bits(played(made, 4, workers=2), played(made, 4, workers=1))
    assert start_of(made).std(0).max() > 0, "the peers begin apart"
