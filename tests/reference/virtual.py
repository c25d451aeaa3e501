"""VIRTUAL with all clients in one place: the prior's shares, the initial factors, a whole round, its free energy.

Sources: Corinzia, Buhmann, 2019 ("2019") and Corinzia, Beuret, Buhmann, 2021 ("2021"), both Variational federated
multi-task learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from fedpeer.algorithms.gaussian import Gaussian, product
from fedpeer.algorithms.virtual import Aggregate, Exponent, Positivity, applied


def prior_exponents(sizes_K: Tensor, rule: Exponent) -> Tensor:
    """Return the prior's exponent e_i (K,) for each of K clients with `sizes_K` training examples, floating point.

    "1/K" (2021, eq. 3) and "n/N" add up to 1, so that the product has the prior once; "1" (2019, eq. 3) counts it K
    times.
    """
    match rule:
        case "1/K":
            return torch.full_like(sizes_K, 1 / len(sizes_K))
        case "n/N":
            return sizes_K / sizes_K.sum()
        case "1":
            return torch.ones_like(sizes_K)
    assert_never(rule)


def initial_factors(server: Gaussian, shares_K: Tensor) -> Gaussian:
    """Return K factors (K, ..., D) whose product is the server's first posterior; the shares (K,) add up to 1."""
    return server ** shares_K.reshape(-1, *[1] * server.chi_D.dim())


def aggregate(
    server: Gaussian, deltas_AD: Gaussian, *, positivity: Positivity = "shrink", server_lr: float = 1.0
) -> Aggregate:
    """Multiply the deltas (A, ..., D) of A active clients into the server (2021, algorithm 1, lines 10-11).

    If gamma * A <= 1 - LEAST_LEFT no rule is needed, since the server then is an average of itself and the posteriors
    that were trained from it. `server_lr`: see `applied`.
    """
    return applied(server, product(deltas_AD), positivity=positivity, server_lr=server_lr)


@dataclass(frozen=True)
class FreeEnergy:
    """The parts of a client's variational free energy, all in nats (2019 and 2021, eq. 3).

    log_likelihood  (...) expected log-likelihood of all the client's data
    kl_shared       (...) from the shared posterior to the reference, summed over weights
    kl_private      (...) from the private posterior to its prior, summed over weights
    """

    log_likelihood: Tensor
    kl_shared: Tensor
    kl_private: Tensor

    def value(self, beta: float = 1.0) -> Tensor:
        """Return the free energy (...) in nats; `beta` multiplies both divergences (2021, section II.B)."""
        return beta * (self.kl_shared + self.kl_private) - self.log_likelihood

    def per_sample(self, points: int, beta: float = 1.0) -> Tensor:
        """Return the nats (...) per training example, which are minimised so that step sizes do not depend on how much
        data there is."""
        return self.value(beta) / points


def joined(mu: Mapping[str, Tensor], rho: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters that `split` took apart."""
    parameters = dict[str, Tensor]()
    for kind, tensors in (("mu", mu), ("rho", rho)):
        for name, tensor in tensors.items():
            path, _, last = name.rpartition(".")
            parameters[".".join(filter(None, (path, kind, last)))] = tensor
    return parameters


def gaussian_kl(posterior: Gaussian, reference: Gaussian) -> Tensor:
    """Return the Kullback-Leibler divergence from `posterior` to `reference`, (..., D) in nats, exact.

    Both are distributions. With a the posterior and b the reference: 1/2 [ xi_b (mu_a - mu_b)^2 + xi_b / xi_a - 1 -
    log(xi_b / xi_a) ].
    """
    ratio_D = reference.xi_D / posterior.xi_D
    apart_D = posterior.mu_D - reference.mu_D
    # In this order float32 keeps the digits of two close Gaussians: ratio - 1 is exact, and as small as the logarithm.
    return 0.5 * (reference.xi_D * apart_D**2 + ((ratio_D - 1) - ratio_D.log()))
