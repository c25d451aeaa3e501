"""APFL: each client mixes a model of its own with the server's, and learns how much of each.

A client has v, its own model; w, its copy of the server's model; and alpha, the weight of v. It predicts with the mix
alpha v + (1 - alpha) w. Each step uses the values before it and one batch; f is the client's loss:

    w <- w - lr grad f(w)        v <- v - lr alpha grad f(mix)        alpha <- alpha - lr <v - w, grad f(mix)>

w is sent and averaged as in FedAvg. v has the gradient of f(mix) with respect to v, hence the factor alpha. alpha
changes only in the first step of a round, and is kept in [0, 1].

Source: Deng, Kamani, Mahdavi, Adaptive Personalized Federated Learning, 2020, Algorithm 1 and the section on adaptively
updating alpha. The paper gives all clients the same weight; here the mean is weighted by n_k as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.draws import branch
from fedpeer.algorithms.gradients import Gradient, gradient_of
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel


@dataclass(frozen=True, eq=False)
class MixingClient(Local):
    """State of a client: w after its last training, n_k, its own model v, and the weight of v.

    own_n   (..., n) v
    alpha   (...) weight of v in its mix, in [0, 1]
    """

    own_n: Tensor
    alpha: Tensor


@dataclass(frozen=True)
class Apfl(FedAvg):
    """FedAvg, and each client predicts with a mix of its own model and the server's; local steps are plain SGD.

    Args:
        alpha: weight of the client's own model before its first round, in [0, 1]; default 0.5. With 0, and if it is not
            adaptive, it is FedAvg.
        adaptive: whether clients learn alpha; default true.
    """

    _: KW_ONLY
    alpha: float = 0.5
    adaptive: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise AlgorithmError(f"alpha = {self.alpha:g}: write a number from 0 to 1")
        assert self.context.lr >= 0, "it takes plain gradient steps"
        assert callable(self._gradient), "built now, so that what it refuses is refused now"

    @cached_property
    def _gradient(self) -> Gradient:
        return gradient_of(self.context.module, self.context.layout, self.context.loss)

    def start_client(self, values_n: Tensor, examples: Tensor) -> MixingClient:
        return MixingClient(values_n, examples, values_n, torch.full_like(values_n[..., 0], self.alpha))

    def train(
        self, client: Local, broadcast: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[MixingClient, Local]:
        assert isinstance(client, MixingClient), "the state that it began with"
        own_n, alpha, lr = client.own_n, client.alpha, self.context.lr
        copy_n = broadcast.model_n.expand_as(own_n)
        for step in range(batches.steps):
            of_step, weights = [branch(key, step) for key in keys], batches.weights(step)
            batch = batches.inputs(step), batches.targets(step), of_step, weights
            slope_n, before = self._gradient(mixed(copy_n, own_n, alpha), *batch), alpha
            if self.adaptive and step == 0:
                alpha = (alpha - lr * ((own_n - copy_n) * slope_n).sum(-1)).clamp(0, 1)
            own_n = own_n - lr * before.unsqueeze(-1) * slope_n
            copy_n = copy_n - lr * self._gradient(copy_n, *batch)
        return MixingClient(copy_n, client.examples, own_n, alpha), Local(copy_n, client.examples)

    def personal_model(self, client: Local) -> Tensor:
        """Return the model that each client predicts with, (..., n): its mix."""
        assert isinstance(client, MixingClient), "the state that it began with"
        return mixed(client.model_n, client.own_n, client.alpha)

    def statistics(self, client: Local, shared: ServerModel) -> dict[str, Tensor]:
        """Return the weight of each client's own model in its mix, (...)."""
        assert isinstance(client, MixingClient), "the state that it began with"
        return {"alpha": client.alpha}


def mixed(copy_n: Tensor, own_n: Tensor, alpha: Tensor) -> Tensor:
    """Return alpha * own + (1 - alpha) * copy, (..., n), for weights alpha (...)."""
    return torch.lerp(copy_n, own_n, alpha.unsqueeze(-1))
