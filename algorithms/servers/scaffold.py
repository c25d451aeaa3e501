"""SCAFFOLD: control variates, kept by the server and by each client, correct the client drift of local steps.

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning, 2020, Algorithm 1 with option II. Means are uniform over the clients that took part, as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError, CoordinatedAlgorithm, where
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.leaves import combined, divided
from fedpeer.algorithms.local_training import fresh_steps
from fedpeer.algorithms.running_statistics import with_statistics
from fedpeer.algorithms.training_context import TrainingContext


@dataclass(frozen=True, eq=False)
class ControlledModel:
    """A model and its control variate.

    model_n     the server's x (n,), or a client's y_i (..., n)
    control_n   the server's c (n,), or a client's c_i (..., n)
    """

    model_n: Tensor
    control_n: Tensor


@dataclass(frozen=True, eq=False)
class ScaffoldUpdate:
    """Update of a client: the changes of its model and of its control variate in the round, (..., n) each."""

    model_n: Tensor
    control_n: Tensor


@dataclass(frozen=True)
class Scaffold(CoordinatedAlgorithm[ControlledModel, ControlledModel, ControlledModel, ScaffoldUpdate]):
    """FedAvg with control variates against client drift; local steps are plain SGD.

    Running statistics of normalization become the clients' mean, and have no control variates: no gradient moves them.

    Args:
        global_lr: eta_g > 0, factor on the mean change of the clients' models; default 1.0 (Algorithm 1).
    """

    context: TrainingContext
    _: KW_ONLY
    global_lr: float = 1.0

    def __post_init__(self) -> None:
        if not self.context.lr > 0:
            raise AlgorithmError(
                f"the control variates are gradients, computed from steps, and learning.optimizer has lr = "
                f"{self.context.lr:g}; write a number above 0"
            )
        if not self.global_lr > 0:
            raise AlgorithmError(f"global_lr = {self.global_lr:g}: write a number above 0")

    def start_server(self, values_n: Tensor) -> ControlledModel:
        return ControlledModel(values_n, torch.zeros_like(values_n))

    def start_client(self, values_n: Tensor, examples: Tensor) -> ControlledModel:
        return ControlledModel(values_n, torch.zeros_like(values_n))

    def open(self, server: ControlledModel, round: int) -> ControlledModel:
        return server

    def train(
        self, client: ControlledModel, broadcast: ControlledModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[ControlledModel, ScaffoldUpdate]:
        start_n = broadcast.model_n.expand_as(client.model_n)
        drift = Correction(broadcast.control_n - client.control_n)
        trained_n = fresh_steps(self.context.stepper, start_n, batches, keys, drift)
        change_n = trained_n - start_n
        # Option II: c_i+ = c_i - c + (x - y_i) / (K eta_l), the mean gradient of the round's steps.
        met_n = -change_n / (batches.steps * self.context.lr)
        met_n = with_statistics(met_n, torch.zeros_like(met_n), self.context.layout)
        control_n = client.control_n - broadcast.control_n + met_n
        return ControlledModel(trained_n, control_n), ScaffoldUpdate(change_n, control_n - client.control_n)

    def close(self, server: ControlledModel, updates: ScaffoldUpdate) -> ControlledModel:
        took_part = len(updates.model_n) / self.context.clients
        equal_K = torch.ones(len(updates.model_n), device=updates.model_n.device)
        mean = divided(server, self.context.mean(combined(updates), equal_K))
        model_n, mean_n = server.model_n + self.global_lr * mean.model_n, server.model_n + mean.model_n
        return ControlledModel(
            with_statistics(model_n, mean_n, self.context.layout),
            server.control_n + took_part * mean.control_n,
        )

    def settle(
        self, before: ControlledModel, trained: ControlledModel, server: ControlledModel, counted: Tensor
    ) -> ControlledModel:
        # The server's c is the mean of all c_i only if both sides take the same changes.
        return replace(trained, control_n=where(counted, trained.control_n, before.control_n))

    def server_model(self, server: ControlledModel) -> Tensor:
        return server.model_n

    def personal_model(self, client: ControlledModel) -> Tensor:
        return client.model_n
