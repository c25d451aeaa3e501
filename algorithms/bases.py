"""A network as a base under a linear head: the features of examples, and steps of the base alone.

If a head is trained differently from the rest (by another rule, as a distribution), the rest needs two things: the
features before the head, and local steps along a gradient given there. There are two ways with the same results: closed
gradients for stacks of linear layers under SGD, and autograd for any module with any optimizer. Clients are trained one
after the other, since data sets of different sizes, on which their heads train, cannot be batched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from fedpeer.algorithms import linear_stack
from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.channels_last import copied
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.draws import guarded
from fedpeer.algorithms.loop import AT_ONCE
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.slicing.flat import FlatLayout

#: (features (b, F), classes (b,)) -> (b, F): the gradient of a batch's mean loss at its features.
Slopes: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Base(Protocol):
    """A network without its head, as a function of the whole network's parameters x_n (n,)."""

    def features(self, x_n: Tensor, inputs: Tensor) -> Tensor:
        """Return the features (M, features) of inputs (M, *F), in evaluation mode."""
        ...

    def train(self, x_n: Tensor, batches: Batches, slopes: Slopes, key: int) -> Tensor:
        """Return the parameters (n,) after a step of a fresh optimizer on each batch; those of the head are unchanged.

        Args:
            slopes: gradient of a batch's mean loss at its features.
            key: the stream of randomness, for dropout.
        """
        ...


@dataclass(frozen=True)
class StackBase:
    """Closed gradients of the layers before the head, under SGD with momentum; see `linear_stack`."""

    layers: tuple[linear_stack.Layer, ...]
    lr: float
    momentum: float

    @torch.no_grad()
    def features(self, x_n: Tensor, inputs: Tensor) -> Tensor:
        return linear_stack.forward(self.layers, x_n, inputs.flatten(1))

    @torch.no_grad()
    def train(self, x_n: Tensor, batches: Batches, slopes: Slopes, key: int) -> Tensor:
        x_n, velocity_n = x_n.clone(), torch.zeros_like(x_n)
        for step in range(batches.steps):
            seen = linear_stack.activations(self.layers, x_n, batches.inputs(step).flatten(1))
            slope = slopes(seen[-1], batches.targets(step))
            linear_stack.add_gradient_(self.layers, x_n, seen, slope, velocity_n.mul_(self.momentum))
            x_n.add_(velocity_n, alpha=-self.lr)
        return x_n


@dataclass(frozen=True)
class ModuleBase:
    """Any module, by autograd and torch's own optimizer.

    head   name of the module's last layer, which is linear
    """

    module: nn.Module
    layout: FlatLayout
    optimizer: OptimizerChoice
    head: str

    @torch.no_grad()
    def features(self, x_n: Tensor, inputs: Tensor) -> Tensor:
        module = self._bound(x_n).eval()
        pieces = [inputs[first : first + AT_ONCE] for first in range(0, len(inputs), AT_ONCE)]
        return torch.cat([self._before_head(module, piece) for piece in pieces])

    def train(self, x_n: Tensor, batches: Batches, slopes: Slopes, key: int) -> Tensor:
        x_n = x_n.clone()
        module = self._bound(x_n).train()
        module.get_submodule(self.head).requires_grad_(False)
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        optimizer = self.optimizer.build(trained)
        with guarded(key):
            for step in range(batches.steps):
                optimizer.zero_grad()
                z_bF = self._before_head(module, batches.inputs(step))
                torch.autograd.backward(z_bF, slopes(z_bF.detach(), batches.targets(step)))
                optimizer.step()
        return x_n

    def _bound(self, x_n: Tensor) -> nn.Module:
        """Return a copy of the module whose tensors are views of x_n, so that a step writes straight into it."""
        module, views = copied(self.module), self.layout.unflatten(x_n)
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if name in views:
                tensor.data = views[name]
        return module

    def _before_head(self, module: nn.Module, inputs: Tensor) -> Tensor:
        """Return the input of the head, (b, F).

        Raises:
            AlgorithmError: the head's output is not the network's output, or its input is not one row for each example.
        """
        met: list[tuple[Tensor, Tensor]] = []
        head = module.get_submodule(self.head)
        hook = head.register_forward_hook(lambda _, given, answer: met.append((given[0], answer)))
        try:
            answer = module(inputs)
        finally:
            hook.remove()
        if len(met) != 1 or met[0][1] is not answer or met[0][0].dim() != 2:
            raise AlgorithmError(
                f'head: "{self.head}" is not the last step of the network for each example; name the linear layer '
                "whose outputs are the network's"
            )
        return met[0][0]


def head_span(context: TrainingContext, head: str) -> slice:
    """Return the place of a linear layer in x_n: its weights (C, F) row by row, then its C biases.

    Raises:
        AlgorithmError: there is no such module, it is not a linear layer with its own weights and biases, or nothing
            would be left as base.
    """
    places_D = context.head_D((head,))
    module = context.module.get_submodule(head)
    if not (isinstance(module, nn.Linear) and len(places_D) == module.out_features * (module.in_features + 1)):
        raise AlgorithmError(
            f'head: "{head}" is not a linear layer with weights and biases of its own; name one, or change the network'
        )
    return slice(int(places_D[0]), int(places_D[-1]) + 1)


def base_of(context: TrainingContext, head: str) -> Base:
    """Return the fastest exact base of this network under the head of this name.

    Raises:
        AlgorithmError: the name is not that of a possible head; see `head_span`.
    """
    span, layers, optimizer = head_span(context, head), linear_stack.recognise(context.module), context.optimizer
    if layers and layers[-1].weight == span.start and optimizer.momentum is not None:
        return StackBase(layers[:-1], optimizer.lr, optimizer.momentum)
    return ModuleBase(context.module, context.layout, optimizer, head)
