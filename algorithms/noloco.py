"""NoLoCo: outer steps with momentum towards the averages of random pairs, without an average of all peers.

A peer trains from slow weights phi, for some steps of its own optimizer, to fast weights theta. With Delta = theta -
phi, and a mixing matrix W in which each peer of a pair has one half, its next slow weights are

    delta+ = alpha delta + beta W Delta - gamma (phi - W phi)          phi+ = phi + delta+

The term with gamma pulls the two peers of a pair together. Both averages enter as one sum, gamma W z with z = phi +
beta / gamma Delta, so peers send only z, half as many numbers as phi and Delta:

    delta+ = alpha delta + gamma (W z - phi)

The mean over the peers takes the outer step of their mean, since W conserves it. With gamma = beta, as in the authors'
program, z is theta, and the steps are those of `learning.outer: sgd,lr=BETA,momentum=ALPHA` (`outer_steps.py`).

Running statistics of normalization are averaged as they are (`running_statistics.py`).

Differences between many peers decay to 0 if gamma < 2 (1 - alpha^2). This bound is fedpeer's own, from the second
moments of phi and delta, for peers that do not train and for new random pairs each time; a test checks both sides of
it.

Source: Kolehmainen, Blagoev, Donaghy, Ersoy, Nies, NoLoCo: No-all-reduce Low Communication Training Method for Large
Models, 2025, the section on the optimizer, with alpha and beta of its experiments. Its pipeline stages, with random
routes of activations, are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.contract import Algorithm, Method, Sharing
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.local_training import LocalTraining, TrainingState
from fedpeer.algorithms.running_statistics import with_statistics
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.algorithms.training_context import TrainingContext


@dataclass(frozen=True, eq=False)
class SlowWeights:
    """State of a peer between rounds.

    inner        state of the local optimizer
    slow_n       (..., n) the slow weights phi from which it trained last
    momentum_n   (..., n) delta, the last change of the slow weights
    """

    inner: TrainingState
    slow_n: Tensor
    momentum_n: Tensor


@dataclass(frozen=True)
class NoLoCo(Algorithm[SlowWeights, ServerModel, ServerModel]):
    """The whole network is averaged in pairs; a peer takes outer steps with momentum towards the average of its pair.

    Args:
        outer_lr: beta, the outer learning rate > 0; default 0.7.
        momentum: alpha, the momentum of the outer steps, 0 to below 1; default 0.5.
        gamma: the pull towards the other peer's slow weights, > 0; none (default): as `outer_lr`.
    """

    context: TrainingContext
    _: KW_ONLY
    outer_lr: float = 0.7
    momentum: float = 0.5
    gamma: float | None = None
    sharing: ClassVar[Sharing] = "everything"

    def __post_init__(self) -> None:
        for name, value in (("outer_lr", self.outer_lr), ("gamma", self._gamma)):
            if not 0 < value < float("inf"):
                raise AlgorithmError(f"{name} = {value:g}: write a number above 0, such as 0.7")
        if not 0 <= self.momentum < 1:
            raise AlgorithmError(f"momentum = {self.momentum:g}: write 0 up to less than 1, such as 0.5")

    @classmethod
    def method(cls, **settings: Any) -> Method:
        return Method(cls.sharing, derived=True)

    @cached_property
    def _local(self) -> LocalTraining:
        return LocalTraining(self.context)

    @property
    def _gamma(self) -> float:
        return self.outer_lr if self.gamma is None else self.gamma

    def start_client(self, values_n: Tensor, examples: Tensor) -> SlowWeights:
        return SlowWeights(self._local.start_client(values_n, examples), values_n, torch.zeros_like(values_n))

    def train(
        self, client: SlowWeights, received: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[SlowWeights, ServerModel]:
        slow_n, momentum_n = self._outer_step(client, received)
        inner, fast = self._local.train(client.inner, ServerModel(slow_n), batches, keys)
        sent_n = slow_n + self.outer_lr / self._gamma * (fast.model_n - slow_n)
        sent_n = with_statistics(sent_n, fast.model_n, self.context.layout)
        return SlowWeights(inner, slow_n, momentum_n), ServerModel(sent_n)

    def derived_model(self, client: SlowWeights, averaged: ServerModel) -> Tensor:
        """Return the next slow weights (..., n), from which the peer goes on."""
        return self._outer_step(client, averaged)[0]

    def _outer_step(self, client: SlowWeights, averaged: ServerModel) -> tuple[Tensor, Tensor]:
        """Return the next slow weights and their change, (..., n) each."""
        pull_n = self._gamma * (averaged.model_n - client.slow_n)
        momentum_n = self.momentum * client.momentum_n + pull_n
        return with_statistics(client.slow_n + momentum_n, averaged.model_n, self.context.layout), momentum_n
