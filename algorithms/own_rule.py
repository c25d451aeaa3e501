"""Local steps of a network with its own learning rule, which is not gradient descent.

A `Stepper` (see `steppers.py`). Such a module has `learn_`, which presents patterns one after the other; the optimizer
only gives the rate. A round is computed in the device's widest type and rounded at its end, since the order of
additions, in a batch of peers or for one peer, must not decide whether a sum reaches a threshold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.optimizers import OptimizerChoice, OptimizerError
from fedpeer.algorithms.precision import widest
from fedpeer.slicing.flat import FlatLayout


class LearningModule(Protocol):
    """A network with its own learning rule."""

    def learn_(self, tensors: Mapping[str, Tensor], patterns: Tensor, rate: float) -> None:
        """Change the parameters in place by patterns (..., M, *F), one after the other.

        Args:
            tensors: its parameters by name, each (..., *shape).
            patterns: (..., M, *F).
            rate: learning rate, 0 to 2.
        """
        ...


def learns(module: object) -> TypeGuard[LearningModule]:
    """Return whether the module has its own learning rule."""
    return callable(getattr(module, "learn_", None))


def check_gradients(module: nn.Module) -> None:
    """Check that the module is trained by gradients.

    Raises:
        AlgorithmError: it has its own learning rule instead.
    """
    if learns(module):
        raise AlgorithmError(
            f"this algorithm needs gradients, but {type(module).__name__} has its own learning rule; take local, "
            "partial-averaging, full-averaging, fedavg, fedper or ifca, or another network"
        )


def rate_of(optimizer: OptimizerChoice) -> float:
    """Return the rate of a rule that moves a weight by half the rate times the distance to its target.

    Raises:
        OptimizerError: the optimizer has more than a rate, or the rate would move weights beyond their bounds.
    """
    if not optimizer.plain_sgd:
        raise OptimizerError(
            f'optimizer "{optimizer.kind}": this network has its own learning rule, which takes a rate and nothing '
            "else; write sgd,lr=..."
        )
    if optimizer.lr > 2:
        raise OptimizerError(f"lr = {optimizer.lr:g}: above 2 weights would leave [-1, 1]; write 0 to 2")
    return optimizer.lr


@dataclass(frozen=True)
class OwnRule:
    """The module's own rule, applied to a block of peers at once."""

    module: nn.Module
    layout: FlatLayout
    rate: float
    state_size: int = 0

    def train(
        self,
        x_Bn: Tensor,
        s_Bk: Tensor,
        fresh: bool,
        batches: Batches,
        keys: Sequence[int],
        correction: Correction | None = None,
    ) -> None:
        if correction is not None:
            check_gradients(self.module)
        assert learns(self.module), "`steppers.choose` chose this way"
        wide_Bn = x_Bn.to(widest(x_Bn.device))
        tensors = self.layout.unflatten(wide_Bn)
        for step in range(batches.steps):
            self.module.learn_(tensors, batches.inputs(step).to(wide_Bn.dtype), self.rate)
        x_Bn.copy_(wide_Bn)

    @torch.no_grad()
    def logits(self, x_Bn: Tensor, inputs: Tensor) -> Tensor:
        wide_Bn = x_Bn.to(widest(x_Bn.device))
        answers: list[Tensor] = [
            functional_call(self.module, self.layout.unflatten(x_n), (each.to(x_n.dtype),))
            for x_n, each in zip(wide_Bn, inputs, strict=True)
        ]
        return torch.stack(answers).to(x_Bn.dtype)
