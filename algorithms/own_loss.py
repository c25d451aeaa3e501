"""A user's own loss as a `Loss`: computed for one batch or for the batches of many peers, and checked once.

The function gets the outputs of one batch, (B, K), and its targets: classes (B,) int64, numbers (B, K), or labels of 0
and 1, (B, K). It returns the loss of each example, (B,), or their mean, (). It is differentiated by autograd, and
computed for many peers at once by `torch.func.vmap`, so it must consist of torch's operations only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedpeer.algorithms.losses import Loss, Task


class LossError(ValueError):
    """A user's own loss cannot be used; the message gives the reason and the way out."""


def own_loss(name: str, function: Callable[..., object], settings: Mapping[str, Any], task: Task) -> Loss:
    """Return a user's function as a loss.

    Args:
        name: as users write it, for messages.
        task: classification, multi-label or regression.
    """
    return Loss(name, _Value(name, function, dict(settings), task), None, task, -1)


@dataclass(frozen=True)
class _Value:
    """The mean of a user's function over the batch, with any leading dimensions."""

    name: str
    function: Callable[..., object]
    settings: dict[str, Any] = field(default_factory=dict)
    task: Task = "classification"

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        y = y if self.task == "classification" else y.to(z.dtype).reshape(z.shape)
        lead = z.shape[:-2]
        if not lead:
            return self._mean(z, y)
        flat: Tensor = vmap(self._mean)(z.reshape(-1, *z.shape[-2:]), y.reshape(-1, *y.shape[len(lead) :]))
        return flat.reshape(lead)

    def _mean(self, z_BK: Tensor, y_B: Tensor) -> Tensor:
        found = self.function(z_BK, y_B, **self.settings)
        if not isinstance(found, Tensor):
            raise LossError(f"loss {self.name} returned {type(found).__name__}; it must return a tensor")
        if not found.is_floating_point():
            raise LossError(f"loss {self.name} returned {found.dtype}, which has no gradient; return real numbers")
        if found.shape not in ((), (len(z_BK),)):
            raise LossError(
                f"loss {self.name} returned shape {tuple(found.shape)} for outputs {tuple(z_BK.shape)}; it must return "
                f"one number, or ({len(z_BK)},), one for each example"
            )
        return found.mean() if found.dim() else found


def check_own_loss(loss: Loss, outputs: int) -> None:
    """Compute a user's own loss and its gradient for one batch and for the batches of two peers.

    Raises:
        LossError: it fails, or gives other numbers for two peers together than for each alone.
    """
    z_2BK = torch.linspace(-1, 1, 6 * outputs).view(2, 3, outputs)
    y_2B = torch.arange(6).view(2, 3) % outputs if loss.classifies else 0.5 * z_2BK.flip(0)
    y_2B = (y_2B > 0).to(z_2BK.dtype) if loss.marks else y_2B
    try:
        alone = torch.stack([grad(loss.value)(*one) for one in zip(z_2BK, y_2B, strict=True)])
    except LossError:
        raise
    except Exception as problem:  # whatever the user's function raises
        raise LossError(
            f"loss {loss.name} failed: {_why(problem)}; it gets outputs (B, K) and targets, and is made of torch's "
            "operations alone"
        ) from problem
    try:
        together = vmap(grad(loss.value))(z_2BK, y_2B)
        loss.value(z_2BK, y_2B)
    except Exception as problem:
        raise LossError(
            f"loss {loss.name} cannot be computed for many peers at once (torch.func.vmap): {_why(problem)}; write it "
            "in torch's operations alone, without .item(), random numbers, or branches on values (torch.where)"
        ) from problem
    if torch.isnan(alone).all():
        raise LossError(f"loss {loss.name} has the gradient NaN for every output that it was tried with, from -1 to 1")
    if not torch.allclose(together, alone, rtol=1e-4, atol=1e-6, equal_nan=True):
        raise LossError(f"loss {loss.name} mixes the examples of different peers; reduce over the last two dimensions")


def _why(problem: Exception) -> str:
    return f"{type(problem).__name__}: {str(problem).strip().splitlines()[0] if str(problem).strip() else 'no reason'}"
