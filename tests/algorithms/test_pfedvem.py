"""pFedVEM against closed forms, torch.distributions, torch.optim and the objective that it claims to maximise."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional

from fedpeer.algorithms.coordinated import weighted_mean
from fedpeer.algorithms.pfedvem import (
    SAMPLES,
    Head,
    confidence,
    feature_slopes,
    free_energy_slopes,
    model_deviation,
    train_head,
)
from fedpeer.gossip.mass import Mass
from fedpeer.networks.bayesian import inverse_softplus
from tests.reference.pfedvem import (
    confidence_ratio,
    expected_loss,
    free_energy,
    kl_of_heads,
    kl_up_to_constants,
    logits,
)
from tests.reference.synchronous import synchronous_round

F, C, N = 3, 4, 7
D = (F + 1) * C
LEADS = [(), (2,), (2, 3)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def a_head(*lead: int, seed: int = 1) -> Head:
    return Head(normal(*lead, D, seed=seed), normal(*lead, D, seed=seed + 100))


def a_problem(*lead: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return features, classes, w, tau and noise."""
    y_N = torch.randint(C, (*lead, N), generator=torch.Generator().manual_seed(3))
    tau = normal(*lead, seed=5).exp()
    return normal(*lead, N, F, seed=2), y_N, normal(D, seed=4), tau, normal(*lead, SAMPLES, D, seed=6)


def test_confidence_of_a_head_by_hand() -> None:
    head = Head(torch.tensor([1.0, 2.0]), inverse_softplus(torch.tensor([0.5, 1.0])))
    w_D = torch.tensor([1.0, 0.0])
    assert confidence(head, w_D).item() == pytest.approx(2 / (0.25 + 1 + 0 + 4))
    assert confidence(head, w_D, "uncertainty").item() == pytest.approx(2 / 1.25)
    assert confidence(head, w_D, "deviation").item() == pytest.approx(2 / 4)
    assert model_deviation(head, w_D).item() == pytest.approx(2)


@pytest.mark.parametrize("terms", ["both", "uncertainty", "deviation"])
def test_at_the_start_rho_is_the_initial_sigma_in_every_ablation(terms: str) -> None:
    w_D = normal(D)
    tau = confidence(Head.around(w_D.expand(5, D), 0.1), w_D, terms)  # type: ignore[arg-type]
    torch.testing.assert_close(tau**-0.5, torch.full((5,), 0.1, dtype=torch.float64))


def test_confidence_ratios_sum_to_one_and_keep_the_proportions() -> None:
    ratio_J = confidence_ratio(torch.tensor([[1.0, 3.0, 4.0]]))
    torch.testing.assert_close(ratio_J, torch.tensor([[0.125, 0.375, 0.5]]))


@settings(deadline=None)
@given(st.floats(1e-8, 1e6))
def test_inverse_softplus(sigma: float) -> None:
    pi = inverse_softplus(torch.tensor(sigma, dtype=torch.float64))
    assert functional.softplus(pi).item() == pytest.approx(sigma, rel=1e-7)


@pytest.mark.parametrize("lead", LEADS)
def test_kl_is_that_of_the_normal_distributions(lead: tuple[int, ...]) -> None:
    head, (_, _, w_D, tau, _) = a_head(*lead), a_problem(*lead)
    prior = Normal(w_D.expand_as(head.mu_D), tau.rsqrt().unsqueeze(-1).expand_as(head.mu_D))
    wanted = kl_divergence(Normal(head.mu_D, head.sigma_D), prior).sum(-1)
    torch.testing.assert_close(kl_of_heads(head, w_D, tau), wanted)


def test_gradients_of_kl_in_closed_form() -> None:
    head, (_, _, w_D, tau, _) = a_head(2), a_problem(2)
    mu_D, pi_D = head.mu_D.requires_grad_(), head.pi_D.requires_grad_()
    at_mu, at_pi = torch.autograd.grad(kl_of_heads(head, w_D, tau).sum(), (mu_D, pi_D))
    sigma_D = head.sigma_D.detach()
    torch.testing.assert_close(at_mu, tau.unsqueeze(-1) * (mu_D - w_D).detach())
    torch.testing.assert_close(at_pi, (tau.unsqueeze(-1) * sigma_D - 1 / sigma_D) * pi_D.detach().sigmoid())


