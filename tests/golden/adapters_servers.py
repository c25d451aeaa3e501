"""Adapter from the golden inputs of the server baselines to fedpeer's own functions and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import CoordinatedAlgorithm
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.fedprox import FedProx
from fedpeer.algorithms.servers.scaffold import Scaffold
from fedpeer.algorithms.training_context import TrainingContext
from tests.reference.updates import in_peer_order

Case = dict[str, Any]
Algorithm = CoordinatedAlgorithm[Any, Any, Any, Any]


def server_baselines(inputs: Case, parts: Sequence[str] = ("fedavg", "fedprox", "scaffold")) -> Case:
    """Compute these parts of case 08, without the minimiser, which fedpeer does not need."""
    module = nn.Linear(len(inputs["w0"]), 1, bias=False, dtype=torch.float64)
    choice = OptimizerChoice("SGD", {"lr": inputs["lr"]})
    context = TrainingContext.of(module, LOSSES["mean-squared-error"], choice, clients=len(inputs["H"]))
    algorithms: dict[str, Algorithm] = {
        "fedavg": FedAvg(context),
        "fedprox": FedProx(context, mu=inputs["mu"]),
        "scaffold": Scaffold(context, global_lr=inputs["scaffold_global_lr"]),
    }
    return {name: _rounds(inputs, algorithms[name], name == "scaffold") for name in parts}


def _rounds(inputs: Case, algorithm: Algorithm, controlled: bool) -> list[Case]:
    w0_D = torch.tensor(inputs["w0"], dtype=torch.float64)
    server, found = algorithm.start_server(w0_D), []
    clients = [algorithm.start_client(w0_D, torch.tensor(n)) for n in inputs["n"]]
    for number, sampled in enumerate(inputs["sampled"], start=1):
        broadcast, paths, updates = algorithm.open(server, number), [], {}
        for i in sampled:
            batches = [_quadratic(inputs, i, steps) for steps in range(1, inputs["local_steps"] + 1)]
            after = [algorithm.train(clients[i], broadcast, each, (0,)) for each in batches]
            paths.append([algorithm.personal_model(client).tolist() for client, _ in after])
            clients[i], updates[str(i)] = after[-1]
        server = algorithm.close(server, in_peer_order(updates))
        found.append({"local": paths, "w": server.model_n.tolist()})
        if controlled:
            found[-1] |= {"c": server.control_n.tolist(), "ci": [each.control_n.tolist() for each in clients]}
    return found


def _quadratic(inputs: Case, i: int, steps: int) -> Batches:
    """Return batches with mean squared error 0.5 (w - c)^T H (w - c).

    With H = L L^T, the inputs are sqrt(D/2) L^T, and the targets are their values at c.
    """
    H_DD, c_D = (torch.tensor(inputs[name][i], dtype=torch.float64) for name in ("H", "c"))
    x_DD: Tensor = torch.linalg.cholesky(H_DD).T * (len(c_D) / 2) ** 0.5
    return Batches(x_DD, torch.arange(len(c_D)).repeat(steps, 1), (x_DD @ c_D).repeat(steps, 1))


ADAPTERS: dict[str, Callable[[Case], Case]] = {"08_fedavg_fedprox_scaffold_quadratic": server_baselines}
