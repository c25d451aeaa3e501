"""DFedAlt and DFedSalt: peers average the base of their networks by gossip, and each keeps its own head.

A round trains the head first, on the averaged base, and then the base under that head. Only the base's group is
averaged: the head is local to its peer and is never sent. DFedSalt trains the base by sharpness-aware steps, so that
the peers' bases, each near a flat minimum, lose less accuracy by the averaging. With u the base, v the head, f the loss
of one batch and lr the rate:

    u <- u - lr grad_u f(u + rho grad_u f(u, v) / ||grad_u f(u, v)||, v)

Source: Shi, Liu, Sun, Lin, Shen, Wang, Tao, Towards More Suitable Personalization in Federated Learning via
Decentralized Partial Model Training, 2023, Algorithm 1 for both. Head and base are trained by the same optimizer, and
rho is 0.05 by default as in Foret, Kleiner, Mobahi, Neyshabur, Sharpness-Aware Minimization, ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.contract import Algorithm, Method, Sharing
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.draws import branch
from fedpeer.algorithms.gradients import Gradient, gradient_of
from fedpeer.algorithms.local_training import TrainingState
from fedpeer.algorithms.partial_training import HeadFirst
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.slicing.models import LOCAL, PartialModel
from fedpeer.slicing.network import NetworkMap


def _base_alone(network: NetworkMap, head: Sequence[str] = ()) -> tuple[PartialModel, PartialModel]:
    """Return the partial models under which all peers average the base, and no peer averages the head.

    Args:
        head: the head's modules by dotted name; default: the last module with parameters.
    """
    last = [tensor.module for tensor in network.tensors if tensor.kind == "parameter"][-1]
    return PartialModel("base", neurons="all"), PartialModel(LOCAL, modules=tuple(head) or (last,))


@dataclass(frozen=True)
class DFedAlt(Algorithm[TrainingState, ServerModel, ServerModel]):
    """The base is averaged and each peer keeps its own head; the head is trained first, and then the base under it.

    The optimizer's state is dropped after each round.

    Args:
        head: names of the modules that stay with the peer; default: the last module that has parameters.
        head_share: share of the round's steps that train the head, 0 to below 1; default 0.5. With 0 all heads stay as
            they began.
    """

    context: TrainingContext
    _: KW_ONLY
    head: tuple[str, ...] = ()
    head_share: float = 0.5
    sharing: ClassVar[Sharing] = "own models"

    def __post_init__(self) -> None:
        assert self.parts, "built now, so that what it refuses is refused now"

    @classmethod
    def method(cls, *, head: tuple[str, ...] = (), **settings: Any) -> Method:
        return Method(cls.sharing, models=partial(_base_alone, head=head))

    @cached_property
    def parts(self) -> HeadFirst:
        """The head and the base, and the steps of each."""
        return HeadFirst(self.context, self.head, self.head_share)

    def start_client(self, values_n: Tensor, examples: Tensor) -> TrainingState:
        lead = values_n.shape[:-1]
        return TrainingState(values_n.new_zeros(*lead, 0), torch.zeros(lead, dtype=torch.bool, device=values_n.device))

    def train(
        self, client: TrainingState, received: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[TrainingState, ServerModel]:
        with_head_n = self.parts.with_head(received.model_n, batches, keys)
        trained_n = self.base_steps(with_head_n, batches, keys)
        return TrainingState(client.optimizer_k, client.trained | True), ServerModel(trained_n)

    def base_steps(self, start_n: Tensor, batches: Batches, keys: Sequence[int]) -> Tensor:
        """Return the model (..., n) after the round's steps of the base, from start_n (..., n)."""
        return self.parts.with_base(start_n, batches, keys)


@dataclass(frozen=True)
class DFedSalt(DFedAlt):
    """DFedAlt whose bases are trained by sharpness-aware steps (SAM) of plain SGD.

    Args:
        head, head_share: as in DFedAlt.
        rho: distance that a base is moved along its gradient before the gradient of a step is taken, >= 0, in units of
            the weights; default 0.05. With 0 it is DFedAlt.
    """

    _: KW_ONLY
    rho: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rho >= 0:
            raise AlgorithmError(f"rho = {self.rho:g}: write 0 or more")
        assert self.context.lr >= 0, "it takes plain gradient steps"
        assert callable(self._gradient), "built now, so that what it refuses is refused now"

    @cached_property
    def _gradient(self) -> Gradient:
        return gradient_of(self.context.module, self.context.layout, self.context.loss)

    def base_steps(self, start_n: Tensor, batches: Batches, keys: Sequence[int]) -> Tensor:
        model_n = start_n
        for step in self.parts.steps(batches.steps)[1]:
            of_step, weights = [branch(key, 1 + step) for key in keys], batches.weights(step)
            batch = batches.inputs(step), batches.targets(step), of_step, weights
            up_n = self._of_base(self._gradient(model_n, *batch))
            length = torch.linalg.vector_norm(up_n, dim=-1, keepdim=True).clamp(min=torch.finfo(up_n.dtype).tiny)
            sharp_n = self._gradient(model_n + self.rho * up_n / length, *batch)
            model_n = model_n - self.context.lr * self._of_base(sharp_n)
        return model_n

    def _of_base(self, slope_n: Tensor) -> Tensor:
        """Return a gradient (..., n) with zeros for the head."""
        return slope_n.index_fill(-1, self.parts.head_D.to(slope_n.device), 0)
