"""What is repeated here so that a file is checked without torch is what the rooms themselves say."""

from __future__ import annotations

import inspect

import pytest
import torch

from fedpeer.algorithms.start import STARTS
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


def test_starts_and_their_settings_are_those_of_algorithms() -> None:
    known = registry(("learning", "start"))[1]
    assert known.keys() == STARTS.keys()
    for name, function in known.items():
        wanted = [p for p in inspect.signature(STARTS[name]).parameters.values() if p.kind is p.KEYWORD_ONLY]
        here = inspect.signature(function).parameters.values()
        assert [(p.name, p.default) for p in here] == [(p.name, p.default) for p in wanted]


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
