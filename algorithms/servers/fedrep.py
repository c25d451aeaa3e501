"""FedRep: FedPer, but the head is trained first, on the base as received, and then the base under that head.

Source: Collins, Hassani, Mokhtari, Shakkottai, Exploiting Shared Representations for Personalized Federated Learning,
2021, Algorithm 1. The paper takes one base step a round and counts clients alike; here the base takes the rest of the
round's steps, and the mean is weighted by n_k as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.draws import branch
from fedpeer.algorithms.local_training import fresh_steps
from fedpeer.algorithms.servers.fedper import FedPer
from fedpeer.algorithms.steppers import Stepper


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedPer with the head trained first, and then the base under it.

    Head and base each take at least one step; if the round has a single batch, both take their step on it.

    Args:
        head: as in FedPer.
        head_share: share of the round's steps that train the head, in (0, 1); default 0.5.
    """

    _: KW_ONLY
    head_share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.head_share < 1:
            raise AlgorithmError(f"head_share = {self.head_share:g}: write a number above 0 and below 1")

    @cached_property
    def _steppers(self) -> tuple[Stepper, Stepper]:
        """The stepper of the head, and that of the base."""
        return self.context.training_only(self.context.head_D(self.head)), self.context.training_only(self.base_D)

    def learn(self, start_n: Tensor, batches: Batches, keys: Sequence[int]) -> Tensor:
        last = batches.steps - 1
        steps = max(1, min(round(self.head_share * batches.steps), last))
        head, base = self._steppers
        with_head_n = fresh_steps(head, start_n, batches.taking(range(steps)), keys)
        rest = batches.taking(range(min(steps, last), batches.steps))
        return fresh_steps(base, with_head_n, rest, [branch(key, 1) for key in keys])
