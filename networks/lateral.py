"""Server and client networks side by side, with lateral connections: VIRTUAL, 2019, section 2.3.

Two multi-layer perceptrons of the same sizes get the same input. The `server` part is shared among the clients; the
`client` part is private, and each of its layers also gets the server's activation of the layer below through a gate, as
in Progressive Networks (Rusu et al. 2016). The client's logits are the prediction. `bayesian` makes all weights
Gaussian, including shifts and gates, which are separate modules for that reason.

Source: Corinzia, Buhmann, Variational federated multi-task learning, 2019, eq. 4 and figure 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedpeer.networks.mlp import ACTIVATIONS


class Shift(nn.Module):
    """x + b with b (features,), the bias inside the lateral connection of eq. 4."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        """Add the bias to x, (B, features)."""
        return x + self.weight


class Gate(nn.Module):
    """alpha * x with alpha (features,), the gate of eq. 4; it starts at 0.05, the mean of the authors' U(0, 0.1)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((features,), 0.05))

    def forward(self, x: Tensor) -> Tensor:
        """Scale x, (B, features), by the gate."""
        return x * self.weight


class ClientLayer(nn.Module):
    """One layer of the client before its activation: w h_c + alpha * u act(h_s + b) + c (2019, eq. 4)."""

    def __init__(self, fan_in: int, fan_out: int, *, activation: str) -> None:
        super().__init__()
        self.own = nn.Linear(fan_in, fan_out)
        self.shift = Shift(fan_in)
        self.activation = ACTIVATIONS[activation]()
        self.lateral = nn.Linear(fan_in, fan_out, bias=False)
        self.gate = Gate(fan_out)

    def forward(self, client: Tensor, server: Tensor) -> Tensor:
        """Map the client's and the server's output of the layer below, (B, fan_in) each, to (B, fan_out)."""
        lateral: Tensor = self.gate(self.lateral(self.activation(self.shift(server))))
        own: Tensor = self.own(client)
        return own + lateral


class LateralMLP(nn.Module):
    """Server and client perceptrons with lateral connections.

    Its parts are server.hidden1, ..., server.output, and likewise for the client.

    sizes       layer sizes from input to output, the same for both
    activation  a key of `ACTIVATIONS`
    dropout     probability of dropping an input of a layer, 0 up to but not 1
    """

    def __init__(self, sizes: Sequence[int], *, activation: str, dropout: float = 0.0) -> None:
        super().__init__()
        names = [*(f"hidden{depth}" for depth in range(1, len(sizes) - 1)), "output"]
        shapes = list(zip(names, pairwise(sizes), strict=True))
        self.server = nn.ModuleDict({name: nn.Linear(*shape) for name, shape in shapes})
        self.client = nn.ModuleDict({name: ClientLayer(*shape, activation=activation) for name, shape in shapes})
        self.activation = ACTIVATIONS[activation]()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the client's logits, (B, outputs), for inputs (B, *features)."""
        return self.activations(x)[1][-1]

    def activations(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the activations of each layer of the server, and of the client; the last of each are logits.

        Dropout, if any, is applied before every layer (2019, section 4.2).
        """
        server = client = x.flatten(1)
        found: tuple[list[Tensor], list[Tensor]] = ([], [])
        for name in self.server:
            below = self.dropout(server)
            client = self.client[name](self.dropout(client), below)
            server = self.server[name](below)
            if name != "output":
                server, client = self.activation(server), self.activation(client)
            found[0].append(server)
            found[1].append(client)
        return found
