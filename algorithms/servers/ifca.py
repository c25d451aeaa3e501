"""IFCA: the server holds several models, and each client trains the one that fits its examples best.

Source: Ghosh, Chung, Yin, Ramchandran, An Efficient Framework for Clustered Federated Learning, 2020, Algorithm 1 with
model averaging (option II). The paper gives all clients the same weight; here the means are weighted by n_k as in
FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError, CoordinatedAlgorithm
from fedpeer.algorithms.local_training import fresh_steps
from fedpeer.algorithms.servers.models import Local
from fedpeer.algorithms.training_context import TrainingContext


@dataclass(frozen=True, eq=False)
class ClusterModels:
    """State and broadcast of the server: one model for each of the C clusters, (C, n)."""

    model_Cn: Tensor


@dataclass(frozen=True, eq=False)
class Estimated(Local):
    """Update of a client: its model, its number of examples, and the cluster that it chose, (...) int64."""

    cluster: Tensor


@dataclass(frozen=True)
class Ifca(CoordinatedAlgorithm[ClusterModels, Local, ClusterModels, Estimated]):
    """One server model for each cluster; each client trains the model with the least loss on its own examples.

    Args:
        clusters: number of models, >= 1; default 2.
        adapted: whether a client predicts with the model that it trained in the round (default), or with the server's
            model that it received and chose.
    """

    context: TrainingContext
    _: KW_ONLY
    clusters: int = 2
    adapted: bool = True

    def __post_init__(self) -> None:
        if self.clusters < 1:
            raise AlgorithmError(f"clusters = {self.clusters}: write 1 or more")

    def start_server(self, values_n: Tensor) -> ClusterModels:
        """Return the initial parameters, and further draws for the other clusters.

        Raises:
            AlgorithmError: the draws are equal; then all clients would choose the first model forever.
        """
        further = [self.context.draw(f"cluster {number}") for number in range(1, self.clusters)]
        if any(torch.equal(each, values_n) for each in further):
            raise AlgorithmError(
                "ifca: all of its models would begin alike, and every client would choose the first one, since "
                "learning.start draws no parameters (built, file); write learning.start: torch or uniform, or take "
                "fedavg"
            )
        return ClusterModels(torch.stack([values_n, *further]))

    def start_client(self, values_n: Tensor, examples: Tensor) -> Local:
        return Local(values_n, examples)

    def open(self, server: ClusterModels, round: int) -> ClusterModels:
        return server

    def train(
        self, client: Local, broadcast: ClusterModels, batches: Batches, keys: Sequence[int]
    ) -> tuple[Local, Estimated]:
        cluster = self._best(broadcast.model_Cn, batches)
        chosen_n = broadcast.model_Cn[cluster]
        trained_n = fresh_steps(self.context.stepper, chosen_n, batches, keys)
        kept_n = trained_n if self.adapted else chosen_n
        return Local(kept_n, client.examples), Estimated(trained_n, client.examples, cluster)

    def _best(self, model_Cn: Tensor, batches: Batches) -> Tensor:
        """Return the model with the least loss on the round's examples, (...), one batch at a time (line 6)."""
        block = batches if batches.index.dim() == 3 else batches.block()
        totals = []
        for model_n in model_Cn:
            model_Bn = model_n.expand(len(block.index), -1)
            losses = [
                self.context.loss.mean(
                    self.context.stepper.logits(model_Bn, block.inputs(step)), block.targets(step), block.weights(step)
                )
                for step in range(block.steps)
            ]
            totals.append(torch.stack(losses).sum(0))
        return torch.stack(totals).argmin(0).reshape(batches.index.shape[:-2])

    def changes(self, broadcast: ClusterModels, updates: Estimated) -> dict[str, Tensor]:
        last = len(broadcast.model_Cn) - 1  # an unknown cluster is not averaged: any model will do
        return {"model_n": updates.model_n - broadcast.model_Cn[updates.cluster.clamp(0, last)]}

    def close(self, server: ClusterModels, updates: Estimated) -> ClusterModels:
        model_Cn = server.model_Cn.clone()
        for cluster in range(len(model_Cn)):
            own = updates.cluster == cluster
            if own.any():  # a model that no client chose stays as it is
                model_Cn[cluster] = self.context.mean(updates.model_n[own], updates.examples[own])
        return ClusterModels(model_Cn)

    def server_model(self, server: ClusterModels) -> None:
        """Return None: which of the models suits a newcomer depends on its examples."""

    def personal_model(self, client: Local) -> Tensor:
        return client.model_n
