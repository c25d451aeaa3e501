"""Server and client networks side by side, with lateral connections: VIRTUAL, 2019, section 2.3.

Two multi-layer perceptrons of the same sizes see the same input. The `server` part is shared among the clients; the
`client` part is private, and each of its layers also gets the server's activation of the layer below through a gate,
as in Progressive Networks (Rusu et al. 2016). The client's logits are the prediction. `bayesian` makes all of it
Gaussian: shifts and gates too, which are modules of their own for that reason.

Source: Corinzia, Buhmann, Variational federated multi-task learning, 2019, eq. 4 and figure 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedpeer.networks.mlp import ACTIVATIONS


class Shift(nn.Module):
    """x + b, with b (features,): eq. 4's bias inside the lateral connection."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        """(B, features) -> (B, features)"""
        return x + self.weight


class Gate(nn.Module):
    """alpha * x, with alpha (features,): eq. 4's gate; it starts at 0.05, the mean of the authors' U(0, 0.1)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((features,), 0.05))

    def forward(self, x: Tensor) -> Tensor:
        """(B, features) -> (B, features)"""
        return x * self.weight


class ClientLayer(nn.Module):
    """w h_c + alpha * u act(h_s + b) + c: a layer of the client before its activation (2019, eq. 4)."""

    def __init__(self, fan_in: int, fan_out: int, *, activation: str) -> None:
        super().__init__()
        self.own = nn.Linear(fan_in, fan_out)
        self.shift = Shift(fan_in)
        self.activation = ACTIVATIONS[activation]()
        self.lateral = nn.Linear(fan_in, fan_out, bias=False)
        self.gate = Gate(fan_out)

    def forward(self, client: Tensor, server: Tensor) -> Tensor:
        """(B, fan_in) twice, what client and server make of the layer below -> (B, fan_out)"""
        lateral: Tensor = self.gate(self.lateral(self.activation(self.shift(server))))
        own: Tensor = self.own(client)
        return own + lateral


class LateralMLP(nn.Module):
    """`sizes` from input to output; parts server.hidden1, ..., server.output, and likewise client."""

    def __init__(self, sizes: Sequence[int], *, activation: str, dropout: float = 0.0) -> None:
        super().__init__()
        names = [*(f"hidden{depth}" for depth in range(1, len(sizes) - 1)), "output"]
        shapes = list(zip(names, pairwise(sizes), strict=True))
        self.server = nn.ModuleDict({name: nn.Linear(*shape) for name, shape in shapes})
        self.client = nn.ModuleDict({name: ClientLayer(*shape, activation=activation) for name, shape in shapes})
        self.activation = ACTIVATIONS[activation]()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *features) -> (B, outputs), the client's logits."""
        return self.activations(x)[1][-1]

    def activations(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Of each layer of the server, and of each of the client; the last of each are logits.

        Dropout, where there is any, stands before every layer (2019, section 4.2).
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
