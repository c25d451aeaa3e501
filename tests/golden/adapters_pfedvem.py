"""Golden cases 05 and 11: confidences and aggregation of pFedVEM, and the metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedpeer.algorithms.coordinated import weighted_mean
from fedpeer.algorithms.metrics import final_and_best, scores
from fedpeer.algorithms.pfedvem import Head, confidence, kl, kl_up_to_constants
from fedpeer.networks.bayesian import inverse_softplus

Case = dict[str, Any]


def pfedvem_confidence_and_aggregation(inputs: Case) -> Case:
    """05; the third head is frozen where the joint maximiser of w and tau is looked for."""
    at = [Head(_tensor(inputs[f"mu{t}"]), _tensor(inputs[f"pi{t}"])) for t in range(3)]
    w0, sampled = _tensor(inputs["w0"]), [inputs["sampled_round1"], inputs["sampled_round2"]]
    tau0 = confidence(at[0], w0)
    w1 = weighted_mean(at[1].mu_D[sampled[0]], tau0[sampled[0]])
    tau1 = confidence(at[1], w1)
    w2 = weighted_mean(at[2].mu_D[sampled[1]], tau1[sampled[1]])
    trained = Head(at[2].mu_D.requires_grad_(), at[2].pi_D.requires_grad_())
    kl_J = kl(trained, w1, tau1)
    gradient_mu, gradient_pi = torch.autograd.grad(kl_J.sum(), (trained.mu_D, trained.pi_D))
    w = w1
    for _ in range(200):  # as often as it takes to 1e-6, and more
        tau = confidence(at[1], w)
        w = weighted_mean(at[1].mu_D, tau)
    found = {"sigma1": at[1].sigma_D, "tau0": tau0, "w1": w1, "tau1": tau1, "w2": w2, "tau2": confidence(at[2], w2)}
    found |= {f"tau1_{term}_only": confidence(at[1], w1, term) for term in ("uncertainty", "deviation")}
    found |= {"kl_round2": kl_J, "kl_grad_mu": gradient_mu, "kl_grad_pi": gradient_pi}
    found |= {"kl_up_to_constants": kl_up_to_constants(trained, w1, tau1)}
    found |= {"inverse_softplus_of_1": inverse_softplus(torch.ones((), dtype=torch.float64))}
    lists: Case = {name: value.tolist() for name, value in found.items()}
    return lists | {"fixed_point": {"w": w.tolist(), "tau": confidence(at[1], w).tolist()}}


def metrics_s_and_mt(inputs: Case) -> Case:
    """11"""
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
