"""What is repeated here so that a file is checked without torch is what the rooms themselves say."""

from __future__ import annotations

import inspect

import pytest
import torch

from fedpeer.cli.checks import CHOICES, OPTIMIZERS, plain_network, registry
from fedpeer.cli.errors import Path
from fedpeer.networks.registry import NETWORKS
from fedpeer.peer.core.choice import parse
from fedpeer.slicing.trace import trace


def test_optimizers_and_their_settings_are_torchs() -> None:
    classes = {name.lower(): kind for name, kind in vars(torch.optim).items() if inspect.isclass(kind)}
    for name, settings in OPTIMIZERS.items():
        if name in classes:  # the newest are not in every torch
            assert set(settings.split()) <= inspect.signature(classes[name]).parameters.keys(), name


@pytest.mark.parametrize("path", CHOICES)
def test_every_choice_has_something_to_choose_from(path: Path) -> None:
    what, known = registry(path)
    assert what
    assert len(known) >= 2
    assert all(inspect.getdoc(function) for function in known.values())


def test_an_mlps_parts_are_found_without_building_it() -> None:
    network = plain_network(parse("mlp:6+5+4+3"))
    assert network is not None
    traced = trace(NETWORKS["mlp"]((6,), 3, layers=(6, 5, 4, 3)), torch.zeros(2, 6))
    assert [part.size for part in network.parts] == [part.size for part in traced.parts]
    assert [part.name for part in network.parts] == [part.name for part in traced.parts]
    assert [(tensor.name, tensor.shape) for tensor in network.tensors] == [(t.name, t.shape) for t in traced.tensors]
