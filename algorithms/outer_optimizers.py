"""Settings of outer steps (`outer_steps.py`), without torch, which checking a file does not need."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass


class OuterOptimizerError(ValueError):
    """The user's outer optimizer is invalid; the message names the setting and what to write instead."""


@dataclass(frozen=True, slots=True)
class OuterOptimizer:
    """An optimizer whose gradient is the change of a model from one averaging to the next, with its sign turned.

    lr         outer learning rate > 0; 1 without momentum takes the average itself
    momentum   0 to below 1
    nesterov   whether the step looks ahead along the momentum
    """

    lr: float
    momentum: float
    nesterov: bool

    def __post_init__(self) -> None:
        kind = "nesterov" if self.nesterov else "sgd"
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise OuterOptimizerError(f"{kind}: lr = {self.lr:g}: write a number above 0, such as 0.7")
        if not 0 <= self.momentum < 1:
            raise OuterOptimizerError(f"{kind}: momentum = {self.momentum:g}: write 0 up to less than 1, such as 0.9")


def no_outer_optimizer() -> None:
    """No outer steps: each peer goes on from the average."""


def outer_sgd(*, lr: float = 1.0, momentum: float = 0.5) -> OuterOptimizer:
    """Take the change between two averagings as a step of SGD with momentum.

    Source: Wang, Tantia, Ballas, Rabbat, SlowMo, ICLR 2020, Algorithm 1: lr is its alpha, momentum its beta.
    """
    return OuterOptimizer(lr, momentum, False)


def outer_nesterov(*, lr: float = 0.7, momentum: float = 0.9) -> OuterOptimizer:
    """Take the change between two averagings as a step of SGD with Nesterov momentum.

    Source: Douillard et al., DiLoCo, 2023, Algorithm 1 and section 3.
    """
    return OuterOptimizer(lr, momentum, True)


OUTER_OPTIMIZERS: Mapping[str, Callable[..., OuterOptimizer | None]] = {
    "none": no_outer_optimizer,
    "sgd": outer_sgd,
    "nesterov": outer_nesterov,
}
