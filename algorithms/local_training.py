"""Local training: the local steps of every peer between two averagings, whichever partial models are averaged.

Training alone, partial averaging (Bouchra Pilet, Frey, Taiani 2021, Algorithms 1 and 2, the line `N.TRAIN(D)`), full
averaging and training on pooled data are this one algorithm; they differ in what they share.

Imports no torch, like `contract.py`.
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
    from fedpeer.algorithms.training_context import TrainingContext


@dataclass(frozen=True, eq=False)
class TrainingState:
    """State that a peer keeps between rounds and never sends.

    optimizer_k   (..., k) state of the optimizer
    trained       (...) bool, whether the peer has trained, so that `optimizer_k` is a state
    """

    optimizer_k: Tensor
    trained: Tensor


@dataclass(frozen=True)
class LocalTraining(Algorithm[TrainingState, ServerModel, ServerModel]):
    """Each peer trains alone; nothing is sent."""

    context: TrainingContext

    def start_client(self, values_n: Tensor, examples: Tensor) -> TrainingState:
        optimizer_k = values_n.new_zeros(*values_n.shape[:-1], self.context.stepper.state_size)
        return TrainingState(optimizer_k, examples.new_zeros(values_n.shape[:-1]).bool())

    def train(
        self, client: TrainingState, received: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[TrainingState, ServerModel]:
        stepper = self.context.stepper
        # Without optimizer state the answer does not matter, and a GPU need not wait for it.
        stateless = stepper.state_size == 0 or self.context.optimizer_state == "reset"
        fresh = stateless or not bool(client.trained.all())
        trained_n, optimizer_k = _steps(stepper, received.model_n, client.optimizer_k, fresh, batches, keys)
        return TrainingState(optimizer_k, client.trained | True), ServerModel(trained_n)


@dataclass(frozen=True)
class PartialAveraging(LocalTraining):
    """Each weight is averaged among the peers that its partial models name.

    Bouchra Pilet, Frey, Taiani 2021, Algorithm 1; with `cross_model` also Algorithm 2.

    Args:
        cross_model: whether weights between neurons of unrelated partial models are averaged too; default false.
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
    """One model, trained on the examples of all peers in one place: a baseline that no federation can run.

    Args:
        lam: weight > 0 of the regulariser of a linear model with MOCHA's objective, fitted by MOCHA's solver; none
            (default): train the network.
        passes: passes of that solver over all examples in a round, > 0; default 50.
    """

    _: KW_ONLY
    lam: float | None = None
    passes: float = 50.0
    sharing: ClassVar[Sharing] = "the data"

    @classmethod
    def method(cls, *, lam: float | None = None, passes: float = 50.0, **settings: Any) -> Method:
        linear = None if lam is None else (lam, passes)
        return Method(cls.sharing, linear=linear, own_loss=linear is not None)


def fresh_steps(
    stepper: Stepper, start_n: Tensor, batches: Batches, keys: Sequence[int], correction: Correction | None = None
) -> Tensor:
    """Return the parameters (..., n) after a round's steps from start_n (..., n), with a fresh optimizer.

    The optimizer's state is dropped afterwards. Clients of a server train like this: a stored state would belong to a
    model that they no longer have.

    Args:
        correction: (..., n), added to the gradient of every step.
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
    """Return parameters and optimizer state after the steps, in new tensors; one peer is trained as a block of one."""
    trained_n, optimizer_k = start_n.clone(), optimizer_k.clone()
    if start_n.dim() == 1:
        correction = correction and correction.block()
        stepper.train(trained_n[None], optimizer_k[None], fresh, batches.block(), keys, correction)
    else:
        stepper.train(trained_n, optimizer_k, fresh, batches, keys, correction)
    return trained_n, optimizer_k
