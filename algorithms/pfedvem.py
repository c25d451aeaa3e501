"""pFedVEM's mathematics: a Bayesian linear head for each client, whose prior is the global head, scaled by confidence.

A network is a base (a point estimate, averaged by numbers of examples) and a linear head. Client j keeps a diagonal
Gaussian q_j = N(mu_j, diag(sigma_j^2)) over its head; the prior of that head is N(w, rho_j^2 I) around the global head
w. One number says how far a client can be trusted: its confidence tau_j = 1 / rho_j^2, in closed form from its own
uncertainty and its distance from w. It is the strength of the prior when j trains, and j's weight in the next w.

Order of a client's turn: w arrives; tau_j is computed from w and the head as it was *before* training; the head is
trained against N(w, I / tau_j); the base is trained under the new head; the new mu_j is sent with that tau_j. A server
then takes w^{t+1} = `coordinated.weighted_mean(mu_JD, tau_J)` (eq. (9); Algorithm 1, line 5), and for bases the mean by
numbers of examples (line 6): `servers/pfedvem.py`. Without a server: `confident_peers.py`.

J clients, D numbers of the head (weights and biases), N examples, F features, C classes, K samples of the head. All
functions take leading dimensions; `...` below stands for them.

Source: Zhu, Ma, Blaschko, Confidence-aware Personalized Federated Learning via Variational Expectation Maximization,
CVPR 2023. Two signs there are misprints: in Algorithm 1, line 9, and in the display under "Monte-Carlo approximation",
the sum of negative log-likelihoods *plus* KL is to be minimised. The data term is a sum over all n_j examples, never a
mean, or the prior would be n_j times too strong. The Jensen bound of eq. (10) is no bound as printed; the exact KL is
as cheap and is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedpeer.networks.bayesian import inverse_softplus

#: Samples of the head for one estimate of the expected loss (section 5.1: "MC sampling is fixed to 5").
SAMPLES = 5

#: The terms of eq. (8) that make a confidence; "both" is the method, the others are the ablations of Tables 2 and 3.
Terms = Literal["both", "uncertainty", "deviation"]


@dataclass(frozen=True, eq=False)
class Head:
    """q(w) = N(mu, diag(sigma^2)) over the D numbers of a linear layer: weights (C, F) row by row, then C biases.

    mu_D    (..., D) the mean, which also predicts
    pi_D    (..., D) raw standard deviation: sigma = log(1 + exp(pi)) is positive whatever a gradient does to pi
    """

    mu_D: Tensor
    pi_D: Tensor

    @staticmethod
    def around(mu_D: Tensor, sigma: float) -> Head:
        """Return the head that a client starts with: mean mu_D and one standard deviation for all its numbers."""
        return Head(mu_D, inverse_softplus(torch.full_like(mu_D, sigma)))

    @cached_property
    def sigma_D(self) -> Tensor:
        """Standard deviations (..., D), in units of the weights."""
        return functional.softplus(self.pi_D)

    def sampled(self, noise_KD: Tensor) -> Tensor:
        """Return draws mu + sigma * noise, (..., K, D), for standard normal noise (..., K, D); eq. (11)."""
        return self.mu_D.unsqueeze(-2) + self.sigma_D.unsqueeze(-2) * noise_KD


def confidence(head: Head, w_D: Tensor, terms: Terms = "both") -> Tensor:
    """Return tau_j = 1 / rho_j^2 = D / (Tr Sigma_j + |mu_j - w|^2), (...); eq. (8).

    The ablations keep one of the two terms. With the deviation alone, a client whose head is exactly w, as all heads
    are at the start, would have variance 0; its rho is then still the initial one, which is its sigma.

    Args:
        head: the client's head, not yet trained on `w_D`.
        w_D: the global head that has just arrived.
        terms: the terms that are used; default both.
    """
    uncertainty = head.sigma_D.square().mean(-1)
    deviation = model_deviation(head, w_D)
    if terms == "uncertainty":
        return 1 / uncertainty
    if terms == "deviation":
        return 1 / torch.where(deviation > 0, deviation, uncertainty)
    return 1 / (uncertainty + deviation)


def model_deviation(head: Head, w_D: Tensor) -> Tensor:
    """Return |mu_j - w|^2 / D, (...), whose distribution figure 11 shows."""
    return (head.mu_D - w_D).square().mean(-1)


def feature_slopes(head: Head, z_NF: Tensor, y_N: Tensor, noise_KD: Tensor) -> Tensor:
    """Return the gradient at the features, (..., N, F), of the mean cross-entropy of K heads drawn from q.

    The base is trained on it (Algorithm 1, line 10), mini-batch by mini-batch.
    """
    delta_EN, weight_EF = _deltas(head, z_NF, y_N, noise_KD)
    return delta_EN.mT @ weight_EF / (noise_KD.shape[-2] * z_NF.shape[-2])


def free_energy_slopes(
    head: Head, z_NF: Tensor, y_N: Tensor, w_D: Tensor, tau: Tensor, noise_KD: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradient of a head's free energy at mu and at pi, (..., D) each.

    It is the negative of eq. (6), with its expectation taken over K samples: the sum of negative log-likelihoods over
    the N examples, plus the divergence from N(w, I / tau).
    """
    delta_EN, _ = _deltas(head, z_NF, y_N, noise_KD)
    rows = noise_KD.shape[:-1]
    at_head_KD = torch.cat(((delta_EN @ z_NF).reshape(*rows, -1), delta_EN.sum(-1).reshape(*rows, -1)), -1)
    sigma_D, pull = head.sigma_D, tau.unsqueeze(-1)
    at_mu_D = at_head_KD.mean(-2) + pull * (head.mu_D - w_D)
    at_sigma_D = (at_head_KD * noise_KD).mean(-2) + pull * sigma_D - 1 / sigma_D
    return at_mu_D, at_sigma_D * head.pi_D.sigmoid()


