"""FedPer: the base of the network is shared as in FedAvg, the head stays with the client; both are trained together.

Source: Arivazhagan, Aggarwal, Singh, Choudhary, Federated Learning with Personalization Layers, 2019, Algorithms 1 and
2.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.local_training import fresh_steps
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel
from fedpeer.slicing.flat import gather_group, scatter_


@dataclass(frozen=True)
class PartOfFedAvg(FedAvg):
    """FedAvg of a part of the network, the base: the rest stays with the client, and the server never has it."""

    def __post_init__(self) -> None:
        assert len(self.base_D), "something is shared"

    @cached_property
    def base_D(self) -> Tensor:
        """Places of the base in a client's parameters, (D,) int64."""
        return self.shared()

    @abstractmethod
    def shared(self) -> Tensor:
        """Return the places of the shared part in a client's parameters, (D,) int64."""

    def start_server(self, values_n: Tensor) -> ServerModel:
        return ServerModel(gather_group(values_n, self.base_D))

    def train(
        self, client: Local, broadcast: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[Local, Local]:
        base = broadcast.model_n.expand(*client.model_n.shape[:-1], -1)
        trained_n = self.learn(scatter_(client.model_n.clone(), self.base_D, base), batches, keys)
        return Local(trained_n, client.examples), Local(gather_group(trained_n, self.base_D), client.examples)

    def learn(self, start_n: Tensor, batches: Batches, keys: Sequence[int]) -> Tensor:
        """Return the whole network after the local steps, (..., n)."""
        return fresh_steps(self.context.stepper, start_n, batches, keys)

    def running_statistics(self) -> Tensor | None:
        found = super().running_statistics()
        return None if found is None else gather_group(found, self.base_D)

    def server_model(self, server: ServerModel) -> None:
        """Return None: a part of a network predicts nothing."""


@dataclass(frozen=True)
class FedPer(PartOfFedAvg):
    """A shared base under a personal head: clients send the base alone, and the server holds nothing else.

    Args:
        head: names of the modules that stay with the client; default: the last module that has parameters.
    """

    _: KW_ONLY
    head: tuple[str, ...] = ()

    def shared(self) -> Tensor:
        return self.context.base_D(self.head)
