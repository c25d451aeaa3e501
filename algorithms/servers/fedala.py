"""FedALA: before its local steps a client learns how much of the server's head, weight by weight, it takes over.

A client begins a round with the server's base, and with the head own + W * (server's - own), elementwise. W, in [0, 1],
takes steps down the gradient of the client's loss at that model, and is kept between rounds:

    W <- clip(W - eta * grad f * (server's - own), 0, 1)

Then the whole model is trained and sent as in FedAvg. W is 1 at first, so a client's first round takes the server's
model unchanged. In its second round it learns W in several passes; in later rounds one pass suffices.

Source: Zhang, Hua, Wang, Song, Xue, Ma, Guan, FedALA: Adaptive Local Aggregation for Personalized Federated Learning,
AAAI 2023, Algorithm 1. The paper learns W on a share of the client's examples, drawn in each round; here W is learned
on that share of the round's batches, which are in random order. In the second round the paper passes over the examples
until several losses in a row are similar; here a setting gives the number of passes, so that every engine takes equally
many steps.
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
from fedpeer.slicing.flat import gather_group, scatter_


@dataclass(frozen=True, eq=False)
class WeighingClient(Local):
    """State of a client: its trained model, n_k, and its weights of the server's head, which has D parameters.

    weight_D   (..., D) W, share of the server's value in each parameter of the head, in [0, 1]
    rounds     (...) int64, number of rounds in which it has trained
    """

    weight_D: Tensor
    rounds: Tensor


@dataclass(frozen=True)
class FedAla(FedAvg):
    """FedAvg, but each client learns how much of the server's head it takes over, weight by weight.

    Args:
        head: names of the modules that are taken over in part; default: the last module that has parameters.
        eta: rate of the weights' steps, >= 0; default 1.0. With 0 it is FedAvg.
        share: share of the round's batches on which they are learned, above 0 and at most 1; default 0.8.
        passes: passes over these batches in a client's second round, >= 1; default 10.
    """

    _: KW_ONLY
    head: tuple[str, ...] = ()
    eta: float = 1.0
    share: float = 0.8
    passes: int = 10

    def __post_init__(self) -> None:
        if not self.eta >= 0:
            raise AlgorithmError(f"eta = {self.eta:g}: write 0 or more")
        if not 0 < self.share <= 1:
            raise AlgorithmError(f"share = {self.share:g}: write a number above 0 and at most 1")
        if self.passes < 1:
            raise AlgorithmError(f"passes = {self.passes}: write 1 or more")
        assert len(self.head_D), "a head has parameters"
        assert callable(self._gradient), "built now, so that what it refuses is refused now"

    @cached_property
    def head_D(self) -> Tensor:
        """Places of the head in a client's parameters, (D,) int64."""
        return self.context.head_D(self.head)

    @cached_property
    def _gradient(self) -> Gradient:
        return gradient_of(self.context.module, self.context.layout, self.context.loss)

    def start_client(self, values_n: Tensor, examples: Tensor) -> WeighingClient:
        rounds = torch.zeros(values_n.shape[:-1], dtype=torch.int64, device=values_n.device)
        return WeighingClient(values_n, examples, torch.ones_like(gather_group(values_n, self.head_D)), rounds)

    def train(
        self, client: Local, broadcast: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[WeighingClient, Local]:
        assert isinstance(client, WeighingClient), "the state that it began with"
        server_n = broadcast.model_n.expand_as(client.model_n)
        weight_D = self._learned(client, server_n, batches, keys)
        begun = ServerModel(self.taken_over(client.model_n, server_n, weight_D))
        sent, _ = super().train(client, begun, batches, keys)
        return WeighingClient(sent.model_n, client.examples, weight_D, client.rounds + 1), sent

    def taken_over(self, own_n: Tensor, server_n: Tensor, weight_D: Tensor) -> Tensor:
        """Return the server's model (..., n) with the head own + W * (server's - own)."""
        own_D, server_D = gather_group(own_n, self.head_D), gather_group(server_n, self.head_D)
        return scatter_(server_n.clone(), self.head_D, torch.lerp(own_D, server_D, weight_D))

    def _learned(self, client: WeighingClient, server_n: Tensor, batches: Batches, keys: Sequence[int]) -> Tensor:
        """Return the weights W (..., D) with which a client begins the round."""
        passes = torch.where(client.rounds > 1, 1, self.passes * client.rounds).unsqueeze(-1)  # none in its first round
        steps = max(1, round(self.share * batches.steps))
        weight_D, apart_D = client.weight_D, gather_group(server_n - client.model_n, self.head_D)
        for number in range(int(passes.max()) * steps):
            begun_n, step = self.taken_over(client.model_n, server_n, weight_D), number % steps
            of_step = [branch(key, number) for key in keys]
            inputs, targets, weights = batches.inputs(step), batches.targets(step), batches.weights(step)
            slope_n = self._gradient(begun_n, inputs, targets, of_step, weights)
            stepped_D = (weight_D - self.eta * gather_group(slope_n, self.head_D) * apart_D).clamp(0, 1)
            weight_D = torch.where(number < passes * steps, stepped_D, weight_D)
        return weight_D

    def statistics(self, client: Local, shared: ServerModel) -> dict[str, Tensor]:
        """Return the mean weight with which each client takes over the server's head, (...)."""
        assert isinstance(client, WeighingClient), "the state that it began with"
        return {"weight of the server's head": client.weight_D.mean(-1)}
