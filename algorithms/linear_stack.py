"""Stacks of linear layers under SGD, trained without autograd: exact, in a third of the time.

The backward pass is written out. Each gradient goes straight into its weights, or into the velocities if there is
momentum, so that no gradient is ever stored. The same function trains one peer `(n,)` and a block `(B, n)` of peers of
equal shape as one batched program.

Source: Rumelhart, Hinton, Williams 1986 (back-propagation).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.losses import Loss

_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.ReLU: "relu",
    nn.Identity: "identity",
}
#: Activations, in place: z -> a.
FORWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": Tensor.sigmoid_,
    "tanh": Tensor.tanh_,
    "relu": Tensor.relu_,
    "identity": lambda z: z,
}
#: (gradient at the activation's result, that result `a`) -> gradient at the activation's input.
BACKWARD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sigmoid": torch.ops.aten.sigmoid_backward,
    "tanh": torch.ops.aten.tanh_backward,
    "relu": lambda gradient, a: torch.ops.aten.threshold_backward(gradient, a, 0),
    "identity": lambda gradient, a: gradient,
}


@dataclass(frozen=True)
class Layer:
    """One linear layer and the activation after it.

    fan_in       number of inputs
    fan_out      number of outputs
    weight       first place of its weight (fan_out, fan_in) in x_n
    bias         first place of its bias in x_n; None: no bias
    activation   "identity", "sigmoid", "tanh" or "relu"
    frozen       whether steps do not change it; default False
    """

    fan_in: int
    fan_out: int
    weight: int
    bias: int | None
    activation: str
    frozen: bool = False

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.fan_out * (self.fan_in + (self.bias is not None))

    def weights(self, x_n: Tensor) -> Tensor:
        """Return the weight as a view of x_n (..., n), (..., fan_out, fan_in)."""
        piece = x_n[..., self.weight : self.weight + self.fan_out * self.fan_in]
        return piece.view(*x_n.shape[:-1], self.fan_out, self.fan_in)

    def biases(self, x_n: Tensor) -> Tensor | None:
        """Return the bias as a view of x_n (..., n), (..., 1, fan_out)."""
        if self.bias is None:
            return None
        return x_n[..., self.bias : self.bias + self.fan_out].unsqueeze(-2)


def recognise(module: nn.Module) -> tuple[Layer, ...] | None:
    """Return the layers if the module is a sequence of (flatten,) linear, activation, ..., linear; else None."""
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        return None
    if not all(p.requires_grad and p.dtype == torch.float32 for p in module.parameters()) or _hooked(module):
        return None
    layers: list[Layer] = []
    offset = 0
    for place, child in enumerate(module):
        if type(child) is nn.Linear:
            if layers and layers[-1].fan_out != child.in_features:
                return None
            inside = child.out_features * child.in_features
            bias = None if child.bias is None else offset + inside
            layers.append(Layer(child.in_features, child.out_features, offset, bias, "identity"))
            offset += inside + (0 if bias is None else child.out_features)
        elif type(child) in _ACTIVATIONS and layers and layers[-1].activation == "identity":
            layers[-1] = replace(layers[-1], activation=_ACTIVATIONS[type(child)])
        elif not (type(child) is nn.Flatten and place == 0 and (child.start_dim, child.end_dim) == (1, -1)):
            return None
    if not layers or layers[-1].activation != "identity" or offset != sum(p.numel() for p in module.parameters()):
        return None
    return tuple(layers)


def _hooked(module: nn.Module) -> bool:
    """Return whether a hook (spectral normalisation's, a user's) changes the result of a forward pass."""
    return any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())


def _affine(a: Tensor, transposed: Tensor, bias: Tensor | None) -> Tensor:
    """Return a (..., b, in) times the transposed weight (..., in, out) plus bias (..., 1, out).

    There is at most one leading dimension.
    """
    if bias is None:
        return a @ transposed
    return (torch.addmm if a.dim() == 2 else torch.baddbmm)(bias, a, transposed)


def forward(layers: tuple[Layer, ...], x_n: Tensor, inputs: Tensor) -> Tensor:
    """Return the logits (..., b, outputs) of inputs (..., b, features), for parameters x_n (..., n)."""
    a = inputs
    for layer in layers:
        a = FORWARD[layer.activation](_affine(a, layer.weights(x_n).mT, layer.biases(x_n)))
    return a


def activations(layers: tuple[Layer, ...], x_n: Tensor, inputs: Tensor) -> list[Tensor]:
    """Return inputs (..., b, features), followed by the result of each layer."""
    seen = [inputs]
    for layer in layers:
        seen.append(FORWARD[layer.activation](_affine(seen[-1], layer.weights(x_n).mT, layer.biases(x_n))))
    return seen


def add_gradient_(layers: tuple[Layer, ...], x_n: Tensor, seen: list[Tensor], slope: Tensor, total_n: Tensor) -> None:
    """Add a gradient at x_n to total_n, in place: that of a function whose gradient at the last result is `slope`.

    Args:
        x_n: (n,) or (B, n), like total_n.
        seen: the results of `activations`.
    """
    for depth in reversed(range(len(layers))):
        layer = layers[depth]
        delta = BACKWARD[layer.activation](slope, seen[depth + 1])
        descend(layer.weights(total_n), layer.biases(total_n), delta, seen[depth], 1.0)
        slope = delta @ layer.weights(x_n) if depth else delta


@torch.no_grad()
def train_stack(
    layers: tuple[Layer, ...],
    loss: Loss,
    x_n: Tensor,
    batches: Batches,
    lr: float,
    correction: Correction | None = None,
    velocity_n: Tensor | None = None,
    momentum: float = 0.0,
) -> None:
    """Take all steps of SGD on the mean loss of each batch, in place on x_n, (n,) or (B, n).

    Args:
        correction: of the shape of x_n, added to each gradient.
        velocity_n: of the shape of x_n, changed too; a step is then v <- momentum * v + gradient, x <- x - lr * v, and
            without it x <- x - lr * gradient.
    """
    assert loss.delta is not None, f"{loss.name} has no closed gradient"
    weights = [layer.weights(x_n) for layer in layers]
    applied = [
        (FORWARD[layer.activation], weight.mT, layer.biases(x_n)) for layer, weight in zip(layers, weights, strict=True)
    ]
    moved_n, keep, rate = (x_n, 1.0, -lr) if velocity_n is None else (velocity_n, momentum, 1.0)
    into = [None if layer.frozen else (layer.weights(moved_n), layer.biases(moved_n)) for layer in layers]
    lowest = next(depth for depth, layer in enumerate(layers) if not layer.frozen)
    for step in range(batches.steps):
        added_n = None if correction is None else _thawed_(layers, correction.at(x_n))
        a = batches.inputs(step).flatten(x_n.dim())
        seen = [a]
        for activation, transposed, bias in applied:
            a = activation(_affine(a, transposed, bias))
            seen.append(a)
        delta = loss.slope(a, batches.targets(step), batches.weights(step))
        for depth in range(len(layers) - 1, lowest - 1, -1):
            # The gradient for the layer below needs this weight as it was in the forward pass.
            below = delta
            if depth > lowest:
                below = BACKWARD[layers[depth - 1].activation](delta @ weights[depth], seen[depth])
            place = into[depth]
            if place is not None:
                descend(*place, delta, seen[depth], rate / batches.size, keep)
            delta = below
        if added_n is not None:
            moved_n.add_(added_n, alpha=rate)
        if velocity_n is not None:
            x_n.add_(velocity_n, alpha=-lr)


def _thawed_(layers: tuple[Layer, ...], added_n: Tensor) -> Tensor:
    """Return the vector added to gradients, with zeros for layers that are not trained."""
    for layer in layers:
        if layer.frozen:
            for piece in (layer.weights(added_n), layer.biases(added_n)):
                if piece is not None:
                    piece.zero_()
    return added_n


def descend(weight: Tensor, bias: Tensor | None, delta: Tensor, a: Tensor, rate: float, keep: float = 1.0) -> None:
    """Scale a layer's parameters by `keep` and add rate * its gradient, in place.

    Args:
        delta: the gradient at the layer's output.
        a: the layer's input.
    """
    (weight.addmm_ if weight.dim() == 2 else weight.baddbmm_)(delta.mT, a, beta=keep, alpha=rate)
    if bias is not None:
        if keep != 1.0:
            bias.mul_(keep)
        bias.add_(delta.sum(-2, keepdim=True), alpha=rate)
