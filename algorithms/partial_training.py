"""Rounds that train the head of a network first, and then the base under it, by the context's optimizer.

FedRep trains like this with a server, DFedAlt by gossip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.draws import branch
from fedpeer.algorithms.local_training import fresh_steps
from fedpeer.algorithms.steppers import Stepper
from fedpeer.algorithms.training_context import TrainingContext


@dataclass(frozen=True)
class HeadFirst:
    """Division of a round's steps between the head and the base.

    head         names of the head's modules; (): the last module that has parameters
    head_share   share of the steps that train the head, 0 to below 1; with 0 the head stays as it is

    Raises:
        AlgorithmError: there is no such module, no base, or no such share, or the network has its own learning rule.
    """

    context: TrainingContext
    head: tuple[str, ...]
    head_share: float

    def __post_init__(self) -> None:
        if not 0 <= self.head_share < 1:
            raise AlgorithmError(f"head_share = {self.head_share:g}: write 0 or more and less than 1")
        assert len(self.head_D), "a head has parameters"
        assert self._steppers, "built now, so that what they refuse is refused now"

    @cached_property
    def head_D(self) -> Tensor:
        """Places of the head in a model (n,), (D,) int64."""
        return self.context.head_D(self.head)

    @cached_property
    def _steppers(self) -> tuple[Stepper, Stepper]:
        """The stepper of the head, and the stepper of the base."""
        base_D = self.context.base_D(self.head)
        return self.context.training_only(self.head_D), self.context.training_only(base_D)

    def steps(self, steps: int) -> tuple[range, range]:
        """Return the numbers of the steps that train the head, and of the steps that train the base.

        Each trains in at least one step, if the share is above 0; with a single step both train in it.
        """
        if not self.head_share:
            return range(0), range(steps)
        last = steps - 1
        of_head = max(1, min(round(self.head_share * steps), last))
        return range(of_head), range(min(of_head, last), steps)

    def with_head(self, start_n: Tensor, batches: Batches, keys: Sequence[int]) -> Tensor:
        """Return the model (..., n) after the steps of the head, from start_n (..., n)."""
        of_head, _ = self.steps(batches.steps)
        return fresh_steps(self._steppers[0], start_n, batches.taking(of_head), keys) if of_head else start_n

    def with_base(self, start_n: Tensor, batches: Batches, keys: Sequence[int]) -> Tensor:
        """Return the model (..., n) after the steps of the base, from start_n (..., n)."""
        _, of_base = self.steps(batches.steps)
        return fresh_steps(self._steppers[1], start_n, batches.taking(of_base), [branch(key, 1) for key in keys])
