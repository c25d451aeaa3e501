"""VIRTUAL's algebra: the product law, exact inference where it is known, positivity, pruning and its bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedpeer.algorithms import virtual
from fedpeer.algorithms.gaussian import Gaussian, product
from fedpeer.algorithms.leaves import stack_states
from fedpeer.networks.bayesian import BayesianLayer, bayesian, drawn_noise, inverse_softplus, sampled, split_parameters
from tests.reference.linear_gaussian import expected_log_likelihood, minimiser
from tests.reference.virtual import FreeEnergy, aggregate, gaussian_kl, initial_factors, joined, prior_exponents

K, D = 4, 6
PRIOR = Gaussian.of(torch.zeros(D, dtype=torch.float64), 1.0)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def apart(one: Gaussian, other: Gaussian) -> float:
    """Return the greatest difference of natural parameters, as a share of the greatest parameter."""
    parts = ((one.chi_D, other.chi_D), (one.xi_D, other.xi_D))
    return max(((a - b).abs().max() / b.abs().max().clamp_min(1.0)).item() for a, b in parts)


def shares() -> Tensor:
    return prior_exponents(torch.ones(K, dtype=torch.float64), "1/K")


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    gamma=st.floats(0.05, 1.0),
    percentile=st.sampled_from([None, 0.0, 50.0, 75.0, 100.0]),
    positivity=st.sampled_from(["shrink", "reject"]),
    rounds=st.lists(st.sets(st.integers(0, K - 1), min_size=1), min_size=1, max_size=12),
    widening=st.floats(0.05, 30.0),
)
@settings(max_examples=30, deadline=None)
def test_the_server_is_always_the_product_of_the_stored_factors(
    seed: int,
    gamma: float,
    percentile: float | None,
    positivity: virtual.Positivity,
    rounds: list[set[int]],
    widening: float,
) -> None:
    """This holds for any posteriors, damping, pruning and participants, also if deltas would leave no precision."""
    draw = generator(seed)
    server = Gaussian.of(torch.randn(D, generator=draw, dtype=torch.float64), 0.5)
    initial = initial_factors(server, shares())
    factors = {i: initial[i] for i in range(K)}
    for active in rounds:
        sent = {}
        for i in active:
            mean_D = torch.randn(D, generator=draw, dtype=torch.float64)
            posterior = Gaussian.of(mean_D, server.sigma_D * (0.1 + widening * torch.rand(D, generator=draw).double()))
            cavity = virtual.cavity(server, factors[i])
            delta = virtual.client_delta(posterior, cavity, factors[i], gamma=gamma)
            if percentile is not None:
                keep_D = virtual.kept_weights(virtual.update_snr(delta, posterior), percentile)
                delta = virtual.pruned(delta, keep_D)
            sent[i] = delta
        after = aggregate(server, stack_states(list(sent.values())), positivity=positivity)
        for i, delta in sent.items():
            factors[i] = virtual.stored(factors[i], delta, after.taken_D)
        # If a share takes nearly all of a coordinate, the rest carries the rounding of the whole.
        assert after.server.xi_D.ge(virtual.LEAST_LEFT * server.xi_D * (1 - 1e-9)).all()
        assert after.taken_D.ge(0).all()
        assert after.taken_D.le(1).all()
        server = after.server
    assert apart(product(stack_states(list(factors.values()))), server) < 1e-12


def exact(x_KND: Tensor, y_KN: Tensor, noise: float, *, prior: float) -> Gaussian:
    """Return the posterior of all data if each weight has its own observations; the prior counts `prior` times."""
    xi_D = prior * PRIOR.xi_D + x_KND.square().sum((0, 1)) / noise**2
    return Gaussian((x_KND * y_KN[..., None]).sum((0, 1)) / noise**2, xi_D)


@pytest.mark.parametrize(("rule", "counted"), [("1/K", 1.0), ("n/N", 1.0), ("1", float(K))])
def test_a_sequential_pass_over_a_conjugate_model_is_exact(rule: virtual.Exponent, counted: float) -> None:
    """One client at a time trains without damping; exponent 1 counts the prior K times, so exponents must sum to 1."""
    x_KND = torch.eye(D, dtype=torch.float64).repeat(K, 2, 1) * normal(K, 2 * D, 1, seed=1)
    y_KN, noise = normal(K, 2 * D, seed=2), 0.5
    exponents = prior_exponents(torch.tensor([5.0, 10.0, 3.0, 2.0], dtype=torch.float64), rule)
    server = Gaussian.of(normal(D, seed=3), 0.3)
    initial = initial_factors(server, shares())
    factors = [initial[i] for i in range(K)]
    for i in range(K):
        cavity = virtual.cavity(server, factors[i])
        against = virtual.reference(cavity, PRIOR, exponents[i].item())
        delta = virtual.client_delta(minimiser(x_KND[i], y_KN[i], against, noise), cavity, factors[i])
        factors[i] = virtual.stored(factors[i], delta)
        server = aggregate(server, stack_states([delta])).server
    assert apart(server, exact(x_KND, y_KN, noise, prior=counted)) < 1e-10


@pytest.mark.slow
def test_parallel_damped_rounds_end_at_the_same_posterior() -> None:
    x_KND = torch.eye(D, dtype=torch.float64).repeat(K, 2, 1) * normal(K, 2 * D, 1, seed=4)
    y_KN, noise = normal(K, 2 * D, seed=5), 0.5
    server = PRIOR
    factors_KD = initial_factors(server, shares())
    for _ in range(150):
        deltas = []
        for i in range(K):
            cavity = virtual.cavity(server, factors_KD[i])
            posterior = minimiser(x_KND[i], y_KN[i], virtual.reference(cavity, PRIOR, 1 / K), noise)
            deltas.append(virtual.client_delta(posterior, cavity, factors_KD[i], gamma=0.2))
        sent_KD = stack_states(deltas)
        after = aggregate(server, sent_KD)
        server, factors_KD = after.server, virtual.stored(factors_KD, sent_KD, after.taken_D)
    assert apart(server, exact(x_KND, y_KN, noise, prior=1.0)) < 1e-9


def test_the_exponents_that_share_the_prior_add_up_to_one() -> None:
    sizes_K = torch.tensor([120.0, 60.0, 20.0])
    assert prior_exponents(sizes_K, "1/K").sum().item() == pytest.approx(1)
    assert prior_exponents(sizes_K, "n/N").tolist() == pytest.approx([0.6, 0.3, 0.1])
    assert prior_exponents(sizes_K, "1").tolist() == [1, 1, 1]


@pytest.mark.slow
@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_enough_damping_needs_no_rule_for_positivity(seed: int, active: int) -> None:
    """The server becomes an average of itself and the posteriors, so no posterior of a client makes it improper."""
    draw = generator(seed)
    server = Gaussian.of(torch.zeros(D, dtype=torch.float64), 0.1)
    factors_AD = initial_factors(server, torch.full((active,), 1 / active, dtype=torch.float64))
    gamma = (1 - virtual.LEAST_LEFT) / active
    wide = Gaussian.of(torch.zeros(D, dtype=torch.float64), 1e3 + torch.rand(D, generator=draw).double())
    deltas = [virtual.client_delta(wide, server / factors_AD[i], factors_AD[i], gamma=gamma) for i in range(active)]
    after = aggregate(server, stack_states(deltas))
    assert after.taken_D.tolist() == [1.0] * D
    assert (after.server.xi_D > 0).all()


def test_a_coordinate_that_would_lose_its_precision_is_shrunk_or_rejected_alone() -> None:
    server = Gaussian(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([4.0, 4.0, 4.0]))
    deltas_AD = Gaussian(torch.tensor([[1.0, 1.0, 1.0]] * 2), torch.tensor([[-3.0, -1.0, 2.0]] * 2))
    shrunk, rejected = (aggregate(server, deltas_AD, positivity=rule) for rule in ("shrink", "reject"))
    assert shrunk.taken_D.tolist() == pytest.approx([0.66, 1, 1])
    assert shrunk.server.xi_D.tolist() == pytest.approx([0.04, 2, 8])
    assert shrunk.server.chi_D.tolist() == pytest.approx([3.32, 3, 5])
    assert rejected.taken_D.tolist() == [0, 1, 1]
    assert rejected.server.xi_D.tolist() == [4, 2, 8]


def test_the_start_of_the_ablation_replaces_the_own_factor() -> None:
    server, factor = Gaussian.of(normal(D, seed=6), 0.5), Gaussian.of(normal(D, seed=7), 2.0)
    start = virtual.fedavg_start(server, virtual.cavity(server, factor), 0.25)
    assert apart(start, server * server**0.25 / factor) < 1e-12
    assert apart(virtual.fedavg_start(server, server / server**0.25, 0.25), server) < 1e-12


def test_what_is_pruned_from_a_delta_is_the_factor_one_and_the_rest_is_as_it_was() -> None:
    factor, cavity = Gaussian.of(normal(D, seed=16), 0.5), Gaussian.of(normal(D, seed=17), 0.7)
    posterior, keep_D = Gaussian.of(normal(D, seed=18), 0.3), torch.arange(D) % 2 == 0
    whole = virtual.client_delta(posterior, cavity, factor, gamma=0.5)
    sparse = virtual.pruned(whole, keep_D)
    for found, wanted in ((sparse.chi_D, whole.chi_D), (sparse.xi_D, whole.xi_D)):
        assert torch.equal(found, wanted.where(keep_D, 0.0))
        assert wanted.all()


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.integers(0, 100))
def test_the_threshold_is_numpy_s_percentile(ratios: list[float], percentile: int) -> None:
    snr_D = torch.tensor(ratios, dtype=torch.float64)
    right = np.percentile(np.array(ratios), percentile)
    assert virtual.snr_threshold(snr_D, percentile).item() == pytest.approx(float(right), rel=1e-12, abs=1e-12)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.integers(1, 200), st.integers(0, 100), st.integers(0, 2**32))
def test_the_share_that_is_kept_is_what_the_percentile_leaves(size: int, percentile: int, seed: int) -> None:
    snr_D = torch.randperm(size, generator=generator(seed)).double()
    keep_D = virtual.kept_weights(snr_D, percentile)
    assert int(keep_D.sum()) == size - -(-percentile * (size - 1) // 100)
    assert keep_D[snr_D.argmax()]
    assert torch.equal(keep_D, snr_D >= snr_D[keep_D].min())


def test_each_row_of_many_tensors_has_its_own_threshold() -> None:
    snr_PD = normal(3, 11, seed=8).abs()
    assert torch.equal(
        virtual.kept_weights(snr_PD, 75), torch.stack([virtual.kept_weights(row_D, 75) for row_D in snr_PD])
    )


def test_bytes_are_those_of_values_and_places() -> None:
    """A 784-100-10 network of 79k weights, 75% pruned, needs 47% less than float32 without distributions, not 50%."""
    size = 784 * 100 + 100 * 10
    quarter = size // 4
    assert virtual.delta_bytes(size, size, "none") == 8 * size
    assert virtual.delta_bytes(size, quarter, "bitmap") == 8 * quarter + size // 8
    assert virtual.delta_bytes(size, quarter, "list") == 8 * quarter + -(-17 * quarter // 8)
    assert virtual.delta_bytes(size, quarter, "bitmap") / (4 * size) == pytest.approx(0.53, abs=0.005)
    assert virtual.delta_bytes(size, 10, "list") < virtual.delta_bytes(size, 10, "bitmap")


def regression() -> tuple[Tensor, Tensor, Gaussian]:
    return normal(30, D, seed=9), normal(30, seed=10), Gaussian.of(normal(D, seed=11), 0.7)


def log_likelihood_by_sampling(
    made: BayesianLayer, x_ND: Tensor, y_N: Tensor, noise: float, draws: int
) -> tuple[Tensor, float]:
    """Return the mean over draws of a Bayesian layer's log-likelihood, and its standard error."""
    out_SN = sampled(made, x_ND.repeat(draws, 1), drawn_noise(generator(12))).reshape(draws, -1)
    each_S = (-((y_N - out_SN) ** 2) / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))).sum(1)
    return each_S.mean(), each_S.std().item() / draws**0.5


