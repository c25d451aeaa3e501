"""Networks of known layers get images channels last and give the module's values; others get them as they are."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedpeer.algorithms.bases import base_of
from fedpeer.algorithms.channels_last import copied
from fedpeer.algorithms.gradients import gradient_of
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.networks.registry import cnn
from tests.algorithms.client_factory import batches, starts

CE = LOSSES["cross-entropy"]


class Viewed(nn.Module):
    """A layer that takes only images whose rows are contiguous."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1)


class Flat(nn.Sequential):
    """A sequence by its type that does not apply its layers."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1)


def listened(network: nn.Module, layer: str) -> list[Tensor]:
    """Return a list that collects the inputs of this layer, in the network or in a copy."""
    met: list[Tensor] = []
    network.get_submodule(layer).register_forward_pre_hook(lambda _, given: met.append(given[0]))
    return met


def seen_by(layer: str, network: nn.Module, images: Tensor) -> Tensor:
    """Return the input that this layer gets."""
    met = listened(network, layer)
    network(images)
    return met[0]


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
def test_all_layers_of_our_networks_see_channels_last(channels: int) -> None:
    network = cnn((channels, 8, 8), 3, channels=(4, 5), hidden=(6,), kernel=3, norm="batch", dropout=0.1)
    images = torch.randn(2, channels, 8, 8)
    for layer in ("conv1", "norm1", "pool1", "conv2", "pool2", "flatten"):
        assert seen_by(layer, copied(network), images).stride(1) == 1
        assert seen_by(layer, copy.deepcopy(network), images).stride(-1) == 1, "as they came"


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (cnn((3, 8, 8), 3, channels=(4, 5), hidden=(6,), kernel=3, norm="batch"), (3, 8, 8)),
        (cnn((1, 9, 5), 3, channels=(4,), hidden=(), activation="sigmoid"), (1, 9, 5)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Identity(), nn.Flatten(2)), (3, 9, 9)),
        (nn.Sequential(nn.Conv2d(2, 4, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)), (2, 8, 8)),
    ],
    ids=["two convolutions", "one channel", "flat images", "mean of the image"],
)
def test_values_and_gradients_are_the_modules(network: nn.Module, shape: tuple[int, ...]) -> None:
    network, images = network.double(), torch.randn(4, *shape, dtype=torch.float64)
    other = copied(network)
    assert other._forward_pre_hooks, "it is a network of known layers"
    answers = [each(images) for each in (network, other)]
    torch.testing.assert_close(answers[1], answers[0])
    for answer in answers:
        answer.square().sum().backward()
    for found, wanted in zip(other.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad)
    network.zero_grad()


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3), Viewed(), nn.Linear(18, 3)),
        Flat(nn.Conv2d(1, 2, 3), nn.Flatten()),
        nn.Sequential(nn.Flatten(), nn.Linear(25, 3)),
    ],
    ids=["a layer of somebody's own", "a sequence of somebody's own", "no convolution"],
)
def test_other_networks_see_images_as_they_come(network: nn.Module) -> None:
    images = torch.randn(2, 1, 5, 5)
    torch.testing.assert_close(copied(network)(images), network(images))
    assert not copied(network)._forward_pre_hooks


def test_a_module_is_left_as_it_was() -> None:
    network = cnn((1, 8, 8), 3, channels=(2,), kernel=3)
    assert copied(network) is not network
    assert not network._forward_pre_hooks


def test_an_image_without_a_batch_passes() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    image = torch.randn(1, 5, 5)
    torch.testing.assert_close(copied(network)(image), network(image))


def test_steps_gradients_and_features_are_computed_so() -> None:
    network = cnn((1, 4, 4), 3, channels=(2,), hidden=(), kernel=3)
    met = listened(network, "pool1")
    block, x_Bn, context = (
        batches(peers=2, features=(1, 4, 4)),
        starts(network, 2),
        TrainingContext.of(network, CE, OptimizerChoice()),
    )
    images = block.inputs(0)
    base = base_of(context, "output")
    for use in (
        lambda: context.stepper.train(x_Bn.clone(), x_Bn.new_zeros(2, 0), True, block, (0, 0)),
        lambda: context.stepper.logits(x_Bn, images),
        lambda: gradient_of(network, context.layout, CE)(x_Bn, images, block.targets(0), (0, 0)),
        lambda: base.features(x_Bn[0], images[0]),
        lambda: base.train(x_Bn[0], block.peer(0), lambda z_bF, y_b: torch.zeros_like(z_bF), 0),
    ):
        met.clear()
        use()
        assert met
        assert all(given.stride(1) == 1 for given in met)
