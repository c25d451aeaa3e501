"""An algorithm of one's own: FedAvg whose server has momentum, so that rounds with few clients jump about less.

Source: Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
2019, section 4.2 (FedAvgM).

Run it beside FedAvg with:  cd examples && fedpeer simulate --compare fedavg,python:fedavgm:FedAvgM
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel


@dataclass(frozen=True, eq=False)
class Moving(ServerModel):
    """Server state: its model and its velocity, (n,) each."""

    velocity_n: Tensor


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg with server momentum."""

    _: KW_ONLY
    momentum: float = 0.9

    def start_server(self, values_n: Tensor) -> Moving:
        return Moving(values_n, torch.zeros_like(values_n))

    def open(self, server: ServerModel, round: int) -> ServerModel:
        return ServerModel(server.model_n)

    def close(self, server: ServerModel, updates: Local) -> Moving:
        assert isinstance(server, Moving)
        change_n = super().close(server, updates).model_n - server.model_n
        velocity_n = self.momentum * server.velocity_n + change_n
        return Moving(server.model_n + velocity_n, velocity_n)
