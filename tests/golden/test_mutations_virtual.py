"""The golden cases of VIRTUAL turn red when one function that their adapters call has a wrong sign, order or index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpeer.algorithms import virtual
from fedpeer.algorithms.gaussian import Gaussian
from fedpeer.networks.bayesian import BayesianLayer, NoiseSource, reparametrised
from fedpeer.networks.lateral import ClientLayer
from tests.golden.adapters_virtual import ADAPTERS
from tests.golden.mutating import assert_turned_red, name_of, needs_golden
from tests.reference.linear_gaussian import expected_log_likelihood, minimiser
from tests.reference.virtual import FreeEnergy, aggregate, gaussian_kl

HERE = "tests.golden.adapters_virtual"
VIRTUAL = "fedpeer.algorithms.virtual"
GAUSSIAN = "fedpeer.algorithms.gaussian.Gaussian"
#: The functions as they were before any mutation.
DELTA, DAMPED, CLIENT_DELTA, AGGREGATE, REFERENCE = (
    virtual.delta,
    virtual.damped,
    virtual.client_delta,
    aggregate,
    virtual.reference,
)
MOMENTS = BayesianLayer.moments


def ratio_reversed(one: Gaussian, other: Gaussian) -> Gaussian:
    return Gaussian(other.chi_D - one.chi_D, other.xi_D - one.xi_D)


def kl_reversed(posterior: Gaussian, reference: Gaussian) -> Tensor:
    return gaussian_kl(reference, posterior)


def kl_with_the_mean_by_the_wrong_precision(posterior: Gaussian, reference: Gaussian) -> Tensor:
    """Repeat the mistake of the published program."""
    wrong = Gaussian(reference.chi_D / posterior.xi_D * reference.xi_D, reference.xi_D)
    return gaussian_kl(posterior, wrong)


def sum_of_moments(one: Gaussian, other: Gaussian) -> Gaussian:
    """Multiply distributions by adding their means and deviations."""
    return Gaussian.of(one.mu_D + other.mu_D, one.sigma_D + other.sigma_D)


def old_for_new(new: Gaussian, old: Gaussian, gamma: float) -> Gaussian:
    return DAMPED(new, old, 1 - gamma)


def damping_forgotten(*arguments: Any, gamma: float, **named: Any) -> Gaussian:
    return CLIENT_DELTA(*arguments, **named)


def prior_forgotten(cavity: Gaussian, prior: Gaussian, exponent: float) -> Gaussian:
    return cavity


def prior_divided_out(cavity: Gaussian, prior: Gaussian, exponent: float) -> Gaussian:
    return REFERENCE(cavity, prior, -exponent)


def first_delta_only(server: Gaussian, deltas: Gaussian, **named: Any) -> virtual.Aggregate:
    return AGGREGATE(server, deltas[:1], **named)


def server_lr_forgotten(server: Gaussian, deltas: Gaussian, **named: Any) -> virtual.Aggregate:
    return AGGREGATE(server, deltas)


def delta_reversed(new: Gaussian, old: Gaussian) -> Gaussian:
    return DELTA(old, new)


def precision_of_the_delta_clipped(new: Gaussian, old: Gaussian) -> Gaussian:
    return DELTA(new, old).floored(0.0)


def mean_kept_when_floored(factor: Gaussian, least: float) -> Gaussian:
    return Gaussian(factor.chi_D, factor.xi_D.abs().clamp_min(least))


def by_the_old_precision(delta: Gaussian, new: Gaussian) -> Tensor:
    return delta.chi_D.abs() / (new / delta).xi_D.sqrt()


def nearest_rank(snr_D: Tensor, percentile: float) -> Tensor:
    return snr_D.quantile(percentile / 100, interpolation="nearest")


def above_only(snr_D: Tensor, percentile: float) -> Tensor:
    return snr_D > virtual.snr_threshold(snr_D, percentile)


def mean_only_pruned(delta: Gaussian, keep_D: Tensor) -> Gaussian:
    return Gaussian(delta.chi_D * keep_D, delta.xi_D)


def spread_forgotten(x_ND: Tensor, y_N: Tensor, posterior: Gaussian, noise: float) -> Tensor:
    sure = Gaussian.of(posterior.mu_D, 1e-9)
    return expected_log_likelihood(x_ND, y_N, sure, noise)


def noise_squared(x_ND: Tensor, y_N: Tensor, reference: Gaussian, noise: float) -> Gaussian:
    return minimiser(x_ND, y_N, reference, noise**2)


def private_divergence_not_weighted(energy: FreeEnergy, beta: float = 1.0) -> Tensor:
    return beta * energy.kl_shared + energy.kl_private - energy.log_likelihood


def divergence_alone_per_sample(energy: FreeEnergy, points: int, beta: float = 1.0) -> Tensor:
    return energy.value(beta / points)


def deviation_for_variance(mean: Tensor, variance: Tensor, noise: NoiseSource) -> Tensor:
    return mean + variance * noise(mean)


def noise_backwards(mean: Tensor, variance: Tensor, noise: NoiseSource) -> Tensor:
    return reparametrised(mean, variance, lambda like: -noise(like))


def input_not_squared(layer: BayesianLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    return MOMENTS(layer, x)[0], MOMENTS(layer, x.abs().sqrt())[1]


def gate_of_their_mean(layer: ClientLayer, client: Tensor, server: Tensor) -> Tensor:
    lateral = layer.lateral(layer.activation(layer.shift(server))) * layer.gate.weight.mean()
    return torch.add(layer.own(client), lateral)


def shift_after_the_activation(layer: ClientLayer, client: Tensor, server: Tensor) -> Tensor:
    return torch.add(layer.own(client), layer.gate(layer.lateral(layer.shift(layer.activation(server)))))


def client_for_server(layer: ClientLayer, client: Tensor, server: Tensor) -> Tensor:
    return torch.add(layer.own(client), layer.gate(layer.lateral(layer.activation(layer.shift(client)))))


MUTATIONS: list[tuple[str, str, Callable[..., Any]]] = [
    ("03a_gaussian_product_ratio", f"{GAUSSIAN}.__truediv__", ratio_reversed),
    ("03a_gaussian_product_ratio", f"{GAUSSIAN}.__mul__", sum_of_moments),
    ("03a_gaussian_product_ratio", f"{HERE}.gaussian_kl", kl_reversed),
    ("03a_gaussian_product_ratio", f"{HERE}.gaussian_kl", kl_with_the_mean_by_the_wrong_precision),
    ("03b_virtual_cavity_delta_aggregation", f"{VIRTUAL}.damped", old_for_new),
    ("03b_virtual_cavity_delta_aggregation", f"{VIRTUAL}.client_delta", damping_forgotten),
    ("03b_virtual_cavity_delta_aggregation", f"{VIRTUAL}.delta", delta_reversed),
    ("03b_virtual_cavity_delta_aggregation", f"{HERE}.aggregate", first_delta_only),
    ("03b_virtual_cavity_delta_aggregation", f"{HERE}.aggregate", server_lr_forgotten),
    ("03b_virtual_cavity_delta_aggregation", f"{VIRTUAL}.reference", prior_divided_out),
    ("03c_negative_precision_delta", f"{VIRTUAL}.delta", precision_of_the_delta_clipped),
    ("03c_negative_precision_delta", f"{VIRTUAL}.delta", delta_reversed),
    ("03c_negative_precision_delta", f"{GAUSSIAN}.floored", mean_kept_when_floored),
    ("03d_snr_pruning", f"{VIRTUAL}.update_snr", by_the_old_precision),
    ("03d_snr_pruning", f"{VIRTUAL}.snr_threshold", nearest_rank),
    ("03d_snr_pruning", f"{VIRTUAL}.kept_weights", above_only),
    ("03d_snr_pruning", f"{VIRTUAL}.pruned", mean_only_pruned),
    ("04_virtual_free_energy_linear_gaussian", f"{HERE}.gaussian_kl", kl_reversed),
    ("04_virtual_free_energy_linear_gaussian", f"{HERE}.expected_log_likelihood", spread_forgotten),
    ("04_virtual_free_energy_linear_gaussian", f"{HERE}.minimiser", noise_squared),
    ("04_virtual_free_energy_linear_gaussian", f"{VIRTUAL}.reference", prior_forgotten),
    ("04_virtual_free_energy_linear_gaussian", f"{HERE}.FreeEnergy.value", private_divergence_not_weighted),
    ("04_virtual_free_energy_linear_gaussian", f"{HERE}.FreeEnergy.per_sample", divergence_alone_per_sample),
    ("10_local_reparametrisation", "fedpeer.networks.bayesian.reparametrised", noise_backwards),
    ("10_local_reparametrisation", f"{HERE}.reparametrised", deviation_for_variance),
    ("10_local_reparametrisation", "fedpeer.networks.bayesian.BayesianLayer.moments", input_not_squared),
    ("10_local_reparametrisation", f"{HERE}.gaussian_kl", kl_reversed),
    ("12_lateral_connections", "fedpeer.networks.lateral.ClientLayer.forward", gate_of_their_mean),
    ("12_lateral_connections", "fedpeer.networks.lateral.ClientLayer.forward", shift_after_the_activation),
    ("12_lateral_connections", "fedpeer.networks.lateral.ClientLayer.forward", client_for_server),
]


@needs_golden
@pytest.mark.parametrize(("stem", "target", "mutant"), MUTATIONS, ids=name_of)
def test_one_mistake_turns_the_case_red(
    stem: str, target: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_turned_red(stem, target, mutant, monkeypatch)


def test_every_adapter_has_a_mutation() -> None:
    assert {stem for stem, _, _ in MUTATIONS} == set(ADAPTERS)
