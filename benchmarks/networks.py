"""Networks that fedpeer does not recognise as stacks of linear layers, and so trains with autograd."""

from __future__ import annotations

from torch import Tensor, nn


class Opaque(nn.Module):
    """A module inside another module with its own `forward`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        return logits


def perceptron() -> nn.Module:
    """784-300-100-10 with sigmoids, as in the common job."""
    return Opaque(
        nn.Sequential(
            nn.Linear(784, 300), nn.Sigmoid(),
            nn.Linear(300, 100), nn.Sigmoid(),
            nn.Linear(100, 10),
        )
    )  # fmt: skip


def layer_norm() -> nn.Module:
    """784-300-100-10 with layer normalisation and ReLU."""
    return nn.Sequential(
        nn.Linear(784, 300), nn.LayerNorm(300), nn.ReLU(),
        nn.Linear(300, 100), nn.LayerNorm(100), nn.ReLU(),
        nn.Linear(100, 10),
    )  # fmt: skip
