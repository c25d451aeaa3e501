"""Adapters of golden cases 05 and 11: confidences and aggregation of pFedVEM, and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import weighted_mean
from fedpeer.algorithms.leaves import take_rows
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.pfedvem import Head, confidence
from fedpeer.algorithms.servers.pfedvem import PFedVEM, PFedVEMClient
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.networks.bayesian import inverse_softplus
from tests.reference.metrics import final_and_best, scores
from tests.reference.pfedvem import kl_of_heads, kl_up_to_constants

Case = dict[str, Any]


@dataclass(frozen=True)
class Handed(PFedVEM):
    """pFedVEM whose trained heads are given for each round, instead of learned."""

    trained: tuple[Head, ...] = ()

    def learn(
        self, begun: PFedVEMClient, w_D: Tensor, tau: Tensor, batches: Batches, keys: Sequence[int]
    ) -> PFedVEMClient:
        head = self.trained[keys[0]]
        return replace(begun, model_n=self.joined(self.parted(begun.model_n)[0], head.mu_D), pi_D=head.pi_D)


def pfedvem_confidence_and_aggregation(inputs: Case) -> Case:
    """Compute case 05; the second heads are frozen in the search for the joint maximiser of w and tau."""
    at = [Head(_tensor(inputs[f"mu{t}"]), _tensor(inputs[f"pi{t}"])) for t in range(3)]
    found = _two_rounds(inputs, at)
    w1, tau1 = found["w1"], found["tau1"]
    trained = Head(at[2].mu_D.requires_grad_(), at[2].pi_D.requires_grad_())
    kl_J = kl_of_heads(trained, w1, tau1)
    gradient_mu, gradient_pi = torch.autograd.grad(kl_J.sum(), (trained.mu_D, trained.pi_D))
    w = w1
    for _ in range(200):  # more often than 1e-6 requires
        tau = confidence(at[1], w)
        w = weighted_mean(at[1].mu_D, tau)
    found["sigma1"] = at[1].sigma_D
    found |= {f"tau1_{term}_only": confidence(at[1], w1, term) for term in ("uncertainty", "deviation")}
    found |= {"kl_round2": kl_J, "kl_grad_mu": gradient_mu, "kl_grad_pi": gradient_pi}
    found |= {"kl_up_to_constants": kl_up_to_constants(trained, w1, tau1)}
    found |= {"inverse_softplus_of_1": inverse_softplus(torch.ones((), dtype=torch.float64))}
    lists: Case = {name: value.tolist() for name, value in found.items()}
    return lists | {"fixed_point": {"w": w.tolist(), "tau": confidence(at[1], w).tolist()}}


def _two_rounds(inputs: Case, at: Sequence[Head]) -> dict[str, Tensor]:
    """Run two rounds of the algorithm itself, on a network whose head has D - 1 features and one class."""
    features = inputs["D"] - 1
    module = nn.Sequential(nn.Linear(1, features), nn.Linear(features, 1)).double()
    context = TrainingContext.of(module, LOSSES["cross-entropy"], OptimizerChoice())
    algorithm, found, none = Handed(context, trained=tuple(at)), dict[str, Tensor](), torch.zeros(0, dtype=torch.int64)
    base_m = algorithm.parted(context.layout.flatten(module))[0]
    server = algorithm.start_server(algorithm.joined(base_m, _tensor(inputs["w0"])))
    clients = PFedVEMClient(algorithm.joined(base_m, at[0].mu_D), torch.arange(1, 1 + len(at[0].mu_D)), at[0].pi_D)
    for round in (1, 2):
        broadcast = algorithm.open(server, round)
        clients, sent = algorithm.train(clients, broadcast, Batches(base_m, none, none), (round,))
        server = algorithm.close(server, take_rows(sent, inputs[f"sampled_round{round}"]))
        found |= {f"tau{round - 1}": sent.tau, f"w{round}": algorithm.parted(server.model_n)[1]}
    return found | {"tau2": algorithm.statistics(clients, server)["confidence"]}


def metrics_s_and_mt(inputs: Case) -> Case:
    """Compute case 11."""
    names = ("correct_by_server_model", "correct_by_own_model", "test_sizes")
    found = scores(*(torch.tensor(inputs[name]) for name in names))
    (final_mt, best_mt), (final_s, best_s) = (
        final_and_best(each) for each in zip(*inputs["history_mt_s"], strict=True)
    )
    return {
        "MT": found.mt,
        "S": found.s,
        "MT_unweighted": found.pm,
        "S_unweighted": found.gm,
        "max_MT": best_mt,
        "max_S": best_s,
        "final": [final_mt, final_s],
    }


def _tensor(numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


ADAPTERS: dict[str, Callable[[Case], Case]] = {
    "05_pfedvem_confidence_and_aggregation": pfedvem_confidence_and_aggregation,
    "11_metrics_s_and_mt": metrics_s_and_mt,
}
