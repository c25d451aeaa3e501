"""Gradient tracking by gossip (DIGing): peers average their models and an estimate of the mean gradient of all peers.

If peers have different data, gossip with plain gradient steps of a constant rate ends near the best common model, not
at it: each peer's own gradient pulls it away. Here a peer steps along y, which follows the mean of all peers'
gradients, so that all reach the exact minimum if losses are convex and gradients are those of all examples. With mixing
matrix W, own gradients g and rate lr, peer by peer:

    x+ = W x - lr y          y+ = W y + g(x+) - g(x)

If the columns of W sum to one, sum y = sum g, since only the peers' own g+ - g change the sum of y. A round of training
is one step, with the mean gradient of all of the round's batches; both vectors are averaged after it. Model, tracker
and gradient begin at (x, 0, 0), so that the first round takes the first gradient and no step. The bound on lr falls
with the spectral gap of W, and is below that of plain gossip.

Source: Nedic, Olshevsky, Shi, Achieving Geometric Convergence for Distributed Optimization over Time-Varying Graphs,
SIAM Journal on Optimization 2017, Algorithm DIGing. On graphs whose matrices do not conserve the plain sum (push-sum
where some peers have more neighbors than others) the paper has another algorithm, Push-DIGing. With such graphs take
exact or push-pull averaging, or a graph on which all peers have equally many neighbors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.contract import Algorithm, Method, Sharing
from fedpeer.algorithms.draws import branch
from fedpeer.algorithms.gradients import Gradient, gradient_of
from fedpeer.algorithms.training_context import TrainingContext


@dataclass(frozen=True, eq=False)
class Tracked:
    """The two vectors that are averaged.

    model_n     (..., n) the model x
    tracker_n   (..., n) the tracker y of the mean gradient
    """

    model_n: Tensor
    tracker_n: Tensor


@dataclass(frozen=True, eq=False)
class Tracking:
    """State of a peer between rounds.

    gradient_n   (..., n) its own gradient at its last model
    tracker_n    (..., n) its tracker before the averaging
    """

    gradient_n: Tensor
    tracker_n: Tensor


@dataclass(frozen=True)
class GradientTracking(Algorithm[Tracking, Tracked, Tracked]):
    """The whole network is averaged, and steps follow the mean gradient of all peers (DIGing).

    It converges to the common optimum even where the peers hold different data.
    """

    context: TrainingContext
    sharing: ClassVar[Sharing] = "everything"

    def __post_init__(self) -> None:
        assert self.context.lr >= 0, "it takes plain gradient steps"
        assert callable(self._gradient), "built now, so that what it refuses is refused now"

    @classmethod
    def method(cls, **settings: Any) -> Method:
        return Method(cls.sharing, vectors=2)

    @cached_property
    def _gradient(self) -> Gradient:
        return gradient_of(self.context.module, self.context.layout, self.context.loss)

    def start_client(self, values_n: Tensor, examples: Tensor) -> Tracking:
        return Tracking(torch.zeros_like(values_n), torch.zeros_like(values_n))

    def start_averaged(self, values_n: Tensor) -> Tracked:
        return Tracked(values_n, torch.zeros_like(values_n))

    def train(
        self, client: Tracking, received: Tracked, batches: Batches, keys: Sequence[int]
    ) -> tuple[Tracking, Tracked]:
        model_n = received.model_n - self.context.lr * client.tracker_n
        total_n = torch.zeros_like(model_n)
        for step in range(batches.steps):
            of_step = [branch(key, step) for key in keys]
            inputs, targets, weights = batches.inputs(step), batches.targets(step), batches.weights(step)
            total_n += self._gradient(model_n, inputs, targets, of_step, weights)
        gradient_n = total_n / batches.steps
        tracker_n = received.tracker_n + gradient_n - client.gradient_n
        return Tracking(gradient_n, tracker_n), Tracked(model_n, tracker_n)
