"""Case 04 with other numbers of weights than its own two and two: the adapter takes the numbers from the case.

Expected values come from closed formulas in plain floats and numpy, without any code of the product.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.golden.adapters_virtual import Case, free_energy
from tests.golden.compare import compare

Floats = NDArray[np.float64]


def case(shared: int, private: int) -> Case:
    """Return inputs of a case 04 with these numbers of weights, drawn from a fixed seed."""
    draw = np.random.default_rng(1000 * shared + private)
    points = 7
    return {
        "A": draw.normal(size=(points, shared)).tolist(),
        "B": draw.normal(size=(points, private)).tolist(),
        "y": draw.normal(size=points).tolist(),
        "sigma_y": 0.7,
        "K": 4,
        "cavity_chi": draw.normal(size=shared).tolist(),
        "cavity_xi": draw.uniform(0.4, 0.9, shared).tolist(),
        "factor_mu": draw.normal(size=shared).tolist(),
        "factor_sigma": draw.uniform(0.5, 1.5, shared).tolist(),
        "private_mu": draw.normal(size=private).tolist(),
        "private_sigma": draw.uniform(0.2, 1.2, private).tolist(),
        "prior_sigma_shared": 1.3,
        "prior_sigma_private": 0.8,
        "beta": 0.02,
    }


def divergence(mu: Floats, sigma: Floats, other_mu: Floats | float, other_sigma: Floats | float) -> float:
    """Return the KL divergence of one diagonal Gaussian from another."""
    log = np.log(other_sigma / sigma)
    return float((log + (sigma**2 + (mu - other_mu) ** 2) / (2 * np.square(other_sigma)) - 0.5).sum())


def expected(inputs: Case) -> Case:
    """Return all leaves of a case 04, by the formulas of its description."""
    x = np.concatenate([np.array(inputs["A"]), np.array(inputs["B"])], axis=1)
    y, noise, points = np.array(inputs["y"]), inputs["sigma_y"], len(inputs["y"])
    cavity_chi, cavity_xi = np.array(inputs["cavity_chi"]), np.array(inputs["cavity_xi"])
    factor_xi = np.array(inputs["factor_sigma"]) ** -2.0
    shared_xi = cavity_xi + factor_xi
    shared_mu = (cavity_chi + np.array(inputs["factor_mu"]) * factor_xi) / shared_xi
    private_mu, private_sigma = np.array(inputs["private_mu"]), np.array(inputs["private_sigma"])

    def likelihood(mu: Floats, sigma: Floats) -> float:
        squares = ((y - x @ mu) ** 2).sum() + (sigma**2 * (x**2).sum(0)).sum()
        return float(-0.5 * points * math.log(2 * math.pi * noise**2) - squares / (2 * noise**2))

    now = likelihood(np.concatenate([shared_mu, private_mu]), np.concatenate([shared_xi**-0.5, private_sigma]))
    found: Case = {
        "shared_posterior_mu": shared_mu.tolist(),
        "shared_posterior_sigma": (shared_xi**-0.5).tolist(),
        "expected_log_likelihood": now,
    }
    for name, exponent in (("v1_full_prior", 1.0), ("v2_prior_1_over_K", 1 / inputs["K"])):
        # The prior's mean is 0, so it adds to the precision alone.
        xi = cavity_xi + exponent / inputs["prior_sigma_shared"] ** 2
        mu, sigma, own = cavity_chi / xi, xi**-0.5, inputs["prior_sigma_private"]
        kl_shared = divergence(shared_mu, shared_xi**-0.5, mu, sigma)
        kl_private = divergence(private_mu, private_sigma, 0.0, own)
        prior_xi = np.concatenate([xi, np.full(len(private_mu), own**-2.0)])
        gram = x.T @ x / noise**2
        chi = np.concatenate([cavity_chi, np.zeros(len(private_mu))]) + x.T @ y / noise**2
        best_mu, best_xi = np.linalg.solve(gram + np.diag(prior_xi), chi), prior_xi + gram.diagonal()
        best_sigma, split = best_xi**-0.5, len(shared_mu)
        least = divergence(best_mu[:split], best_sigma[:split], mu, sigma)
        least += divergence(best_mu[split:], best_sigma[split:], 0.0, own) - likelihood(best_mu, best_sigma)
        scaled = inputs["beta"] * (kl_shared + kl_private) - now
        found[name] = {
            "reference_mu": mu.tolist(),
            "reference_sigma": sigma.tolist(),
            "kl_shared": kl_shared,
            "kl_private": kl_private,
            "free_energy": kl_shared + kl_private - now,
            "free_energy_beta": {"beta": inputs["beta"], "value": scaled},
            "per_sample_objective_beta": {"beta": inputs["beta"], "value": scaled / points},
            "optimum": {
                "shared_mu": best_mu[:split].tolist(),
                "shared_sigma": best_sigma[:split].tolist(),
                "private_mu": best_mu[split:].tolist(),
                "private_sigma": best_sigma[split:].tolist(),
                "new_factor_chi": ((best_mu * best_xi)[:split] - cavity_chi).tolist(),
                "new_factor_xi": (best_xi[:split] - cavity_xi).tolist(),
                "free_energy": least,
            },
        }
    return found


@pytest.mark.parametrize(("shared", "private"), [(2, 2), (2, 3), (3, 2), (4, 1)])
def test_the_free_energy_of_any_number_of_weights(shared: int, private: int) -> None:
    inputs = case(shared, private)
    leaves = compare(expected(inputs), free_energy(inputs), {"atol": 1e-9})
    wrong: list[Any] = [str(leaf) for leaf in leaves if not leaf.agrees]
    assert not wrong
    assert len(leaves) > 40
