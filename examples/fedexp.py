"""An algorithm of one's own: FedAvg whose server takes longer steps where the clients' changes point apart.

The clients' mean change is short where their changes point in different directions. The server then goes further along
it: by the mean squared length of the changes over twice the squared length of their mean, but never by less than 1.

Source: Jhunjhunwala, Wang, Joshi, FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023, Algorithm 1.

Run it beside FedAvg with:  cd examples && fedpeer simulate --compare fedavg,python:fedexp:FedExP
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel


@dataclass(frozen=True)
class FedExP(FedAvg):
    """FedAvg with extrapolated server steps."""

    _: KW_ONLY
    epsilon: float = 1e-3

    def close(self, server: ServerModel, updates: Local) -> ServerModel:
        mean_n = super().close(server, updates).model_n - server.model_n
        change_Kn = updates.model_n - server.model_n
        further = change_Kn.square().sum(-1).mean() / (2 * (mean_n.square().sum() + self.epsilon))
        return ServerModel(server.model_n + further.clamp(min=1) * mean_n)
