"""One peer's part of a plan, and the members that a roster gives to partial models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedpeer.config.choice import Choice
from fedpeer.config.federation import Federation
from fedpeer.learning.groups import averaging_among, averaging_of, enrolled, peer_plan, plan_for
from fedpeer.networks.registry import NETWORKS
from fedpeer.slicing.flat import FlatLayout
from fedpeer.slicing.network import NetworkMap
from fedpeer.slicing.trace import trace

MODELS = {
    "everyone": {"neurons": {"input": "all", "hidden1": 4, "output": "all"}},
    "ward-a": {"depends_on": ["everyone"], "neurons": {"hidden1": 2}, "members": ["peer1", "peer3"]},
}
SLICES = Choice("partial-averaging")


def federation(**settings: Any) -> Federation:
    return Federation.model_validate({"partial_models": MODELS, **settings})


def network(hidden: int) -> NetworkMap:
    return trace(NETWORKS["mlp"]((3,), 2, layers=(3, hidden, 2)), torch.zeros(2, 3))


def test_a_peers_groups_are_those_of_the_plan() -> None:
    plan = plan_for(federation(), network(8), ["peer1", "peer2", "peer3"], SLICES)
    mine, other = peer_plan(plan, "peer1"), peer_plan(plan, "peer2")
    assert (list(mine.groups), list(other.groups)) == (["everyone", "ward-a"], ["everyone"])
    for group in plan.groups_of("peer1"):
        found = mine.groups[group.id]
        assert found.members == group.members
        assert found.index_D.dtype == torch.int64
        assert found.length == len(found.index_D)
        np.testing.assert_array_equal(found.index_D.numpy(), group.indices["peer1"])
        assert found.digest.hex() == group.digest


def test_peers_with_networks_of_their_own_size_agree_on_digests() -> None:
    small, large = (peer_plan(plan_for(federation(), network(n), ["peer1", "peer3"], SLICES), "peer1") for n in (7, 12))
    for id, group in small.groups.items():
        assert group.digest == large.groups[id].digest
        assert group.length == large.groups[id].length
    other = federation(partial_models={"everyone": {"neurons": {"input": "all", "hidden1": 5, "output": "all"}}})
    found = peer_plan(plan_for(other, network(8), ["peer1", "peer3"], SLICES), "peer1")
    assert found.groups["everyone"].digest != small.groups["everyone"].digest


def test_what_a_group_shares_lies_where_the_index_says() -> None:
    net = network(8)
    group = peer_plan(plan_for(federation(), net, ["peer1", "peer3"], SLICES), "peer1").groups["ward-a"]
    x_n = torch.zeros(net.n)
    x_n[group.index_D] = 1
    bias = FlatLayout.of(net).unflatten(x_n)["hidden1.bias"]
    assert bias.tolist() == [0, 0, 0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("roster", "everyone", "ward"),
    [
        ({"peer1": None, "peer2": None, "peer3": None}, "all", ["peer1", "peer3"]),
        ({"peer1": None, "peer2": None}, "all", ["peer1"]),
        ({"peer1": None, "peer9": ("everyone", "ward-a")}, ["peer1", "peer9"], ["peer1", "peer9"]),
        ({"peer1": None, "peer9": ("everyone",)}, ["peer1", "peer9"], ["peer1"]),
        ({"peer1": ("everyone",), "peer3": None}, ["peer1", "peer3"], ["peer3"]),
    ],
)
def test_a_roster_says_who_implements_what(
    roster: dict[str, tuple[str, ...] | None], everyone: list[str] | str, ward: list[str]
) -> None:
    found = enrolled(federation(), roster)
    assert (found.partial_models["everyone"].members, found.partial_models["ward-a"].members) == (everyone, ward)
    plan_for(found, network(8), list(roster), SLICES)


@pytest.mark.parametrize(
    ("gossip", "peers", "exchanges"),
    [
        ({}, 5, 1),  # all other peers are neighbors, so that one exchange gives the mean
        ({}, 16, 4),
        ({"topology": "ring"}, 300, 4),  # for its tolerance it would need more than are allowed
        ({"tolerance": 1e-4, "topology": "ring"}, 9, 55),
        ({"exchanges": 7}, 5, 7),
    ],
)
def test_by_default_an_averaging_has_few_exchanges(gossip: dict[str, Any], peers: int, exchanges: int) -> None:
    made = federation(gossip=gossip)
    assert averaging_among([str(number) for number in range(peers)], "everyone", made.gossip, 5).exchanges == exchanges


def test_a_group_averages_the_same_whoever_asks() -> None:
    made = federation(gossip={"topology": "erdos-renyi:0.5", "exchanges": 3, "tolerance": None})
    peers = [f"peer{number}" for number in range(1, 9)]
    plan = plan_for(made, network(8), peers, SLICES)
    whole = averaging_of(plan, made, 5)["everyone"]
    alone = averaging_among(peers, "everyone", made.gossip, 5)
    assert sorted(whole.overlay.union.edges) == sorted(alone.overlay.union.edges)
    assert whole.exchanges == alone.exchanges == 3
    other = averaging_among(peers, "everyone", made.gossip, 6)
    assert sorted(whole.overlay.union.edges) != sorted(other.overlay.union.edges)


def test_parameters_that_are_kept_local_stay_so_beside_local_normalisation() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    own = federation(
        partial_models={"everyone": {"neurons": "all"}, "local": {"parameters": ["2.bias"]}},
        learning={"buffers": "local", "batch_size": 2},
    )
    plan = plan_for(own, net := trace(module, torch.zeros(2, 3)), ["peer1", "peer2"], SLICES)
    local = {net.tensors[tensor].name for tensor in net.tensor_n[plan.local["peer1"]]}
    assert local == {"2.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"}
