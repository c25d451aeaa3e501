"""pFedBayes: each client has its own Bayesian network, held near a global distribution that is fitted to all of them.

A client's own posterior q_i minimises the expected loss plus zeta KL(q_i || w), and the client's copy of the global
distribution w takes a step towards q_i after each batch (lines 8-11). The server takes the means of the copies' means
and standard deviations. Noise is standard normal. The loss is a mean over a batch, so the divergence is divided by the
client's number of examples: its weight is zeta / n_k. The paper gives all clients the same weight; here the mean is
weighted by n_k as in FedAvg, which is the same if all clients have equally many examples.

Source: Zhang, Li, Li, Guo, Wang, Personalized Federated Learning via Variational Bayesian Inference, 2022, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.bayesian_training import BayesianTraining, Posterior, training_of
from fedpeer.algorithms.coordinated import AlgorithmError, CoordinatedAlgorithm
from fedpeer.algorithms.draws import branch
from fedpeer.algorithms.leaves import combined, divided
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.networks.bayesian import Estimator, inverse_softplus
from fedpeer.rejection import Rejection


@dataclass(frozen=True, eq=False)
class PFedBayesServer:
    """The global distribution w = N(mu, sigma^2), which the server holds and broadcasts.

    mu_n      (n,) means
    sigma_n   (n,) standard deviations
    """

    mu_n: Tensor
    sigma_n: Tensor


@dataclass(frozen=True, eq=False)
class PFedBayesUpdate(PFedBayesServer):
    """Update of a client: its copy of w after the round, (..., n), and n_k (...)."""

    examples: Tensor


@dataclass(frozen=True, eq=False)
class PFedBayesClient:
    """State of a client: its own posterior N(mu, softplus(rho)^2), (..., n), and n_k (...)."""

    mu_n: Tensor
    rho_n: Tensor
    examples: Tensor


@dataclass(frozen=True)
class PFedBayes(CoordinatedAlgorithm[PFedBayesServer, PFedBayesClient, PFedBayesServer, PFedBayesUpdate]):
    """A Bayesian network for each client, held near a global one by the divergence between them.

    lr * zeta / (n_k sigma^2) must stay below 2, or the steps overshoot.

    Args:
        zeta: weight of the divergence, > 0; default 1.0.
        sigma: standard deviation of all weights at the start, > 0, in units of the weights; default 0.1.
        personal_steps: optimizer steps on each batch, >= 1; default 5.
        global_lr: rate > 0 of the plain step by which w follows q_i after each batch; default: the optimizer's rate.
        server_rate: beta > 0, weight of the clients' mean in the server's next distribution; default 1.0. Standard
            deviations move at most to their mean: beyond it they could be negative.
        estimator: how weights are drawn: "local" (default), "flipout" or "weights" (`networks/bayesian.py`).
        samples: draws of the weights in each step, >= 1; default 1.
    """

    context: TrainingContext
    _: KW_ONLY
    zeta: float = 1.0
    sigma: float = 0.1
    personal_steps: int = 5
    global_lr: float | None = None
    server_rate: float = 1.0
    estimator: Estimator = "local"
    samples: int = 1
    bayesian = True
    moved = ("mu_n",)
    positive = ("sigma_n",)

    def __post_init__(self) -> None:
        for name in ("zeta", "sigma", "server_rate", "global_lr"):
            if not (getattr(self, name) is None or getattr(self, name) > 0):
                raise AlgorithmError(f"{name} = {getattr(self, name):g}: write a number above 0")
        for name in ("personal_steps", "samples"):
            if getattr(self, name) < 1:
                raise AlgorithmError(f"{name} = {getattr(self, name)}: write 1 or more")
        assert self._training, "built now, so that what it refuses is refused now"

    @cached_property
    def _training(self) -> BayesianTraining:
        return training_of(self.context, estimator=self.estimator, samples=self.samples)

    def start_server(self, values_n: Tensor) -> PFedBayesServer:
        return PFedBayesServer(values_n, torch.full_like(values_n, self.sigma))

    def start_client(self, values_n: Tensor, examples: Tensor) -> PFedBayesClient:
        own = Posterior.around(values_n, self.sigma)
        return PFedBayesClient(own.mu_n, own.rho_n, examples)

    def open(self, server: PFedBayesServer, round: int) -> PFedBayesServer:
        return server

    def train(
        self, client: PFedBayesClient, broadcast: PFedBayesServer, batches: Batches, keys: Sequence[int]
    ) -> tuple[PFedBayesClient, PFedBayesUpdate]:
        strength = self.zeta / client.examples.to(client.mu_n.dtype)
        rate = (self.context.optimizer.lr if self.global_lr is None else self.global_lr) * strength.unsqueeze(-1)
        own = Posterior(client.mu_n, client.rho_n)
        w = Posterior(broadcast.mu_n.expand_as(client.mu_n), inverse_softplus(broadcast.sigma_n).expand_as(client.mu_n))
        for step in range(batches.steps):
            same = batches.taking([step] * self.personal_steps)
            held_to = w.gaussian
            own = self._training(own, held_to, strength, same, [branch(key, step) for key in keys])
            w = _followed(w, held_to.xi_D, own, rate)
        return PFedBayesClient(own.mu_n, own.rho_n, client.examples), PFedBayesUpdate(
            w.mu_n, w.sigma_n, client.examples
        )

    def close(self, server: PFedBayesServer, updates: PFedBayesUpdate) -> PFedBayesServer:
        sent = PFedBayesServer(updates.mu_n, updates.sigma_n)
        mean = divided(server, self.context.mean(combined(sent), updates.examples))
        return PFedBayesServer(
            torch.lerp(server.mu_n, mean.mu_n, self.server_rate),
            torch.lerp(server.sigma_n, mean.sigma_n, min(self.server_rate, 1.0)),
        )

    def server_fault(self, server: PFedBayesServer) -> Rejection | None:
        negative = not bool((server.sigma_n > 0).all())
        return Rejection("bad_precision", "a standard deviation is not above 0") if negative else None

    def server_model(self, server: PFedBayesServer) -> Tensor:
        return server.mu_n

    def personal_model(self, client: PFedBayesClient) -> Tensor:
        return client.mu_n


def _followed(w: Posterior, xi_n: Tensor, own: Posterior, rate: Tensor) -> Posterior:
    """Return w after a step down KL(q || w) in its (mu, rho).

    KL(q || w) = log(s_w / s_q) + (s_q^2 + (m_q - m_w)^2) / (2 s_w^2) - 1/2.

    Args:
        xi_n: the precisions 1 / s_w^2 of w.
    """
    apart_n = w.mu_n - own.mu_n
    by_sigma_n = (1 - xi_n * (own.sigma_n.square() + apart_n.square())) * xi_n.sqrt()
    return Posterior(w.mu_n - rate * xi_n * apart_n, w.rho_n - rate * by_sigma_n * w.rho_n.sigmoid())