def test_confidence_is_where_the_kl_has_its_minimum_in_tau() -> None:
    """Eq. (8) is the zero of the derivative of the server objective in tau."""
    head, w_D = a_head(6), normal(D, seed=4)
    tau = confidence(head, w_D).requires_grad_()
    (slope,) = torch.autograd.grad(kl_of_heads(head, w_D, tau).sum(), tau)
    torch.testing.assert_close(slope, torch.zeros(6, dtype=torch.float64), atol=1e-12, rtol=0)
    for factor in (0.9, 1.1):
        assert (kl_of_heads(head, w_D, factor * tau) > kl_of_heads(head, w_D, tau)).all()


def test_the_weighted_mean_is_where_the_sum_of_kl_has_its_minimum_in_w() -> None:
    """Eq. (9) is the zero of the derivative of the server objective in w."""
    head, tau_J = a_head(6), normal(6, seed=9).exp()
    w_D = weighted_mean(head.mu_D, tau_J).requires_grad_()
    (slope,) = torch.autograd.grad(kl_of_heads(head, w_D, tau_J).sum(), w_D)
    torch.testing.assert_close(slope, torch.zeros(D, dtype=torch.float64), atol=1e-12, rtol=0)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 6))
def test_taking_turns_never_raises_the_server_objective(seed: int, clients: int) -> None:
    head, w_D = a_head(clients, seed=seed), normal(D, seed=seed + 1)
    tau_J = confidence(head, w_D)
    before = math.inf
    for _ in range(4):
        for step in ("w", "tau"):
            w_D = weighted_mean(head.mu_D, tau_J) if step == "w" else w_D
            tau_J = confidence(head, w_D) if step == "tau" else tau_J
            now = kl_of_heads(head, w_D, tau_J).sum().item()
            assert now <= before + 1e-9 * abs(now)
            before = now


def test_less_certain_or_farther_is_less_confident() -> None:
    head, w_D = a_head(), normal(D, seed=4)
    tau = confidence(head, w_D)
    assert confidence(Head(head.mu_D, head.pi_D + 1), w_D) < tau
    assert confidence(Head(w_D + 2 * (head.mu_D - w_D), head.pi_D), w_D) < tau


@pytest.mark.parametrize("lead", LEADS)
def test_logits_are_those_of_a_linear_module(lead: tuple[int, ...]) -> None:
    layer = nn.Linear(F, C, dtype=torch.float64)
    head_D = torch.cat([layer.weight.ravel(), layer.bias])
    z_NF = normal(*lead, N, F)
    torch.testing.assert_close(logits(z_NF, head_D.expand(*lead, D)), layer(z_NF))


def slow_free_energy(
    mu_D: Tensor, sigma_D: Tensor, z_NF: Tensor, y_N: Tensor, w_D: Tensor, tau: Tensor, noise_KD: Tensor
) -> Tensor:
    """Return one client's free energy, computed example by example, sample by sample, number by number."""
    total = torch.zeros((), dtype=torch.float64)
    for noise_D in noise_KD:
        head_D = mu_D + sigma_D * noise_D
        weight_CF, bias_C = head_D[: C * F].reshape(C, F), head_D[C * F :]
        for z_F, y in zip(z_NF, y_N, strict=True):
            total = total - torch.log_softmax(weight_CF @ z_F + bias_C, 0)[y] / len(noise_KD)
    for mu, sigma, w in zip(mu_D, sigma_D, w_D, strict=True):
        rho = tau**-0.5
        total = total + torch.log(rho / sigma) + (sigma**2 + (mu - w) ** 2) / (2 * rho**2) - 0.5
    return total


@pytest.mark.parametrize("lead", LEADS)
def test_free_energy_is_the_sum_over_examples_plus_kl(lead: tuple[int, ...]) -> None:
    head, (z_NF, y_N, w_D, tau, noise_KD) = a_head(*lead), a_problem(*lead)
    found = free_energy(head, z_NF, y_N, w_D, tau, noise_KD)
    assert found.shape == lead
    flat = [x.reshape(-1, *x.shape[len(lead) :]) for x in (head.mu_D, head.sigma_D, z_NF, y_N, tau, noise_KD)]
    for one, (mu_D, sigma_D, z, y, each_tau, noise) in zip(found.reshape(-1), zip(*flat, strict=True), strict=True):
        torch.testing.assert_close(one, slow_free_energy(mu_D, sigma_D, z, y, w_D, each_tau, noise))


