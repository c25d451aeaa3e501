"""FedProx: FedAvg whose clients are held near the server's model, by (mu / 2) * ||w - w_server||^2.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, Federated Optimization in Heterogeneous Networks, 2020, Algorithm
2, with the inexact solution taken by a number of local steps. The mean is weighted by n_k as in FedAvg: the paper
samples by n_k and averages uniformly, which is the same in expectation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.local_training import fresh_steps
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term that pulls each client's model towards the server's.

    Args:
        mu: strength of the pull, >= 0; default 0.01 (Algorithm 2). With 0 it is FedAvg.
    """

    _: KW_ONLY
    mu: float = 0.01

    def train(
        self, client: Local, broadcast: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[Local, Local]:
        start_n = broadcast.model_n.expand_as(client.model_n)
        proximal = Correction.towards(start_n, self.mu)
        local = Local(fresh_steps(self.context.stepper, start_n, batches, keys, proximal), client.examples)
        return local, local
