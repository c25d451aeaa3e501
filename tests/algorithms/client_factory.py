"""Helpers for the tests of local training: modules, batches, and plain loops over torch's own optimizers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches, Examples
from fedpeer.algorithms.losses import LOSSES, Loss
from fedpeer.slicing.flat import FlatLayout

#: Largest allowed relative distance between two ways to compute the same parameters in float32; 3e-7 was measured.
CLOSE = 2e-6


def mlp(
    sizes: tuple[int, ...] = (5, 7, 4, 3), activation: type[nn.Module] = nn.Sigmoid, bias: bool = True
) -> nn.Sequential:
    """Return a network of linear layers with an activation between every two of them."""
    children: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        children += [nn.Linear(fan_in, fan_out, bias=bias), activation()]
    return nn.Sequential(*children[:-1])


def starts(module: nn.Module, peers: int, seed: int = 1, scale: float = 0.3) -> Tensor:
    """Return parameters (peers, n) that differ from peer to peer; buffers keep the module's values."""
    layout = FlatLayout.of(module)
    x_Bn = layout.flatten(module).repeat(peers, 1)
    shape = (peers, layout.n_parameters)
    x_Bn[:, : layout.n_parameters] = scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x_Bn


def targets(loss: Loss, shape: tuple[int, ...], outputs: int, generator: torch.Generator) -> Tensor:
    """Return classes, or numbers (shape, outputs); for labels and completion the numbers are 0 and 1."""
    if loss.classifies:
        return torch.randint(0, max(outputs, 2), shape, generator=generator)
    numbers = torch.randn((*shape, outputs), generator=generator)
    return (numbers > 0).to(numbers.dtype) if loss.marks or loss.task == "completion" else numbers


def batches(
    loss: str = "cross-entropy",
    *,
    peers: int = 3,
    steps: int = 4,
    size: int = 6,
    features: tuple[int, ...] = (5,),
    outputs: int = 3,
    seed: int = 2,
) -> Batches:
    """Return batches of a block of peers, each with its own rows and targets; the round takes each example once."""
    generator = torch.Generator().manual_seed(seed)
    x_NF = torch.randn((40, *features), generator=generator)
    index = torch.randint(0, len(x_NF), (peers, steps, size), generator=generator)
    y = targets(LOSSES[loss], (peers, steps, size), outputs, generator)
    whole = tuple(Examples(x_NF, index[p].flatten(), y[p].flatten(0, 1)) for p in range(peers))
    return Batches(x_NF, index, y, whole=whole)


def in_torch(
    module: nn.Module,
    x_n: Tensor,
    rounds: list[Batches],
    loss: Loss,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    layout: FlatLayout | None = None,
) -> Tensor:
    """Return one peer's parameters after these rounds of batches, trained by one uninterrupted torch optimizer.

    `layout`: that of the module before some of its parameters were frozen.
    """
    layout = layout or FlatLayout.of(module)
    module.load_state_dict({**module.state_dict(), **{name: t.clone() for name, t in layout.unflatten(x_n).items()}})
    module.train()
    stepping = optimizer([p for p in module.parameters() if p.requires_grad])
    for one in rounds:
        for step in range(one.steps):
            stepping.zero_grad()
            torch.autograd.backward(loss.value(module(one.inputs(step)), one.targets(step)))
            stepping.step()
    return layout.flatten(module)


def distance(a: Tensor, b: Tensor) -> float:
    """Return ||a - b|| / ||b||."""
    return float((a - b).norm() / b.norm())
