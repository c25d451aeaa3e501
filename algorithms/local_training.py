"""Local training: what every peer does between two averagings, whatever is averaged.

Local only, partial averaging (Bouchra Pilet, Frey, Taiani 2021, Algorithms 1 and 2, the line `N.TRAIN(D)`) and full
averaging are this same algorithm under three plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.contract import Change, GossipAlgorithm
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.steppers import Stepper
from fedpeer.slicing.plan import Plan


@dataclass(frozen=True)
class TrainingState:
    """What peers keep between rounds and never send: the optimiser's state (..., k); `fresh` while there is none."""

    optimizer_k: Tensor
    fresh: bool = True


@dataclass(frozen=True)
class LocalTraining(GossipAlgorithm[TrainingState]):
    """Local steps by one of the `steppers`."""

    stepper: Stepper
    optimizer_state: Literal["keep", "reset"] = "keep"

    def start(self, plan: Plan, values_n: Tensor) -> TrainingState:
        return TrainingState(values_n.new_zeros(*values_n.shape[:-1], self.stepper.state_size))

    def train(
        self, state: TrainingState, estimate_n: Tensor, batches: Batches, keys: Sequence[int]
    ) -> tuple[TrainingState, Change]:
        """One round; nothing that was passed in is changed."""
        fresh = state.fresh or self.optimizer_state == "reset"
        trained_n, optimizer_k = _steps(self.stepper, estimate_n, state.optimizer_k, fresh, batches, keys)
        return replace(state, optimizer_k=optimizer_k, fresh=False), Change(trained_n)


def fresh_steps(
    stepper: Stepper, start_n: Tensor, batches: Batches, keys: Sequence[int], correction: Correction | None = None
) -> Tensor:
    """(..., n) after a round's steps from start_n (..., n), by an optimiser that begins anew and is forgotten.

    So do the clients of a server: what they remembered would belong to a model that they no longer hold.
    `correction` (..., n) is added to the gradient of every step.
    """
    optimizer_k = start_n.new_zeros(*start_n.shape[:-1], stepper.state_size)
    return _steps(stepper, start_n, optimizer_k, True, batches, keys, correction)[0]


def _steps(
    stepper: Stepper,
    start_n: Tensor,
    optimizer_k: Tensor,
    fresh: bool,
    batches: Batches,
    keys: Sequence[int],
    correction: Correction | None = None,
) -> tuple[Tensor, Tensor]:
    """Parameters and optimiser state after the steps, in tensors of their own; one peer is a block of one."""
    trained_n, optimizer_k = start_n.clone(), optimizer_k.clone()
    if start_n.dim() == 1:
        correction = correction and correction.block()
        stepper.train(trained_n[None], optimizer_k[None], fresh, batches.block(), keys, correction)
    else:
        stepper.train(trained_n, optimizer_k, fresh, batches, keys, correction)
    return trained_n, optimizer_k