def test_twice_the_data_is_twice_the_data_term_and_the_same_prior() -> None:
    head, (z_NF, y_N, w_D, tau, noise_KD) = a_head(), a_problem()
    prior = kl_of_heads(head, w_D, tau)
    once = free_energy(head, z_NF, y_N, w_D, tau, noise_KD) - prior
    twice = free_energy(head, z_NF.repeat(2, 1), y_N.repeat(2), w_D, tau, noise_KD) - prior
    torch.testing.assert_close(twice, 2 * once)


def test_gradients_of_the_free_energy_in_closed_form() -> None:
    """The gradient is softmax minus one-hot, times features, through mu + sigma * noise, plus that of the KL."""
    head, (z_NF, y_N, w_D, tau, noise_KD) = a_head(), a_problem()
    mu_D, pi_D = head.mu_D.requires_grad_(), head.pi_D.requires_grad_()
    found = torch.autograd.grad(free_energy(head, z_NF, y_N, w_D, tau, noise_KD), (mu_D, pi_D))
    at_mu, sigma_D = tau * (mu_D - w_D).detach(), head.sigma_D.detach()
    at_sigma = tau * sigma_D - 1 / sigma_D
    for noise_D in noise_KD:
        delta_NC = logits(z_NF, mu_D.detach() + sigma_D * noise_D).softmax(-1) - functional.one_hot(y_N, C)
        at_head_D = torch.cat([(delta_NC.T @ z_NF).ravel(), delta_NC.sum(0)]) / SAMPLES
        at_mu, at_sigma = at_mu + at_head_D, at_sigma + at_head_D * noise_D
    torch.testing.assert_close(found, (at_mu, at_sigma * pi_D.detach().sigmoid()))


@pytest.mark.parametrize("lead", LEADS)
def test_closed_slopes_are_autograds(lead: tuple[int, ...]) -> None:
    head, (z_NF, y_N, w_D, tau, noise_KD) = a_head(*lead), a_problem(*lead)
    at = head.mu_D.requires_grad_(), head.pi_D.requires_grad_(), z_NF.requires_grad_()
    wanted = torch.autograd.grad(free_energy(head, z_NF, y_N, w_D, tau, noise_KD).sum(), at[:2])
    torch.testing.assert_close(free_energy_slopes(head, z_NF, y_N, w_D, tau, noise_KD), wanted)
    (at_z,) = torch.autograd.grad(expected_loss(head, z_NF, y_N, noise_KD).sum(), z_NF)
    torch.testing.assert_close(feature_slopes(head, z_NF, y_N, noise_KD), at_z)


def test_the_base_is_trained_on_a_mean_under_a_head_that_stays() -> None:
    """Line 10: the gradient at the features is the mean of the gradients under each sampled head."""
    head, (z_NF, y_N, _, _, noise_KD) = a_head(), a_problem()
    (found,) = torch.autograd.grad(expected_loss(head, z_NF.requires_grad_(), y_N, noise_KD), z_NF)
    wanted = torch.zeros_like(z_NF)
    for head_D in head.sampled(noise_KD):
        lost = functional.cross_entropy(logits(z_NF, head_D), y_N)
        wanted += torch.autograd.grad(lost, z_NF)[0] / SAMPLES
    torch.testing.assert_close(found, wanted)


def test_head_training_is_torch_s_sgd_with_fresh_momentum() -> None:
    head, (z_NF, y_N, w_D, tau, _) = a_head(), a_problem()
    noise = [normal(SAMPLES, D, seed=20 + step) for step in range(6)]
    kept = Head(head.mu_D.clone(), head.pi_D.clone())
    found = train_head(head, z_NF, y_N, w_D, tau, noise, lr=0.01)
    twin = [nn.Parameter(head.mu_D.clone()), nn.Parameter(head.pi_D.clone())]
    optimizer = torch.optim.SGD(twin, lr=0.01, momentum=0.9)
    for noise_KD in noise:
        optimizer.zero_grad()
        free_energy(Head(*twin), z_NF, y_N, w_D, tau, noise_KD).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.testing.assert_close((found.mu_D, found.pi_D), (twin[0].detach(), twin[1].detach()))
    assert not found.mu_D.requires_grad
    torch.testing.assert_close((head.mu_D, head.pi_D), (kept.mu_D, kept.pi_D), rtol=0, atol=0)


