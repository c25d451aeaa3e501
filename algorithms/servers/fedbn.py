"""FedBN: FedAvg of everything but batch normalisation, which stays with the client: scale, shift, mean and variance.

Normalisation adapts a network to the client's own features, such as the colours of its camera. Without a server,
`learning.buffers: local` does the same under every algorithm.

Source: Li, Jiang, Zhang, Kamp, Dou, FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR
2021, Algorithm 1. The paper gives all clients the same weight; here the mean is weighted by n_k as in FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.servers.fedper import PartOfFedAvg
from fedpeer.slicing.network import normalization


@dataclass(frozen=True)
class FedBN(PartOfFedAvg):
    """FedAvg of everything but batch normalisation, which stays with the client."""

    def shared(self) -> Tensor:
        norms = normalization(self.context.layout.tensors)
        if not any(name.endswith(("running_mean", "running_var")) for name in norms):
            raise AlgorithmError(
                "fedbn: the network has no batch normalisation, so nothing would stay with the clients; take fedavg, "
                "or a network with it, such as cnn,norm=batch"
            )
        return self.context.base_D(norms)
