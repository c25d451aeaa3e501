"""A Flower client as in Flower's own PyTorch quickstart: nothing in this file knows of fedpeer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

try:
    from flwr.client import NumPyClient
except ImportError:  # fedpeer calls the methods, and needs no Flower
    NumPyClient = object


class Net(nn.Module):
    """The network that all clients train."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 50), nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


class FlowerClient(NumPyClient):
    """Trains the network for one pass over its own data."""

    def __init__(self, net: nn.Module, trainloader: DataLoader) -> None:
        self.net, self.trainloader = net, trainloader

    def get_parameters(self, config: dict[str, Any]) -> list[np.ndarray]:
        return [value.cpu().numpy() for value in self.net.state_dict().values()]

    def set_parameters(self, parameters: list[np.ndarray]) -> None:
        values = zip(self.net.state_dict().keys(), map(torch.tensor, parameters), strict=True)
        self.net.load_state_dict(dict(values), strict=True)

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        self.set_parameters(parameters)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=config.get("lr", 0.1), momentum=0.9)
        self.net.train()
        for x, y in self.trainloader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(self.net(x), y).backward()
            optimizer.step()
        return self.get_parameters({}), len(self.trainloader.dataset), {}
