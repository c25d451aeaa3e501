"""The network of the experiment `crossed` that is told its peer's view and code."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedpeer.networks.mlp import MLP


class ToldNetwork(nn.Module):
    """A perceptron with marks, 0 or 1, beside each input, which tell its peer's view and code.

    sizes   layer sizes, from the inputs without these marks to the outputs
    marks   the marks beside each input; they are not trained
    """

    mark_E: Tensor

    def __init__(self, sizes: Sequence[int], marks: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mark_E", torch.tensor(marks), persistent=False)
        self.layers = MLP([sizes[0] + len(marks), *sizes[1:]], activation="relu")

    def forward(self, x: Tensor) -> Tensor:
        x_BF = x.flatten(1)
        logits: Tensor = self.layers(torch.cat([x_BF, self.mark_E.expand(len(x_BF), -1)], dim=1))
        return logits


def told_network(
    input_shape: tuple[int, ...], outputs: int, *, view: int, code: int, of: int, layers: tuple[int, ...]
) -> nn.Module:
    """Return the network of a peer with this view and code, each one of `of`; `layers` are sizes without the marks."""
    marks = [float(number == chosen) for chosen in (view, code) for number in range(of)]
    return ToldNetwork(layers, marks)
