"""FedRep: as FedPer, but the head is trained first, on the base as it came, and then the base under that head.

Source: Collins, Hassani, Mokhtari, Shakkottai, Exploiting Shared Representations for Personalized Federated Learning,
2021, Algorithm 1. The paper takes one base step a round and counts clients alike; here the base takes the rest of the
round's steps, and the mean is weighted by n_k as FedAvg's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.draws import branch
from fedpeer.algorithms.local_training import fresh_steps
from fedpeer.algorithms.servers.fedper import FedPer
from fedpeer.algorithms.steppers import Stepper


@dataclass(frozen=True)
class FedRep(FedPer):
    """`stepper` is built with the head's parameters frozen, `head` with all others frozen.

    head_steps: how many of a round's first steps are the head's.
    """

    head: Stepper
    head_steps: int

    def learn(self, start_n: Tensor, batches: Batches, keys: Sequence[int]) -> Tensor:
        assert 0 < self.head_steps < batches.steps, "head and base need a step each"
        first, rest = range(self.head_steps), range(self.head_steps, batches.steps)
        with_head_n = fresh_steps(self.head, start_n, batches.taking(first), keys)
        return fresh_steps(self.stepper, with_head_n, batches.taking(rest), [branch(key, 1) for key in keys])
