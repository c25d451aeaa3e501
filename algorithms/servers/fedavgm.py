"""FedAvgM: FedAvg whose server has momentum, so that rounds with few, or unusual, clients move its model less.

With x the server's model, mean(x_k) the mean of the clients' trained models, weighted by n_k, and v = 0 at the start:

    v <- momentum * v + (mean(x_k) - x)        x <- x + server_lr * v

Source: Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
2019, section 4.2. The rate is that of Reddi et al. 2021 (`fedopt.py`); in the paper it is 1.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.running_statistics import with_statistics
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel


@dataclass(frozen=True, eq=False)
class MovingModel(ServerModel):
    """State of the server: its model x, and its velocity v, (n,) each."""

    velocity_n: Tensor


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg with momentum at the server: its model goes on in the direction of earlier rounds.

    Running statistics of normalisation become the clients' mean, since momentum could make a variance negative.

    Args:
        server_lr: rate of the server's steps, > 0; default 1.0. With 1 and momentum 0 it is FedAvg.
        momentum: share of the velocity that a round keeps, in [0, 1); default 0.9.
    """

    _: KW_ONLY
    server_lr: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not self.server_lr > 0:
            raise AlgorithmError(f"server_lr = {self.server_lr:g}: write a number above 0")
        if not 0 <= self.momentum < 1:
            raise AlgorithmError(f"momentum = {self.momentum:g}: write 0 or more and less than 1")

    def start_server(self, values_n: Tensor) -> MovingModel:
        return MovingModel(values_n, torch.zeros_like(values_n))

    def open(self, server: ServerModel, round: int) -> ServerModel:
        return ServerModel(server.model_n)

    def close(self, server: ServerModel, updates: Local) -> MovingModel:
        assert isinstance(server, MovingModel), "the state that it began with"
        mean_n, kept_n = super().close(server, updates).model_n, self.momentum * server.velocity_n
        # With a rate of 1 this is the mean itself, not the model plus a difference, which is rounded.
        model_n = torch.lerp(server.model_n, mean_n, self.server_lr) + self.server_lr * kept_n
        velocity_n = kept_n + (mean_n - server.model_n)
        return MovingModel(with_statistics(model_n, mean_n, self.context.layout), velocity_n)
