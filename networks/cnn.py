"""A small convolutional network: conv1, conv2, ... with 2x2 max-pooling, then hidden1, ..., output.

5x5 kernels with 32 and 64 channels and one dense layer of 100 are the network of the VIRTUAL experiments (2021).
"""

from __future__ import annotations

from torch import nn

from fedpeer.networks.mlp import ACTIVATIONS


class CNN(nn.Sequential):
    """The convolutional network for images of `input_shape` (channels, height, width).

    Padding is "same", so that each pooling halves the image exactly. Settings are those of `registry.cnn`.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        outputs: int,
        *,
        channels: tuple[int, ...],
        hidden: tuple[int, ...],
        kernel: int,
        norm: str,
        activation: str,
        dropout: float,
    ) -> None:
        super().__init__()
        planes, height, width = input_shape
        for depth, wide in enumerate(channels, start=1):
            self.add_module(f"conv{depth}", nn.Conv2d(planes, wide, kernel, padding="same"))
            if norm == "batch":
                self.add_module(f"norm{depth}", nn.BatchNorm2d(wide))
            # With pooling first, the activation gets a quarter of the numbers; since all activations are monotone, the
            # result and its gradient are the same.
            self.add_module(f"pool{depth}", nn.MaxPool2d(2))
            self.add_module(f"conv_activation{depth}", ACTIVATIONS[activation]())
            planes, height, width = wide, height // 2, width // 2
        self.add_module("flatten", nn.Flatten())
        features = planes * height * width
        for depth, units in enumerate(hidden, start=1):
            self.add_module(f"hidden{depth}", nn.Linear(features, units))
            self.add_module(f"activation{depth}", ACTIVATIONS[activation]())
            if dropout:
                self.add_module(f"dropout{depth}", nn.Dropout(dropout))
            features = units
        self.add_module("output", nn.Linear(features, outputs))
