"""Runs the clients of `flower_client.py` as the learners of peers: FedAvg, whose local training is theirs.

Write `client_fn` for your own client. It gets a copy of the network and the peer's own training examples.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from flower_client import FlowerClient
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fedpeer


def client_fn(net: nn.Module, x: Tensor, y: Tensor) -> FlowerClient:
    """Return the client of a peer with these training examples."""
    return FlowerClient(net, DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True))


@dataclass(frozen=True)
class FlowerClients(fedpeer.OwnTraining):
    """FedAvg whose clients train by Flower's `fit`."""

    _: KW_ONLY
    lr: float = 0.1

    def fit(self, module: nn.Module, x: Tensor, y: Tensor, round: int) -> None:
        client = client_fn(module, x, y)
        arrays, _, _ = client.fit(client.get_parameters({}), {"lr": self.lr, "server_round": round})
        module.load_state_dict(dict(zip(module.state_dict(), map(torch.tensor, arrays), strict=True)))
