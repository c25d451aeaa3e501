"""Correction that an algorithm adds to the gradient of every local step, in a form that all steppers apply.

The local rules of FedProx, SCAFFOLD, Ditto and pFedMe all step along `gradient + pull * x + shift`, with a `shift` that
is constant during a round. So one affine form serves them all, as plain tensors that can be cut by peer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Correction:
    """gradient + pull * x + shift_n, for parameters x of the shape of shift_n, (n,) or (B, n).

    Places of buffers are ignored, since buffers are not stepped.
    """

    shift_n: Tensor
    pull: float = 0.0

    @staticmethod
    def towards(anchor_n: Tensor, strength: float) -> Correction:
        """Return the gradient of the proximal term (strength / 2) * ||x - anchor||^2."""
        return Correction(-strength * anchor_n, strength)

    def at(self, x_n: Tensor) -> Tensor:
        """Return the vector that is added to the gradient at x_n."""
        return torch.add(self.shift_n, x_n, alpha=self.pull)

    def peer(self, number: int) -> Correction:
        """Return the correction of one peer of the block."""
        return replace(self, shift_n=self.shift_n[number])

    def block(self) -> Correction:
        """Return the correction of one peer as a block of one."""
        return replace(self, shift_n=self.shift_n[None])
