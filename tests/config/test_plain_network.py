"""The parts of a perceptron are found without building it."""

from __future__ import annotations

import torch

from fedpeer.config.choice import parse_choice
from fedpeer.config.plain_network import plain_network
from fedpeer.networks.registry import NETWORKS
from fedpeer.slicing.trace import trace


def test_an_mlps_parts_are_found_without_building_it() -> None:
    network = plain_network(parse_choice("mlp:6+5+4+3"))
    assert network is not None
    traced = trace(NETWORKS["mlp"]((6,), 3, layers=(6, 5, 4, 3)), torch.zeros(2, 6))
    assert [part.size for part in network.parts] == [part.size for part in traced.parts]
    assert [part.name for part in network.parts] == [part.name for part in traced.parts]
    assert [(tensor.name, tensor.shape) for tensor in network.tensors] == [(t.name, t.shape) for t in traced.tensors]