def _deltas(head: Head, z_NF: Tensor, y_N: Tensor, noise_KD: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax minus one-hot at the outputs of all K heads, (..., E, N), and their weights (..., E, F).

    E = K * C: the K heads are one wide layer, so that all of them cost one matrix product. Examples come last, because
    a softmax along a short last dimension takes many times as long.
    """
    heads_KD, features = head.sampled(noise_KD), z_NF.shape[-1]
    classes = heads_KD.shape[-1] // (features + 1)
    rows, of_each = heads_KD.shape[:-2], heads_KD.shape[:-1]
    weight_EF = heads_KD[..., : classes * features].reshape(*rows, -1, features)
    bias_E1 = heads_KD[..., classes * features :].reshape(*rows, -1, 1)
    delta_KCN = (weight_EF @ z_NF.mT + bias_E1).reshape(*of_each, classes, -1).softmax(-2)
    right_K1N = y_N.unsqueeze(-2).unsqueeze(-2).expand(*of_each, 1, -1)
    delta_KCN.scatter_add_(-2, right_K1N, delta_KCN.new_full((1,), -1.0).expand_as(right_K1N))
    return delta_KCN.flatten(-3, -2), weight_EF


@torch.no_grad()
def train_head(
    head: Head,
    z_NF: Tensor,
    y_N: Tensor,
    w_D: Tensor,
    tau: Tensor,
    noise: Iterable[Tensor],
    *,
    lr: float,
    momentum: float = 0.9,
) -> Head:
    """Return the head after one full-batch step of SGD for each noise (..., K, D): Algorithm 1, line 9.

    The features z (..., N, F) are constant, since the base is trained afterwards; momentum starts from zero each round.
    A client keeps its old head if its steps diverged (the data term is a sum, so lr must fall as N grows).
    """
    at = head
    velocity = torch.zeros_like(head.mu_D), torch.zeros_like(head.pi_D)
    for noise_KD in noise:
        slopes = free_energy_slopes(at, z_NF, y_N, w_D, tau, noise_KD)
        velocity = momentum * velocity[0] + slopes[0], momentum * velocity[1] + slopes[1]
        at = Head(at.mu_D - lr * velocity[0], at.pi_D - lr * velocity[1])
    # The logarithm is checked because the KL needs it: a sigma that has become 0 never leaves 0 again.
    sane = (at.mu_D.isfinite() & at.sigma_D.log().isfinite()).all(-1, keepdim=True)
    return Head(torch.where(sane, at.mu_D, head.mu_D), torch.where(sane, at.pi_D, head.pi_D))
