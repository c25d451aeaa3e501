"""The gradient of a batch's loss as a flat vector, for algorithms whose steps are not an optimizer's.

Stacks of linear layers have a closed form; all other networks use autograd, one peer after the other. Local steps along
the gradient itself are in `steppers.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpeer.algorithms import linear_stack
from fedpeer.algorithms.channels_last import copied
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.draws import guarded
from fedpeer.algorithms.losses import Loss
from fedpeer.algorithms.own_rule import check_gradients
from fedpeer.algorithms.running_statistics import refused_statistics
from fedpeer.slicing.flat import FlatLayout


class Gradient(Protocol):
    """The gradient of a batch's mean loss at parameters, of one peer or a block."""

    def __call__(
        self, x_n: Tensor, inputs: Tensor, targets: Tensor, keys: Sequence[int], weights: Tensor | None = None, /
    ) -> Tensor:
        """Return the gradient, (..., n).

        Args:
            x_n: (..., n) parameters.
            inputs: (..., b, *F).
            targets: (..., b, ...).
            keys: one for each peer, for dropout.
            weights: (..., b) weights of the examples; None: all equal.
        """
        ...


def gradient_of(module: nn.Module, layout: FlatLayout, loss: Loss) -> Gradient:
    """Return the gradient in training mode.

    Raises:
        AlgorithmError: the module has its own learning rule, or running statistics.
    """
    check_gradients(module)
    if layout.n != layout.n_parameters:  # running statistics would never be learned
        raise AlgorithmError(refused_statistics(layout, "have no gradient"))
    layers = linear_stack.recognise(module)
    if layers and loss.delta is not None:
        return _one_or_many(_closed(layers, loss))
    module = copied(module).train()

    def one(x_n: Tensor, inputs: Tensor, targets: Tensor, key: int, weights: Tensor | None) -> Tensor:
        x_n = x_n.detach().requires_grad_()
        with guarded(key):
            answers = functional_call(module, layout.unflatten(x_n), (inputs,))
        return torch.autograd.grad(loss.mean(answers, targets, weights), x_n)[0]

    def block(
        x_Bn: Tensor, inputs: Tensor, targets: Tensor, keys: Sequence[int], weights: Tensor | None = None
    ) -> Tensor:
        of_peers: list[Tensor | None] = [None] * len(x_Bn) if weights is None else [*weights]
        return torch.stack([one(*each) for each in zip(x_Bn, inputs, targets, keys, of_peers, strict=True)])

    return _one_or_many(block)


def _one_or_many(block: Gradient) -> Gradient:
    """Return a gradient for one peer or a block, from one that takes a block only."""

    def gradient(
        x_n: Tensor, inputs: Tensor, targets: Tensor, keys: Sequence[int], weights: Tensor | None = None
    ) -> Tensor:
        if x_n.dim() == 1:
            return block(x_n[None], inputs[None], targets[None], keys, None if weights is None else weights[None])[0]
        return block(x_n, inputs, targets, keys, weights)

    return gradient


def _closed(layers: tuple[linear_stack.Layer, ...], loss: Loss) -> Gradient:
    def one(x_n: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        seen, total_n = linear_stack.activations(layers, x_n, inputs), torch.zeros_like(x_n)
        slope = loss.slope(seen[-1], targets, weights) / inputs.shape[-2]
        linear_stack.add_gradient_(layers, x_n, seen, slope, total_n)
        return total_n

    @torch.no_grad()
    def block(
        x_Bn: Tensor, inputs: Tensor, targets: Tensor, keys: Sequence[int], weights: Tensor | None = None
    ) -> Tensor:
        if len(x_Bn) == 1:  # matrix products of one client are faster without the leading dimension
            of_one = None if weights is None else weights[0]
            return one(x_Bn[0], inputs[0].flatten(1), targets[0], of_one)[None]
        return one(x_Bn, inputs.flatten(2), targets, weights)

    return block
