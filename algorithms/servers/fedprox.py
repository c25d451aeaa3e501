"""FedProx: FedAvg whose clients are held near the server's model by the term (mu / 2) * ||w - w_server||^2.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, Federated Optimization in Heterogeneous Networks, 2020, Algorithm
2, with the inexact solution taken by a number of local steps. The mean is weighted by n_k as in FedAvg: the paper
samples by n_k and averages uniformly, which is the same in expectation. The server's rate is that of Reddi et al. 2021
(`fedopt.py`); in the paper it is 1.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.running_statistics import with_statistics
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term that pulls each client's model towards the server's.

    Args:
        mu: strength of the pull, >= 0; default 0.01 (Algorithm 2). With 0 it is FedAvg.
        server_lr: rate of the server's steps, > 0; default 1.0: it takes the mean of the clients' models.
    """

    _: KW_ONLY
    mu: float = 0.01
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise AlgorithmError(f"mu = {self.mu:g}: write 0 or more")
        if not self.server_lr > 0:
            raise AlgorithmError(f"server_lr = {self.server_lr:g}: write a number above 0")

    def correction(self, start_n: Tensor) -> Correction:
        return Correction.towards(start_n, self.mu)

    def close(self, server: ServerModel, updates: Local) -> ServerModel:
        mean_n = super().close(server, updates).model_n
        model_n = torch.lerp(server.model_n, mean_n, self.server_lr)  # a rate of 1 takes the mean itself
        return ServerModel(with_statistics(model_n, mean_n, self.context.layout))
