"""Epidemic Learning and gossip learning by settings: graphs that are drawn anew, in the vector engine and by peers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpeer.config.choice import parse_choice
from fedpeer.gossip.averaging import turn
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.vector.gossip_rounds import GossipRounds
from tests.sims.worlds import assert_workers_and_stops_change_nothing, engine, federation, relative, world

ONE: dict[str, Any] = {"gossip__exchanges": 1}


def received_from(running: VectorEngine, number: int) -> list[list[int]]:
    """Return for each peer the peers whose models it averages in round 0, 1, ...: itself, and those that sent to it."""
    assert isinstance(running._rounds, GossipRounds)
    (policy,) = running._rounds._averaging.values()
    members = policy.overlay.members
    into = [[place] for place in range(len(members))]
    for place, peer in enumerate(members):
        for to in turn(policy, peer, number, 0).to:
            into[members.index(to)].append(place)
    return into


def trained(running: VectorEngine) -> Tensor:
    found = running.trained_Pn
    assert found is not None
    return found.clone()


@pytest.mark.parametrize("topology", ["el-local:2", "el-local:1", "el-oracle:2"])
def test_a_peer_takes_the_plain_mean_of_what_it_has_and_receives(topology: str) -> None:
    """x+ = (x + sum of the received) / (1 + their number): Algorithm 1 of de Vos et al. 2023."""
    made, graphs = world(federation(**ONE, gossip__topology=topology, learning__weights="restart")), []
    with engine(made, "full-averaging") as running:
        for number in range(4):
            running.step()
            trained_Pn, into = trained(running), received_from(running, number)
            wanted_Pn = torch.stack([trained_Pn[each].mean(0) for each in into])
            assert relative(running.x_Pn, wanted_Pn) < 1e-6
            graphs.append(str(into))
    assert len(set(graphs)) == 4, "each round has another graph"


def test_carried_weights_keep_the_mean_of_all_models_and_fresh_ones_do_not() -> None:
    def drift(weights: str) -> float:
        made = world(federation(**ONE, gossip__topology="el-local:1", learning__weights=weights))
        apart = 0.0
        with engine(made, "full-averaging") as running:
            for _ in range(4):
                before_P = torch.from_numpy(running.weights["everyone"]).float()
                running.step()
                after_P = torch.from_numpy(running.weights["everyone"]).float()
                if weights == "restart":
                    before_P = after_P = torch.ones(len(made.peers))
                change_n = (after_P[:, None] * running.x_Pn - before_P[:, None] * trained(running)).sum(0)
                apart = max(apart, float(change_n.norm() / running.x_Pn.sum(0).norm()))
            return apart

    assert drift("uniform") < 1e-6
    assert drift("restart") > 1e-3


def test_gossip_learning_merges_random_pairs() -> None:
    """All ages are equal if all peers take equally many steps, so the merge by ages is the plain mean of the two."""
    made = world(federation(**ONE, gossip__protocol="push-pull", gossip__topology="complete"))
    with engine(made, "full-averaging") as running:
        for number in range(3):
            running.step()
            into = received_from(running, number)
            assert all(len(each) == 2 for each in into), "six peers are three pairs"
            trained_Pn = trained(running)
            assert relative(running.x_Pn, torch.stack([trained_Pn[each].mean(0) for each in into])) < 1e-6


@pytest.mark.parametrize(
    ("topology", "weights", "exchanges"), [("el-oracle:2", "uniform", 2), ("el-local:1", "restart", 1)]
)
def test_whole_peers_give_the_numbers_of_the_vector_engine(topology: str, weights: str, exchanges: int) -> None:
    settings: dict[str, Any] = {"gossip__topology": topology, "learning__weights": weights}
    made = world(federation(**settings, gossip__exchanges=exchanges, gossip__deadline=120.0))
    method = "full-averaging"
    with engine(made, method) as expected, NetworkEngine(made, parse_choice(method)) as found:
        for _ in range(3):
            expected.step()
            found.step()
        assert np.allclose(found.evaluate(), expected.evaluate(), rtol=1e-5)
        assert relative(found.x_Pn, expected.x_Pn) < 1e-5
        for group, weights_M in expected.weights.items():
            np.testing.assert_allclose(found.weights[group], weights_M, rtol=1e-9)


def test_neither_workers_nor_a_stop_between_rounds_change_a_bit() -> None:
    assert_workers_and_stops_change_nothing(
        world(federation(gossip__topology="el-local:2", learning__weights="restart")), "full-averaging"
    )
