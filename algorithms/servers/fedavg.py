"""FedAvg: clients train the server's model, and the server averages the trained models.

Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import CoordinatedAlgorithm
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.local_training import fresh_steps
from fedpeer.algorithms.servers.models import Local, ServerModel
from fedpeer.algorithms.training_context import TrainingContext


@dataclass(frozen=True)
class FedAvg(CoordinatedAlgorithm[ServerModel, Local, ServerModel, Local]):
    """Clients train the server's model; the next one is the mean of theirs, weighted by their numbers of examples."""

    context: TrainingContext
    moved = ("model_n",)

    def start_server(self, values_n: Tensor) -> ServerModel:
        return ServerModel(values_n)

    def start_client(self, values_n: Tensor, examples: Tensor) -> Local:
        return Local(values_n, examples)

    def open(self, server: ServerModel, round: int) -> ServerModel:
        return server

    def train(
        self, client: Local, broadcast: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[Local, Local]:
        start_n = broadcast.model_n.expand_as(client.model_n)
        trained_n = fresh_steps(self.context.stepper, start_n, batches, keys, self.correction(start_n))
        local = Local(trained_n, client.examples)
        return local, local

    def correction(self, start_n: Tensor) -> Correction | None:
        """Return what algorithms that derive from this one add to each local step's gradient; None: nothing."""
        return None

    def close(self, server: ServerModel, updates: Local) -> ServerModel:
        return ServerModel(self.context.mean(updates.model_n, updates.examples))

    def running_statistics(self) -> Tensor | None:
        return self.context.running_statistics

    def server_model(self, server: ServerModel) -> Tensor | None:
        return server.model_n

    def personal_model(self, client: Local) -> Tensor:
        return client.model_n
