"""Helpers for the tests of algorithms with a server: one of each, whole rounds, clients with quadratic losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import CoordinatedAlgorithm
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.servers.apfl import Apfl
from fedpeer.algorithms.servers.ditto import Ditto
from fedpeer.algorithms.servers.fedala import FedAla
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.fedavgm import FedAvgM
from fedpeer.algorithms.servers.fedopt import FedAdagrad, FedAdam, FedYogi
from fedpeer.algorithms.servers.fedper import FedPer
from fedpeer.algorithms.servers.fedprox import FedProx
from fedpeer.algorithms.servers.fedrep import FedRep
from fedpeer.algorithms.servers.ifca import Ifca
from fedpeer.algorithms.servers.perfedavg import PerFedAvg
from fedpeer.algorithms.servers.pfedme import PFedMe
from fedpeer.algorithms.servers.pfedvem import PFedVEM
from fedpeer.algorithms.servers.scaffold import Scaffold
from fedpeer.algorithms.steppers import Stepper, Way, build_stepper
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.slicing.flat import FlatLayout
from tests.algorithms.client_factory import mlp
from tests.reference.updates import in_peer_order

Algorithm = CoordinatedAlgorithm[Any, Any, Any, Any]
LR = 0.1
MODULE = mlp()
LAYOUT = FlatLayout.of(MODULE)
LOSS = LOSSES["cross-entropy"]
#: Places of the parameters of all layers except the last.
BASE_D = torch.arange(LAYOUT.n - 15)


def stepper_of(way: Way, module: nn.Module = MODULE, loss: str = "cross-entropy", lr: float = LR) -> Stepper:
    return build_stepper(way, module, FlatLayout.of(module), LOSSES[loss], OptimizerChoice("SGD", {"lr": lr}))


def bench_of(
    way: Way, module: nn.Module = MODULE, loss: str = "cross-entropy", lr: float = LR, clients: int = 5
) -> TrainingContext:
    """Return a context with plain SGD; further draws of initial parameters are the module's, shifted a little."""
    made = TrainingContext.of(module, LOSSES[loss], OptimizerChoice("SGD", {"lr": lr}), way=way, clients=clients)
    return replace(made, draw=lambda name: made.layout.flatten(module) + 0.1 * len(name))


#: One maker for each algorithm; its argument is the way in which the algorithm takes its steps.
MAKERS: dict[str, Callable[[Way], Algorithm]] = {
    "fedavg": lambda way: FedAvg(bench_of(way)),
    "fedprox": lambda way: FedProx(bench_of(way), mu=0.5),
    "fedavgm": lambda way: FedAvgM(bench_of(way), momentum=0.5),
    "fedadagrad": lambda way: FedAdagrad(bench_of(way), server_lr=0.01),
    "fedadam": lambda way: FedAdam(bench_of(way), server_lr=0.01),
    "fedyogi": lambda way: FedYogi(bench_of(way), server_lr=0.01),
    "scaffold": lambda way: Scaffold(bench_of(way)),
    "ditto": lambda way: Ditto(bench_of(way), strength=0.5),
    "apfl": lambda way: Apfl(bench_of(way)),
    "fedala": lambda way: FedAla(bench_of(way), passes=2),
    "pfedme": lambda way: PFedMe(bench_of(way), strength=2.0, lr=0.05),
    "fedper": lambda way: FedPer(bench_of(way)),
    "fedrep": lambda way: FedRep(bench_of(way)),
    "ifca": lambda way: Ifca(bench_of(way)),
    "per-fedavg": lambda way: PerFedAvg(bench_of(way), beta=LR, alpha=LR),
    "pfedvem": lambda way: PFedVEM(bench_of(way), head_lr=1e-2),
}


def played(
    algorithm: Algorithm, server: Any, clients: dict[str, Any], work: Callable[[str], Batches], options: Sequence[str]
) -> Any:
    """Return the server after a round with the clients in `options`; `clients` is updated in place."""
    broadcast, updates = algorithm.open(server, 1), {}
    for peer in options:
        clients[peer], updates[peer] = algorithm.train(clients[peer], broadcast, work(peer), (int(peer),))
    return algorithm.close(server, in_peer_order(updates))


class Quadratics:
    """Clients with f_i(w) = 0.5 (w - c_i)^T H_i (w - c_i), i = 0, 1, ..., in float64, as linear regressions."""

    def __init__(self, clients: int, size: int = 3, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x_CDD = torch.randn((clients, size, size), generator=generator, dtype=torch.float64)
        self.c_CD = torch.randn((clients, size), generator=generator, dtype=torch.float64)
        self.H_CDD = 2 / size * self.x_CDD.mT @ self.x_CDD
        self.module = nn.Linear(size, 1, bias=False, dtype=torch.float64)
        self.layout = FlatLayout.of(self.module)
        self.loss = LOSSES["mean-squared-error"]

    def context(self, lr: float = LR, clients: int = 4) -> TrainingContext:
        return bench_of("loop", self.module, "mean-squared-error", lr, clients)

    def batches(self, client: int, steps: int) -> Batches:
        """Return full batches of a client."""
        x_DD = self.x_CDD[client]
        y_SD = (x_DD @ self.c_CD[client]).expand(steps, -1)
        return Batches(x_DD, torch.arange(len(x_DD)).repeat(steps, 1), y_SD)

    def gradient(self, client: int, w_D: Tensor) -> Tensor:
        gradient_D: Tensor = self.H_CDD[client] @ (w_D - self.c_CD[client])
        return gradient_D

    def near(self, client: int, anchor_D: Tensor, strength: float) -> Tensor:
        """Return the minimiser of f_i(w) + (strength / 2) ||w - anchor||^2."""
        H_DD, eye_DD = self.H_CDD[client], torch.eye(len(anchor_D), dtype=torch.float64)
        right_D = H_DD @ self.c_CD[client] + strength * anchor_D
        near_D: Tensor = torch.linalg.solve(H_DD + strength * eye_DD, right_D)
        return near_D

    def optimum(self) -> Tensor:
        """Return the minimiser of the sum over the clients."""
        right_D = torch.einsum("cij,cj->i", self.H_CDD, self.c_CD)
        optimum_D: Tensor = torch.linalg.solve(self.H_CDD.sum(0), right_D)
        return optimum_D
