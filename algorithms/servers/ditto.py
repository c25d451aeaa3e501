"""Ditto: beside FedAvg, each client trains a model of its own that is held near the server's.

Source: Li, Hu, Beirami, Smith, Ditto: Fair and Robust Federated Learning Through Personalization, 2021, Algorithm 1
with FedAvg as the solver for w. Both models take the round's batches.
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
class Ditto(FedAvg):
    """FedAvg, and beside it a personal model held near the server's: a client keeps v_k and sends w_k.

    strength: the paper's lambda >= 0; 0 leaves the personal models local, and a large one makes them the server's.
    """

    _: KW_ONLY
    strength: float = 0.1

    def train(
        self, client: Local, broadcast: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[Local, Local]:
        start_n = broadcast.model_n.expand_as(client.model_n)
        shared_n = fresh_steps(self.context.stepper, start_n, batches, keys)
        near = Correction.towards(start_n, self.strength)
        personal_n = fresh_steps(self.context.stepper, client.model_n, batches, keys, near)
        return Local(personal_n, client.examples), Local(shared_n, client.examples)
