"""Ditto: FedAvg, and each client also trains a personal model that is held near the server's.

Source: Li, Hu, Beirami, Smith, Ditto: Fair and Robust Federated Learning Through Personalization, 2021, Algorithm 1
with FedAvg as the solver for w. Both models are trained on the round's batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.local_training import fresh_steps
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel


@dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg, and a personal model held near the server's: a client keeps v_k and sends w_k.

    Args:
        strength: the paper's lambda >= 0, strength of the pull towards the server's model; default 0.1. With 0 the
            personal models are trained alone; a large value makes them the server's model.
    """

    _: KW_ONLY
    strength: float = 0.1

    def __post_init__(self) -> None:
        if not self.strength >= 0:
            raise AlgorithmError(f"strength = {self.strength:g}: write 0 or more")

    def train(
        self, client: Local, broadcast: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[Local, Local]:
        _, shared = super().train(client, broadcast, batches, keys)
        near = Correction.towards(broadcast.model_n.expand_as(client.model_n), self.strength)
        personal_n = fresh_steps(self.context.stepper, client.model_n, batches, keys, near)
        return Local(personal_n, client.examples), shared