def test_a_block_of_clients_trains_as_each_alone_and_only_the_diverged_keeps_its_head() -> None:
    lead = 3
    head, (z_NF, y_N, w_D, tau, _) = a_head(lead), a_problem(lead)
    z_NF[1] *= 1e200
    noise = [normal(lead, SAMPLES, D, seed=20 + step) for step in range(4)]
    block = train_head(head, z_NF, y_N, w_D, tau, noise, lr=0.01)
    for j in range(lead):
        mine = (Head(head.mu_D[j], head.pi_D[j]), z_NF[j], y_N[j], w_D, tau[j], [each[j] for each in noise])
        alone = train_head(*mine, lr=0.01)
        torch.testing.assert_close((block.mu_D[j], block.pi_D[j]), (alone.mu_D, alone.pi_D))
        assert torch.equal(alone.mu_D, head.mu_D[j]) == (j == 1)


def test_a_sigma_that_vanished_counts_as_diverged() -> None:
    """In float32 softplus(-200) is 0, and the logarithm of 0 would stay in every later KL."""
    head = Head(torch.zeros(D), torch.zeros(D))
    z_NF, y_N = torch.zeros(N, F), torch.zeros(N, dtype=torch.int64)
    found = train_head(head, z_NF, y_N, torch.zeros(D), torch.tensor(1e3), [torch.zeros(SAMPLES, D)], lr=1.0)
    torch.testing.assert_close(found.pi_D, head.pi_D, rtol=0, atol=0)


def test_training_lowers_the_free_energy_and_pulls_unused_numbers_to_the_prior() -> None:
    """For a weight that no example informs, because its feature is 0, q becomes N(w, rho^2)."""
    head, (z_NF, y_N, w_D, tau, noise_KD) = a_head(), a_problem()
    z_NF[:, 0] = 0
    noise = [normal(SAMPLES, D, seed=step) for step in range(200)]
    found = train_head(head, z_NF, y_N, w_D, tau, noise, lr=0.03)
    before, after = (free_energy(each, z_NF, y_N, w_D, tau, noise_KD) for each in (head, found))
    assert after < before
    unused = torch.arange(C) * F
    torch.testing.assert_close(found.mu_D[unused], w_D[unused], atol=1e-3, rtol=0)
    torch.testing.assert_close(found.sigma_D[unused], tau.rsqrt().expand(C), atol=1e-3, rtol=0)


def test_the_constants_of_eq_10_do_not_depend_on_the_head() -> None:
    _, _, w_D, tau, _ = a_problem()
    apart = [
        kl_of_heads(head, w_D, tau) - kl_up_to_constants(head, w_D, tau) for head in (a_head(seed=1), a_head(seed=2))
    ]
    torch.testing.assert_close(apart[0], apart[1])


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10_000), st.integers(3, 8))
def test_push_sum_that_starts_with_the_confidences_ends_at_the_weighted_mean(seed: int, clients: int) -> None:
    """The graph is a directed ring with chords, on which push-sum's own weights differ as well."""
    mu_JD, tau_J = normal(clients, D, seed=seed), normal(clients, seed=seed + 1).exp()
    matrix = torch.zeros(clients, clients, dtype=torch.float64)
    for source in range(clients):
        targets = {source, (source + 1) % clients, 0}
        for target in targets:
            matrix[target, source] = 1 / len(targets)
    mass = Mass.of(mu_JD, tau_J)
    for _ in range(150):
        mass = synchronous_round(mass, matrix)
    torch.testing.assert_close(mass.estimate_D, weighted_mean(mu_JD, tau_J).expand(clients, D), atol=1e-9, rtol=0)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 5000), min_size=1, max_size=6))
def test_bases_are_averaged_by_numbers_of_examples(seed: int, examples: list[int]) -> None:
    theta_JD, n_J = normal(len(examples), D, seed=seed), torch.tensor(examples)
    wanted = sum((n * theta_D for n, theta_D in zip(examples, theta_JD, strict=True)), torch.zeros(D)) / sum(examples)
    torch.testing.assert_close(weighted_mean(theta_JD, n_J), wanted)
