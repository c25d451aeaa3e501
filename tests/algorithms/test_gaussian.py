"""Diagonal Gaussians in natural parameters, against densities, torch.distributions and the laws of powers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from fedpeer.algorithms.gaussian import PRECISION_FLOOR, Gaussian, kl_slopes, product
from fedpeer.algorithms.leaves import stack_states
from tests.reference.virtual import gaussian_kl

MEANS = st.lists(st.floats(-10, 10), min_size=3, max_size=3)
SIGMAS = st.lists(st.floats(0.01, 100), min_size=3, max_size=3)
DISTRIBUTIONS = st.builds(lambda mu, sigma: Gaussian.of(vector(mu), vector(sigma)), MEANS, SIGMAS)


def vector(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def same(one: Gaussian, other: Gaussian) -> bool:
    return all(
        torch.allclose(a, b, rtol=1e-9, atol=1e-9)
        for a, b in ((one.chi_D, other.chi_D), (one.xi_D, other.xi_D))
    )  # fmt: skip


def log_density(factor: Gaussian, at: float) -> Tensor:
    """Return the log density up to a constant, by the definition of natural parameters."""
    return factor.chi_D * at - 0.5 * factor.xi_D * at**2


@settings(max_examples=40)
@given(DISTRIBUTIONS)
def test_moments_come_back(given: Gaussian) -> None:
    assert same(Gaussian.of(given.mu_D, given.sigma_D), given)


@pytest.mark.slow
@settings(max_examples=40)
@given(DISTRIBUTIONS, DISTRIBUTIONS)
def test_the_product_s_density_is_the_product_of_the_densities(one: Gaussian, other: Gaussian) -> None:
    def log_product(at: float) -> Tensor:
        """Return the logarithm of the product of both densities, up to a constant."""
        return -(((at - one.mu_D) / one.sigma_D) ** 2 + ((at - other.mu_D) / other.sigma_D) ** 2) / 2

    together = one * other
    found = log_density(together, 1.3) - log_density(together, -0.4)
    assert torch.allclose(found, log_product(1.3) - log_product(-0.4), rtol=1e-7, atol=1e-7)


@pytest.mark.slow
@settings(max_examples=40)
@given(DISTRIBUTIONS, DISTRIBUTIONS)
def test_a_ratio_undoes_a_product(one: Gaussian, other: Gaussian) -> None:
    assert same(one * other / other, one)


@settings(max_examples=40)
@given(DISTRIBUTIONS, st.floats(0, 1))
def test_shares_of_a_factor_multiply_to_it(factor: Gaussian, share: float) -> None:
    assert same(factor**share * factor ** (1 - share), factor)


def test_a_power_may_differ_by_coordinate() -> None:
    factor = Gaussian.of(vector([1, 2, 3]), 0.5)
    assert same(factor ** vector([0, 1, 2]), Gaussian(vector([0, 8, 24]), vector([0, 4, 8])))


def test_the_product_of_a_stack_is_its_factors_multiplied() -> None:
    factors = [Gaussian.of(vector([mu, 0, 1]), mu + 2) for mu in (0.0, 1.0, 5.0)]
    assert same(product(stack_states(factors)), factors[0] * factors[1] * factors[2])
    assert same(stack_states(factors)[1], factors[1])


@pytest.mark.slow
@settings(max_examples=40)
@given(DISTRIBUTIONS, DISTRIBUTIONS)
def test_kl_is_that_of_torch(one: Gaussian, other: Gaussian) -> None:
    right = kl_divergence(Normal(one.mu_D, one.sigma_D), Normal(other.mu_D, other.sigma_D))
    assert torch.allclose(gaussian_kl(one, other), right, rtol=1e-7, atol=1e-9)


@settings(max_examples=40)
@given(DISTRIBUTIONS)
def test_kl_to_itself_is_nothing(one: Gaussian) -> None:
    assert gaussian_kl(one, one).abs().max() == 0


def test_kl_of_near_gaussians_keeps_its_digits_in_float32() -> None:
    """A server's and a client's posterior at a round's start have precisions of 1e4 that differ in the fifth digit."""
    sigma_D, other_D = torch.full((1000,), 0.01), torch.full((1000,), 0.01 * (1 + 2e-4))
    found = gaussian_kl(Gaussian.of(torch.zeros(1000), sigma_D), Gaussian.of(torch.zeros(1000), other_D)).sum().item()
    ratio = (sigma_D[0].double() / other_D[0].double()).item() ** 2
    assert found == pytest.approx(1000 * 0.5 * (ratio - 1 - math.log(ratio)), rel=1e-2)


@pytest.mark.slow
@settings(max_examples=40)
@given(DISTRIBUTIONS, DISTRIBUTIONS)
def test_closed_slopes_are_those_of_autograd(one: Gaussian, against: Gaussian) -> None:
    mu_D, sigma_D = one.mu_D.requires_grad_(), one.sigma_D.requires_grad_()
    right = torch.autograd.grad(gaussian_kl(Gaussian.of(mu_D, sigma_D), against).sum(), (mu_D, sigma_D))
    for found, wanted in zip(kl_slopes(mu_D, sigma_D, against), right, strict=True):
        # Where slopes cancel, only the rounding of their parts is left.
        assert torch.allclose(found, wanted, rtol=1e-7, atol=1e-7 * against.xi_D.max().item())


def test_a_floored_factor_is_a_distribution_that_pulls_as_before() -> None:
    factor = Gaussian(vector([2.0, 2.0, 2.0]), vector([-3.0, 0.0, 5.0]))
    assert factor.floored().xi_D.tolist() == [PRECISION_FLOOR, PRECISION_FLOOR, 5.0]
    assert torch.equal(factor.floored().chi_D, factor.chi_D)
    assert factor.floored().sigma_D.isfinite().all()
    assert factor.sigma_D[0].isnan()


def test_leading_dimensions_are_those_of_many() -> None:
    mu_PD, sigma_PD = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.rand(4, 3) + 0.1
    many, prior = Gaussian.of(mu_PD, sigma_PD), Gaussian.of(torch.zeros(3), 1.0)
    each = torch.stack([gaussian_kl(Gaussian.of(mu_PD[p], sigma_PD[p]) * prior, prior) for p in range(4)])
    assert torch.equal(gaussian_kl(many * prior, prior), each)
