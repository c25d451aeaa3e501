"""The gradient of a batch's loss in a flat vector, for algorithms whose steps are not an optimiser's.

One peer after the other, with autograd. Local steps along the gradient itself are the steppers', which are quicker.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpeer.algorithms.draws import guarded
from fedpeer.algorithms.losses import Loss
from fedpeer.slicing.flat import FlatLayout

#: (x_Bn, inputs (B, b, *F), targets (B, b, ...), a key a peer for dropout) -> (B, n)
Gradient: TypeAlias = Callable[[Tensor, Tensor, Tensor, Sequence[int]], Tensor]


def gradient_of(module: nn.Module, layout: FlatLayout, loss: Loss) -> Gradient:
    """The gradient in training mode, for a module whose flat vector holds parameters alone."""
    assert layout.n == layout.n_parameters, "running statistics have no gradient, and would never be learnt"
    module = copy.deepcopy(module).train()

    def one(x_n: Tensor, inputs: Tensor, targets: Tensor, key: int) -> Tensor:
        x_n = x_n.detach().requires_grad_()
        with guarded(key):
            answers = functional_call(module, layout.unflatten(x_n), (inputs,))
        return torch.autograd.grad(loss.value(answers, targets), x_n)[0]

    def block(x_Bn: Tensor, inputs: Tensor, targets: Tensor, keys: Sequence[int]) -> Tensor:
        return torch.stack([one(*each) for each in zip(x_Bn, inputs, targets, keys, strict=True)])

    return block
