"""Runs the clients of `flower_client.py` as the learners of peers: FedAvg, whose local training is theirs.

Write `client_fn` for your own client. It gets a copy of the network and the peer's own training examples.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial

import torch
from flower_client import FlowerClient, Net
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedpeer.algorithms.batches import Batches, train_singly
from fedpeer.algorithms.draws import guarded
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel


def client_fn(net: nn.Module, x: Tensor, y: Tensor) -> FlowerClient:
    """Return the client of a peer with these training examples."""
    return FlowerClient(net, DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True))


def network() -> nn.Module:
    """Return the network, for `network:` in federation.yaml."""
    return Net()


@dataclass(frozen=True)
class FlowerClients(FedAvg):
    """FedAvg whose clients train by `fit`."""

    _: KW_ONLY
    lr: float = 0.1

    def train(
        self, client: Local, broadcast: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[Local, Local]:
        return train_singly(partial(self._fit, broadcast.model_n), client, batches, keys)

    def _fit(self, model_n: Tensor, client: Local, batches: Batches, key: int) -> tuple[Local, Local]:
        layout, net = self.context.layout, copy.deepcopy(self.context.module)
        net.load_state_dict(layout.unflatten(model_n), strict=False)
        flower = client_fn(net, *batches.everything())
        with guarded(key):  # the seed decides what the client draws
            arrays, examples, _ = flower.fit(flower.get_parameters({}), {"lr": self.lr, "server_round": batches.round})
        values = zip(net.state_dict(), map(torch.tensor, arrays), strict=True)
        net.load_state_dict(dict(values))
        local = Local(layout.flatten(net), torch.tensor(examples))
        return local, local