def test_what_a_bayesian_layer_samples_is_the_exact_free_energy_and_slope() -> None:
    x_ND, y_N, posterior = regression()
    made = bayesian(nn.Linear(D, 1, bias=False).double(), estimator="local", sigma=1.0)
    assert isinstance(made, BayesianLayer)
    state = {"weight": posterior.mu_D[None]}, {"weight": inverse_softplus(posterior.sigma_D)[None]}
    made.load_state_dict(joined(*state))
    mean, error = log_likelihood_by_sampling(made, x_ND, y_N, 0.5, draws=4000)
    mu, rho = (each["weight"] for each in split_parameters(made))
    exact = expected_log_likelihood(x_ND, y_N, Gaussian.of(mu[0], functional.softplus(rho[0])), 0.5)
    assert abs(mean.item() - exact.item()) < 5 * error
    for found, right in zip(*(torch.autograd.grad(each, (mu, rho)) for each in (mean, exact)), strict=True):
        assert (found - right).norm() < 0.05 * right.norm()


def test_no_step_from_the_minimiser_lowers_the_free_energy() -> None:
    x_ND, y_N, reference = regression()
    best = minimiser(x_ND, y_N, reference, 0.5)
    mu_D, sigma_D = best.mu_D.requires_grad_(), best.sigma_D.requires_grad_()
    found = Gaussian.of(mu_D, sigma_D)
    none = torch.zeros((), dtype=torch.float64)
    energy = FreeEnergy(expected_log_likelihood(x_ND, y_N, found, 0.5), gaussian_kl(found, reference).sum(), none)
    slopes = torch.autograd.grad(energy.value(), (mu_D, sigma_D))
    assert max(slope.abs().max().item() for slope in slopes) < 1e-9


def test_closed_formulas_take_clients_as_a_leading_dimension() -> None:
    x_PND, y_PN, against = normal(3, 7, D, seed=13), normal(3, 7, seed=14), Gaussian.of(normal(3, D, seed=15), 0.7)
    best = minimiser(x_PND, y_PN, against, 0.5)
    likelihood_P = expected_log_likelihood(x_PND, y_PN, best, 0.5)
    for p in range(3):
        alone = minimiser(x_PND[p], y_PN[p], against[p], 0.5)
        assert apart(best[p], alone) < 1e-12
        likelihood = expected_log_likelihood(x_PND[p], y_PN[p], alone, 0.5)
        assert likelihood_P[p].item() == pytest.approx(likelihood.item())
