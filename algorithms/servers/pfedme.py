"""pFedMe: clients minimise the Moreau envelope of their loss; its minimiser is the personal model.

Source: Dinh, Tran, Nguyen, Personalized Federated Learning with Moreau Envelopes, 2020, Algorithm 1. The paper gives
all clients the same weight; here the mean is weighted by n_k as in FedAvg, which is the same if all clients have
equally many examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.draws import branch
from fedpeer.algorithms.local_training import fresh_steps
from fedpeer.algorithms.running_statistics import with_statistics
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel


@dataclass(frozen=True)
class PFedMe(FedAvg):
    """Personal models by Moreau envelopes: a client keeps its personal model theta_i and sends its local model w_i.

    Running statistics of normalization are copied from theta_i to w_i, and from the clients' mean to the server: a rate
    above 1 could make a variance negative.

    Args:
        strength: lambda > 0, strength of the pull of theta_i towards w_i; default 15.0.
        lr: eta > 0, rate with which w_i moves towards theta_i (line 8); default 0.01.
        solving_steps: K >= 1, number of the stepper's steps on one batch that solve for theta (equation 7); each
            solution starts from the one before; default 5.
        server_rate: beta > 0, weight of the clients' mean in the server's next model; default 1.0.
    """

    _: KW_ONLY
    strength: float = 15.0
    lr: float = 0.01
    solving_steps: int = 5
    server_rate: float = 1.0

    def __post_init__(self) -> None:
        for name in ("strength", "lr", "server_rate"):
            if not getattr(self, name) > 0:
                raise AlgorithmError(f"{name} = {getattr(self, name):g}: write a number above 0")
        if self.solving_steps < 1:
            raise AlgorithmError(f"solving_steps = {self.solving_steps}: write 1 or more")

    def train(
        self, client: Local, broadcast: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[Local, Local]:
        local_n = theta_n = broadcast.model_n.expand_as(client.model_n)
        for step in range(batches.steps):
            same = batches.taking([step] * self.solving_steps)
            envelope = Correction.towards(local_n, self.strength)
            theta_n = fresh_steps(self.context.stepper, theta_n, same, [branch(key, step) for key in keys], envelope)
            nearer_n = local_n - self.lr * self.strength * (local_n - theta_n)
            local_n = with_statistics(nearer_n, theta_n, self.context.layout)
        return Local(theta_n, client.examples), Local(local_n, client.examples)

    def close(self, server: ServerModel, updates: Local) -> ServerModel:
        mean_n = super().close(server, updates).model_n
        model_n = torch.lerp(server.model_n, mean_n, self.server_rate)
        return ServerModel(with_statistics(model_n, mean_n, self.context.layout))
