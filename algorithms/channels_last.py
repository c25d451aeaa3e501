"""How images lie in memory while a convolutional network is trained on a CPU: channels last, which is quicker.

Torch's pooling and activations go through channels side by side with vector instructions, and through an image row by
row one number at a time: a step of a network with pooling takes about 0.7 of the time, an evaluation half. What is
computed is the same; sums are taken in another order, so numbers differ by float rounding. Where a network is no plain
sequence of known layers, images stay as they are: a forward pass of somebody's own may say `view`, which then fails.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

#: Layers that give the same for either order; elementwise ones, and those that look at an image by its indices.
_KNOWN = (
    nn.Conv2d,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.BatchNorm2d,
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Flatten,
    nn.Linear,
    nn.Identity,
    nn.Dropout,
)


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module, to be trained or asked, that puts its images channels last where that is quicker."""
    module = copy.deepcopy(module)
    if _indifferent(module):
        module.register_forward_pre_hook(_reordered)
    return module


def _indifferent(module: nn.Module) -> bool:
    """Whether it is a sequence of known layers that begins with a convolution."""
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        return False
    layers = list(module)
    return bool(layers) and type(layers[0]) is nn.Conv2d and all(type(layer) in _KNOWN for layer in layers)


def _reordered(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    (images,) = given
    if images.dim() != 4 or images.device.type != "cpu":
        return None
    # Not `contiguous`: images of one channel pass for both orders there, and the layers behind would take the slow one.
    return (torch.empty_like(images, memory_format=torch.channels_last).copy_(images),)
