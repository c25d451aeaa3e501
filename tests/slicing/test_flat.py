"""The flat vector and the module hold the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedpeer.slicing.flat import FlatLayout
from fedpeer.slicing.trace import trace
from tests.slicing.zoo import ZOO


@pytest.mark.parametrize("name", ZOO)
def test_a_module_from_its_flat_vector_is_the_module(name: str) -> None:
    module, example = ZOO[name].build().double().eval(), ZOO[name].example()
    layout = FlatLayout.of(module)
    assert layout == FlatLayout.of(trace(module, example))
    x_n = layout.flatten(module)
    assert len(x_n) == layout.n
    assert layout.n_parameters == sum(parameter.numel() for parameter in module.parameters())
    rebuilt = functional_call(module, layout.unflatten(x_n), (example,))
    torch.testing.assert_close(rebuilt, module(example), rtol=1e-12, atol=1e-12)


def test_unflattening_makes_views_with_any_leading_dimensions() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    layout = FlatLayout.of(module)
    x_PRn = torch.zeros(2, 5, layout.n)
    views = layout.unflatten(x_PRn)
    assert views["0.weight"].shape == (2, 5, 4, 3)
    views["1.running_var"][1, 2, 3] = 7
    assert x_PRn[1, 2, -1] == 7
    assert x_PRn.sum() == 7
    assert list(views)[:-2] == [name for name, _ in module.named_parameters()]


def test_a_scalar_parameter_has_a_place_too() -> None:
    module = nn.Module()
    module.register_parameter("temperature", nn.Parameter(torch.tensor(3.0)))
    layout = FlatLayout.of(module)
    assert layout.unflatten(layout.flatten(module))["temperature"] == 3
