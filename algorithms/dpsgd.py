"""D-PSGD: a peer takes the average of its neighbors' models, and then a step along its own model's gradient.

With mixing matrix W, own gradients g and rate lr, peer by peer:

    x+ = W x - lr g(x)

The gradient is taken at the model before the averaging. So both can be done at the same time, which is the purpose of
the method; `full-averaging` with one step in a round is W (x - lr g(x)) instead. A round of training is one step, with
the mean gradient of all of the round's batches. The paper's W is symmetric and doubly stochastic: one exchange of
push-sum on a graph on which all peers have equally many neighbors.

Source: Lian, Zhang, Zhang, Hsieh, Zhang, Liu, Can Decentralized Algorithms Outperform Centralized Algorithms? A Case
Study for Decentralized Parallel Stochastic Gradient Descent, NIPS 2017, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.contract import Algorithm, Sharing
from fedpeer.algorithms.draws import branch
from fedpeer.algorithms.gradients import Gradient, gradient_of
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.algorithms.training_context import TrainingContext


@dataclass(frozen=True)
class DPsgd(Algorithm[ServerModel, ServerModel, ServerModel]):
    """The whole network is averaged, and each peer steps along the gradient at its model before the averaging.

    A peer keeps that model, (..., n), which is also what it sent.
    """

    context: TrainingContext
    sharing: ClassVar[Sharing] = "everything"

    def __post_init__(self) -> None:
        assert self.context.lr >= 0, "it takes plain gradient steps"
        assert callable(self._gradient), "built now, so that what it refuses is refused now"

    @cached_property
    def _gradient(self) -> Gradient:
        return gradient_of(self.context.module, self.context.layout, self.context.loss)

    def start_client(self, values_n: Tensor, examples: Tensor) -> ServerModel:
        return ServerModel(values_n)

    def train(
        self, client: ServerModel, received: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[ServerModel, ServerModel]:
        total_n = torch.zeros_like(client.model_n)
        for step in range(batches.steps):
            of_step = [branch(key, step) for key in keys]
            inputs, targets, weights = batches.inputs(step), batches.targets(step), batches.weights(step)
            total_n += self._gradient(client.model_n, inputs, targets, of_step, weights)
        after = ServerModel(received.model_n - self.context.lr / batches.steps * total_n)
        return after, after
