"""Convolutions from unfolded images beside torch's own: values, gradients, names, and what is left as it is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedpeer.algorithms.unfolded import UnfoldedConv2d, copied_for_block, unfolded

SHAPES: list[dict[str, Any]] = [
    {"kernel_size": 5, "padding": "same"},
    {"kernel_size": 5},
    {"kernel_size": 3, "padding": 1, "bias": False},
    {"kernel_size": 4, "padding": "valid"},
    {"kernel_size": 1},
    {"kernel_size": 3, "padding": (4, 4)},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_are_those_of_a_convolution(shape: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 8, **shape).double()
    found = unfolded(layer)
    assert isinstance(found, UnfoldedConv2d)
    images = torch.randn(7, 3, 12, 9, dtype=torch.float64, requires_grad=True)
    expected, got = layer(images), found(images)
    torch.testing.assert_close(got, expected)
    slope = torch.randn_like(expected)
    of_layer = torch.autograd.grad(expected, [images, *layer.parameters()], slope)
    torch.testing.assert_close(torch.autograd.grad(got, [images, *found.parameters()], slope), of_layer)


def test_peers_side_by_side_have_gradients_of_their_own() -> None:
    torch.manual_seed(0)
    first, second = nn.Conv2d(1, 4, 5, padding="same"), nn.Conv2d(4, 6, 3)
    module = nn.Sequential(first, nn.MaxPool2d(2), nn.ReLU(), second, nn.Flatten(), nn.Linear(96, 10)).double()
    images, classes = torch.randn(3, 5, 1, 12, 12, dtype=torch.float64), torch.randint(10, (3, 5))
    other = unfolded(module)
    assert list(other.state_dict()) == list(module.state_dict())

    def gradients(of: nn.Module) -> dict[str, Tensor]:
        def value(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(functional_call(of, parameters, (x,)), y)

        stacked = {name: torch.stack([each * (1 + peer) for peer in range(3)]) for name, each in of.named_parameters()}
        found: dict[str, Tensor] = vmap(grad(value))({n: p.detach() for n, p in stacked.items()}, images, classes)
        return found

    torch.testing.assert_close(gradients(other), gradients(module))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, stride=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, (3, 5)),
        nn.Conv2d(4, 4, 3, padding=(0, 1)),
        nn.Conv2d(4, 4, 4, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
    ],
    ids=str,
)
def test_other_convolutions_stay(layer: nn.Conv2d) -> None:
    module = nn.Sequential(copy.deepcopy(layer), nn.Conv2d(4, 2, 3))
    assert [type(each) for each in unfolded(module).children()] == [nn.Conv2d, UnfoldedConv2d]
    assert type(unfolded(layer)) is nn.Conv2d


def test_a_cpu_keeps_torchs_convolutions() -> None:
    assert type(copied_for_block(nn.Conv2d(1, 1, 3))) is nn.Conv2d
