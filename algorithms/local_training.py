"""Local training: what every peer does between two averagings, whatever is averaged.

Local only, partial averaging (Bouchra Pilet, Frey, Taiani 2021, Algorithms 1 and 2, the line `N.TRAIN(D)`), full
averaging and training on pooled data are this same algorithm; they differ in what is shared.

Imports no torch, as `contract.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedpeer.algorithms.contract import Algorithm, Method, Sharing
from fedpeer.algorithms.servers.models import ServerModel

if TYPE_CHECKING:
    from torch import Tensor

    from fedpeer.algorithms.batches import Batches
    from fedpeer.algorithms.correction import Correction
    from fedpeer.algorithms.steppers import Stepper
    from fedpeer.algorithms.workbench import Workbench


@dataclass(frozen=True, eq=False)
class TrainingState:
    """What peers keep between rounds and never send.

    optimizer_k   (..., k) the optimiser's state
    trained       (...) bool, whether there is one
    """

    optimizer_k: Tensor
    trained: Tensor


@dataclass(frozen=True)
class LocalTraining(Algorithm[TrainingState, ServerModel, ServerModel]):
    """Each peer learns alone; nothing is sent."""

    context: Workbench

    def start_client(self, values_n: Tensor, examples: Tensor) -> TrainingState:
        optimizer_k = values_n.new_zeros(*values_n.shape[:-1], self.context.stepper.state_size)
        return TrainingState(optimizer_k, examples.new_zeros(values_n.shape[:-1]).bool())

    def start_averaged(self, values_n: Tensor) -> ServerModel:
        return ServerModel(values_n)

    def train(
        self, client: TrainingState, received: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[TrainingState, ServerModel]:
        fresh = self.context.optimizer_state == "reset" or not bool(client.trained.all())
        trained_n, optimizer_k = _steps(
            self.context.stepper, received.model_n, client.optimizer_k, fresh, batches, keys
        )
        return TrainingState(optimizer_k, client.trained | True), ServerModel(trained_n)


@dataclass(frozen=True)
class PartialAveraging(LocalTraining):
    """Slice by slice, each weight with the peers that the partial models name.

    Bouchra Pilet, Frey, Taiani 2021, Algorithm 1; with `cross_model` also Algorithm 2.
    """

    _: KW_ONLY
    cross_model: bool = False
    sharing: ClassVar[Sharing] = "partial models"

    @classmethod
    def method(cls, *, cross_model: bool = False, **settings: Any) -> Method:
        return Method(cls.sharing, cross_model)


@dataclass(frozen=True)
class FullAveraging(LocalTraining):
    """The whole network is averaged among all peers (one global model)."""

    sharing: ClassVar[Sharing] = "everything"


@dataclass(frozen=True)
class Pooled(LocalTraining):
    """One model trained on the examples of all peers in one place: what no federation can do, to compare with; where
    lam is given a linear one with MOCHA's objective, by its solver.
    """

    _: KW_ONLY
    lam: float | None = None
    passes: float = 50.0
    sharing: ClassVar[Sharing] = "the data"

    @classmethod
    def method(cls, *, lam: float | None = None, passes: float = 50.0, **settings: Any) -> Method:
        return Method(cls.sharing, linear=None if lam is None else (lam, passes))


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
