"""Outer steps by torch's own SGD: its gradient is the model of the last step less the average."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpeer.algorithms.outer_optimizers import OuterOptimizer


class OuterByTorch:
    """The outer steps of one peer's part of one group, (D,)."""

    def __init__(self, outer: OuterOptimizer, start_D: Tensor) -> None:
        self._anchor = torch.nn.Parameter(start_D.clone())
        self._optimizer = torch.optim.SGD([self._anchor], lr=outer.lr, momentum=outer.momentum, nesterov=outer.nesterov)

    def step(self, average_D: Tensor) -> Tensor:
        """Return the model after the step that follows this average."""
        self._anchor.grad = (self._anchor - average_D).detach()
        self._optimizer.step()
        return self._anchor.detach().clone()
