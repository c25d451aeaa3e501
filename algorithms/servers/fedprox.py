"""FedProx: FedAvg whose clients are held near the server's model, by (mu / 2) * ||w - w_server||^2.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, Federated Optimization in Heterogeneous Networks, 2020, Algorithm
2, with the inexact solution taken by a number of local steps. The mean is weighted by n_k as in FedAvg: the paper
samples by n_k and averages uniformly, which is the same in expectation.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.servers.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term that pulls each client's model towards the server's.

    Args:
        mu: strength of the pull, >= 0; default 0.01 (Algorithm 2). With 0 it is FedAvg.
    """

    _: KW_ONLY
    mu: float = 0.01

    def correction(self, start_n: Tensor) -> Correction:
        return Correction.towards(start_n, self.mu)
