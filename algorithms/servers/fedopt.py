"""FedAdagrad, FedAdam and FedYogi: the clients' mean change is the gradient of an adaptive optimizer at the server.

With change = mean(x_k) - x, the mean weighted by n_k as in FedAvg, and elementwise:

    m <- beta1 * m + (1 - beta1) * change       x <- x + server_lr * m / (sqrt(v) + tau)

    FedAdagrad   v <- v + change^2
    FedAdam      v <- beta2 * v + (1 - beta2) * change^2
    FedYogi      v <- v - (1 - beta2) * change^2 * sign(v - change^2)

m begins as 0 and v as tau^2. There is no bias correction.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, Adaptive Federated Optimization, ICLR 2021,
Algorithm 2. Defaults of beta1, beta2 and tau are those of its experiments; the paper tunes the rate for each task.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.running_statistics import with_statistics
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel
from fedpeer.rejection import Rejection


@dataclass(frozen=True, eq=False)
class ServerMoments(ServerModel):
    """State of the server: its model x, and the moments m and v of the clients' mean changes, (n,) each; v >= 0."""

    first_n: Tensor
    second_n: Tensor


@dataclass(frozen=True)
class AdaptiveServer(FedAvg):
    """FedAvg whose server takes adaptive steps; derived algorithms define the second moment.

    Running statistics of normalisation become the clients' mean, since a step could make a variance negative.

    Args:
        server_lr: rate of the server's steps, > 0, in units of the weights; default 0.1.
        beta1: share of the first moment that a round keeps, in [0, 1).
        tau: degree of adaptivity, > 0: all changes far below it have the same scale; default 1e-3.
    """

    _: KW_ONLY
    server_lr: float = 0.1
    beta1: float = 0.9
    tau: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("server_lr", "tau"):
            if not getattr(self, name) > 0:
                raise AlgorithmError(f"{name} = {getattr(self, name):g}: write a number above 0")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name, 0.0) < 1:
                raise AlgorithmError(f"{name} = {getattr(self, name):g}: write 0 or more and less than 1")

    def start_server(self, values_n: Tensor) -> ServerMoments:
        return ServerMoments(values_n, torch.zeros_like(values_n), torch.full_like(values_n, self.tau**2))

    def open(self, server: ServerModel, round: int) -> ServerModel:
        return ServerModel(server.model_n)

    def close(self, server: ServerModel, updates: Local) -> ServerMoments:
        assert isinstance(server, ServerMoments), "the state that it began with"
        mean_n = super().close(server, updates).model_n
        change_n = mean_n - server.model_n
        first_n = self.beta1 * server.first_n + (1 - self.beta1) * change_n
        second_n = self.second(server.second_n, change_n.square())
        model_n = server.model_n + self.server_lr * first_n / (second_n.sqrt() + self.tau)
        return ServerMoments(with_statistics(model_n, mean_n, self.context.layout), first_n, second_n)

    @abstractmethod
    def second(self, second_n: Tensor, square_n: Tensor) -> Tensor:
        """Return the second moment v after a round, (n,) >= 0, from the v before it and the squared change, (n,)."""

    def server_fault(self, server: ServerModel) -> Rejection | None:
        assert isinstance(server, ServerMoments)
        negative = bool((server.second_n < 0).any())
        return Rejection("bad_precision", "a second moment is below 0") if negative else None


@dataclass(frozen=True)
class FedAdagrad(AdaptiveServer):
    """FedAvg whose server steps by Adagrad: parameters that have moved much so far move less.

    Args:
        server_lr, tau: as in `AdaptiveServer`.
        beta1: default 0, as in the paper: no momentum.
    """

    _: KW_ONLY
    beta1: float = 0.0

    def second(self, second_n: Tensor, square_n: Tensor) -> Tensor:
        return second_n + square_n


@dataclass(frozen=True)
class FedAdam(AdaptiveServer):
    """FedAvg whose server steps by Adam: parameters that have moved much lately move less.

    Args:
        server_lr, beta1, tau: as in `AdaptiveServer`; beta1 is 0.9 by default.
        beta2: share of the second moment that a round keeps, in [0, 1); default 0.99.
    """

    _: KW_ONLY
    beta2: float = 0.99

    def second(self, second_n: Tensor, square_n: Tensor) -> Tensor:
        return self.beta2 * second_n + (1 - self.beta2) * square_n


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAvg whose server steps by Yogi: like Adam, but the second moment changes by no more than a round's change.

    Args:
        server_lr, beta1, beta2, tau: as in `FedAdam`.
    """

    def second(self, second_n: Tensor, square_n: Tensor) -> Tensor:
        return second_n - (1 - self.beta2) * square_n * (second_n - square_n).sign()
