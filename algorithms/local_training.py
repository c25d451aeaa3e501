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
from fedpeer.algorithms.contract import Change
from fedpeer.algorithms.steppers import Stepper
from fedpeer.slicing.plan import Plan


@dataclass(frozen=True)
class TrainingState:
    """What peers keep between rounds and never send: the optimiser's state (..., k); `fresh` while there is none."""

    optimizer_k: Tensor
    fresh: bool = True


@dataclass(frozen=True)
class LocalTraining:
    """Local steps by one of the `steppers`; a `GossipAlgorithm[TrainingState]`."""

    stepper: Stepper
    optimizer_state: Literal["keep", "reset"] = "keep"

    def start(self, plan: Plan, values_n: Tensor) -> TrainingState:
        return TrainingState(values_n.new_zeros(*values_n.shape[:-1], self.stepper.state_size))

    def train(
        self, state: TrainingState, estimate_n: Tensor, batches: Batches, keys: Sequence[int]
    ) -> tuple[TrainingState, Change]:
        """One round; nothing that was passed in is changed."""
        trained_n, optimizer_k = estimate_n.clone(), state.optimizer_k.clone()
        single = trained_n.dim() == 1
        self.stepper.train(
            trained_n.unsqueeze(0) if single else trained_n,
            optimizer_k.unsqueeze(0) if single else optimizer_k,
            state.fresh or self.optimizer_state == "reset",
            batches.block() if single else batches,
            keys,
        )
        return replace(state, optimizer_k=optimizer_k, fresh=False), Change(trained_n)
