"""The objective of pFedVEM's heads, whose gradients `algorithms/pfedvem.py` has; the confidences of its figures."""

from __future__ import annotations

from torch import Tensor

from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.pfedvem import Head


def confidence_ratio(tau_J: Tensor) -> Tensor:
    """Return tau_j / (sum of all clients' tau), shape (..., J); figure 10 shows its distribution."""
    return tau_J / tau_J.sum(-1, keepdim=True)


def kl_up_to_constants(head: Head, w_D: Tensor, tau: Tensor) -> Tensor:
    """Return -sum log sigma_i + tau / 2 (Tr Sigma + |mu - w|^2), (...): eq. (10), first line."""
    sigma_D = head.sigma_D
    spread = (sigma_D.square() + (head.mu_D - w_D).square()).sum(-1)
    return tau / 2 * spread - sigma_D.log().sum(-1)


def kl_of_heads(head: Head, w_D: Tensor, tau: Tensor) -> Tensor:
    """Return KL[N(mu, Sigma) || N(w, I / tau)] in nats, exact, (...). tau: (...), > 0."""
    return kl_up_to_constants(head, w_D, tau) - head.mu_D.shape[-1] / 2 * (1 + tau.log())


def expected_loss(head: Head, z_NF: Tensor, y_N: Tensor, noise_KD: Tensor) -> Tensor:
    """Return the cross-entropy in nats, (...), the mean over the N examples and over K heads drawn from q.

    The base is trained on it (Algorithm 1, line 10), mini-batch by mini-batch, with the features as a function of its
    parameters and no gradient to the head.

    Args:
        z_NF: (..., N, F) features.
        y_N: (..., N) int64 classes.
        noise_KD: (..., K, D).
    """
    z_KNC = logits(z_NF.unsqueeze(-3), head.sampled(noise_KD))
    return LOSSES["cross-entropy"].value(z_KNC, y_N.unsqueeze(-2).expand(z_KNC.shape[:-1])).mean(-1)


def free_energy(head: Head, z_NF: Tensor, y_N: Tensor, w_D: Tensor, tau: Tensor, noise_KD: Tensor) -> Tensor:
    """Return the objective of a head's training, (...): sum of negative log-likelihoods over its N examples, plus KL.

    It is the negative of eq. (6), with its expectation taken over K samples.
    """
    return z_NF.shape[-2] * expected_loss(head, z_NF, y_N, noise_KD) + kl_of_heads(head, w_D, tau)


def logits(z_NF: Tensor, head_D: Tensor) -> Tensor:
    """Return logits (..., N, C) from features z (..., N, F) and a head (..., D); prediction takes a head's mu_D."""
    features = z_NF.shape[-1]
    classes, rest = divmod(head_D.shape[-1], features + 1)
    assert rest == 0, f"{head_D.shape[-1]} numbers are no linear layer on {features} features"
    weight_CF = head_D[..., : classes * features].reshape(*head_D.shape[:-1], classes, features)
    return z_NF @ weight_CF.mT + head_D[..., None, classes * features :]
