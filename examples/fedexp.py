"""An algorithm of one's own: FedAvg whose server takes longer steps where the clients' changes point apart.

The clients' mean change is short where their changes point in different directions. The server then goes further along
it: by the mean squared length of the changes over twice the squared length of their mean, but never by less than 1.

Source: Jhunjhunwala, Wang, Joshi, FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023, Algorithm 1.

Run it beside FedAvg with:  cd examples && fedpeer simulate --compare fedavg,python:fedexp:FedExP
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from fedpeer.algorithms.running_statistics import with_statistics
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel


@dataclass(frozen=True)
class FedExP(FedAvg):
    """FedAvg with extrapolated server steps."""

    _: KW_ONLY
    epsilon: float = 1e-3

    def close(self, server: ServerModel, updates: Local) -> ServerModel:
        mean_n, layout = super().close(server, updates).model_n, self.context.layout
        change_n, change_Kn = (model_n - server.model_n for model_n in (mean_n, updates.model_n))
        length, length_K = (each[..., : layout.n_parameters].square().sum(-1) for each in (change_n, change_Kn))
        further = length_K.mean() / (2 * (length + self.epsilon))
        # Running statistics of normalization take the mean itself: beyond it a variance may be negative.
        return ServerModel(with_statistics(server.model_n + further.clamp(min=1) * change_n, mean_n, layout))
