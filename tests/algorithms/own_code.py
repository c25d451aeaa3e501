"""Losses and optimizers as a user writes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def cross_entropies(outputs: Tensor, targets: Tensor, *, factor: float = 1.0) -> Tensor:
    """Return the loss of each example."""
    return factor * functional.cross_entropy(outputs, targets, reduction="none")


def mean_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a wrong number if targets (B,) met outputs (B, 1)."""
    return (outputs - targets).square().mean(-1)


def branching(outputs: Tensor, targets: Tensor) -> Tensor:
    found = functional.cross_entropy(outputs, targets)
    return found if found.item() > 0 else 2 * found


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a momentum (Chen et al. 2023, Algorithm 2); only the test reads `count`."""

    def __init__(self, parameters: Any, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.99) -> None:
        super().__init__(parameters, {"lr": lr, "beta1": beta1, "beta2": beta2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for x in group["params"]:
                state = self.state[x]
                m = state.setdefault("momentum", torch.zeros_like(x))
                state["count"] = state.get("count", 0) + 1
                x.sub_(group["lr"] * torch.sign(torch.lerp(x.grad, m, group["beta1"])))
                m.lerp_(x.grad, 1 - group["beta2"])


class Normed(torch.optim.Optimizer):
    """Steps of a given length for each tensor, so that tensors of two peers must not be stacked into one."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for x in group["params"]:
                x.sub_(group["lr"] * x.grad / (x.grad.norm() + 1e-6))


def plain(parameters: Any, *, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr)


def sparing_biases(parameters: list[nn.Parameter], *, lr: float = 0.01) -> torch.optim.Optimizer:
    """Let weights decay, and not biases: two groups of parameters, in another order than the network's."""
    weights, biases = ([each for each in parameters if (each.dim() > 1) is many] for many in (True, False))
    return torch.optim.AdamW([{"params": biases, "weight_decay": 0.0}, {"params": weights, "weight_decay": 0.1}], lr=lr)
