"""Adapters of VIRTUAL's golden cases: Gaussian factors, free energy, Bayesian and lateral layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedpeer.algorithms import virtual
from fedpeer.algorithms.gaussian import Gaussian, product
from fedpeer.algorithms.leaves import stack_states
from fedpeer.networks.bayesian import BayesianLayer, bayesian, inverse_softplus, reparametrised, sampled
from fedpeer.networks.lateral import LateralMLP
from fedpeer.networks.mlp import MLP
from tests.reference.handed_noise import handed
from tests.reference.linear_gaussian import expected_log_likelihood, minimiser
from tests.reference.virtual import FreeEnergy, aggregate, gaussian_kl, joined, prior_exponents

Case = dict[str, Any]


def tensor(numbers: Any) -> Tensor:
    """Return the numbers as a tensor in float64."""
    return torch.tensor(numbers, dtype=torch.float64)


def gaussian(inputs: Case, stem: str, *, mu: str = "{}_mu", sigma: str = "{}_sigma") -> Gaussian:
    """Return the distribution whose means and standard deviations are under names made from a stem."""
    return Gaussian.of(tensor(inputs[mu.format(stem)]), tensor(inputs[sigma.format(stem)]))


def natural(factor: Gaussian) -> Case:
    """Return the natural parameters under the names of the cases."""
    return {"chi": factor.chi_D.tolist(), "xi": factor.xi_D.tolist()}


def told(factor: Gaussian) -> Case:
    """Return the natural parameters and the moments under the names of the cases."""
    return {**natural(factor), "mu": factor.mu_D.tolist(), "sigma": factor.sigma_D.tolist()}


def gaussian_product_ratio(inputs: Case) -> Case:
    """Compute case 03a."""
    one, two = (gaussian(inputs, number, mu="mu{}", sigma="sigma{}") for number in "12")
    return {
        "chi1": one.chi_D.tolist(),
        "xi1": one.xi_D.tolist(),
        "chi2": two.chi_D.tolist(),
        "xi2": two.xi_D.tolist(),
        "product": told(one * two),
        "ratio": told(one / two),
        "ratio_reversed": natural(two / one),
        "kl_1_to_2": gaussian_kl(one, two).tolist(),
        "kl_2_to_1": gaussian_kl(two, one).tolist(),
        "kl_1_to_2_total": gaussian_kl(one, two).sum().item(),
    }


#: The names that the cases give to the rules for the prior's exponent.
RULES: dict[str, virtual.Exponent] = {"v1_full_prior": "1", "v2_prior_1_over_K": "1/K", "size_weighted_prior": "n/N"}


def virtual_round(inputs: Case) -> Case:
    """Compute case 03b; the server's precision stays far from any floor, so that the deltas are taken whole."""
    old, new, prior = (gaussian(inputs, stem) for stem in ("factor", "new_factor", "prior"))
    server, active = product(old), inputs["active"]
    cavity = virtual.cavity(server, old[inputs["client"]])

    def deltas(gamma: float) -> list[Gaussian]:
        cavities = [virtual.cavity(server, old[i]) for i in active]
        return [virtual.client_delta(new[i] * c, c, old[i], gamma=gamma) for i, c in zip(active, cavities, strict=True)]

    full, part = deltas(1.0), deltas(inputs["gamma"])
    stored = {i: virtual.stored(old[i], sent) for i, sent in zip(active, part, strict=True)}
    full_D, part_D = (aggregate(server, stack_states(sent)).server for sent in (full, part))
    slower_D = aggregate(server, stack_states(part), server_lr=inputs["server_lr"]).server
    return {
        "server": told(server),
        "cavity_without_prior": natural(cavity),
        "cavity_with_prior": {name: _reference(inputs, cavity, prior, rule) for name, rule in RULES.items()},
        "delta": {str(i): natural(sent) for i, sent in zip(active, full, strict=True)},
        "server_after_undamped": told(full_D),
        "damped_factor": {str(i): told(factor) for i, factor in stored.items()},
        "server_after_damped": told(part_D),
        "product_of_stored": natural(product(stack_states([stored.get(i, old[i]) for i in range(inputs["K"])]))),
        "server_after_damped_and_server_lr": natural(slower_D),
    }


def _reference(inputs: Case, cavity: Gaussian, prior: Gaussian, rule: virtual.Exponent) -> Case:
    exponent = prior_exponents(tensor(inputs["n"]), rule)[inputs["client"]].item()
    return {"exponent": exponent, **told(virtual.reference(cavity, prior, exponent))}


def negative_precision(inputs: Case) -> Case:
    """Compute case 03c."""
    old = gaussian(inputs, "old")
    delta = virtual.delta(gaussian(inputs, "new"), old)
    server = Gaussian(tensor(inputs["server_chi"]), tensor(inputs["server_xi"]))
    after = aggregate(server, stack_states([delta])).server
    bad = virtual.cavity(Gaussian(server.chi_D, tensor(inputs["bad_server_xi"])), old)
    return {
        "delta_chi": delta.chi_D.tolist(),
        "delta_xi": delta.xi_D.tolist(),
        "server_chi_after": after.chi_D.tolist(),
        "server_xi_after": after.xi_D.tolist(),
        "bad_cavity_xi": bad.xi_D.tolist(),
        "bad_cavity_xi_floored": bad.floored(inputs["eps"]).xi_D.tolist(),
    }


def snr_pruning(inputs: Case) -> Case:
    """Compute case 03d; fedpeer takes a tensor as a flat vector."""
    shape = tensor(inputs["new_mu"]).shape
    old, new = (Gaussian(g.chi_D.flatten(), g.xi_D.flatten()) for g in (gaussian(inputs, s) for s in ("old", "new")))
    delta = virtual.delta(new, old)
    snr = {"update_snr": virtual.update_snr(delta, new), "posterior_snr": virtual.posterior_snr(new)}
    found: Case = {name: ratio.view(shape).tolist() for name, ratio in snr.items()}
    found["pruned"] = {str(percentile): {} for percentile in inputs["percentiles"]}
    for percentile in inputs["percentiles"]:
        for name, ratio in snr.items():
            keep = virtual.kept_weights(ratio, percentile)
            sparse = virtual.pruned(delta, keep)
            found["pruned"][str(percentile)][name] = {
                "threshold_linear": virtual.snr_threshold(ratio, percentile).item(),
                "keep": keep.int().view(shape).tolist(),
                "kept": int(keep.sum()),
                "delta_chi": sparse.chi_D.view(shape).tolist(),
                "delta_xi": sparse.xi_D.view(shape).tolist(),
            }
    return found


def free_energy(inputs: Case) -> Case:
    """Compute case 04."""
    cavity = Gaussian(tensor(inputs["cavity_chi"]), tensor(inputs["cavity_xi"]))
    shared, private = cavity * gaussian(inputs, "factor"), gaussian(inputs, "private")
    found: Case = {"shared_posterior_mu": shared.mu_D.tolist(), "shared_posterior_sigma": shared.sigma_D.tolist()}
    rules = {name: RULES[name] for name in ("v1_full_prior", "v2_prior_1_over_K")}
    found |= {name: _energies(inputs, cavity, shared, private, rule) for name, rule in rules.items()}
    return found | {"expected_log_likelihood": _likelihood(inputs, shared, private).item()}


def _energies(inputs: Case, cavity: Gaussian, shared: Gaussian, private: Gaussian, rule: virtual.Exponent) -> Case:
    many = len(inputs["cavity_chi"])
    prior = Gaussian.of(torch.zeros_like(shared.chi_D), inputs["prior_sigma_shared"])
    own = Gaussian.of(torch.zeros_like(private.chi_D), inputs["prior_sigma_private"])
    exponent = prior_exponents(torch.ones(inputs["K"], dtype=torch.float64), rule)[0].item()
    against = virtual.reference(cavity, prior, exponent)

    def energy(shared: Gaussian, private: Gaussian) -> FreeEnergy:
        likelihood = _likelihood(inputs, shared, private)
        return FreeEnergy(likelihood, gaussian_kl(shared, against).sum(), gaussian_kl(private, own).sum())

    now, beta, points = energy(shared, private), inputs["beta"], len(inputs["y"])
    best = minimiser(*_design(inputs), _together(against, own), inputs["sigma_y"])
    factor = best[:many] / cavity
    found: Case = {f"reference_{name}": value for name, value in told(against).items() if name in ("mu", "sigma")}
    found |= {"kl_shared": now.kl_shared.item(), "kl_private": now.kl_private.item(), "free_energy": now.value().item()}
    found["free_energy_beta"] = {"beta": beta, "value": now.value(beta).item()}
    found["per_sample_objective_beta"] = {"beta": beta, "value": now.per_sample(points, beta).item()}
    found["optimum"] = {f"new_factor_{name}": value for name, value in natural(factor).items()}
    found["optimum"] |= {f"shared_{name}": value for name, value in told(best[:many]).items()}
    found["optimum"] |= {f"private_{name}": value for name, value in told(best[many:]).items()}
    return found | {"optimum": {**found["optimum"], "free_energy": energy(best[:many], best[many:]).value().item()}}


def _design(inputs: Case) -> tuple[Tensor, Tensor]:
    """Return the inputs, for shared weights first and then for private ones, and the targets."""
    return torch.cat([tensor(inputs["A"]), tensor(inputs["B"])], 1), tensor(inputs["y"])


def _together(one: Gaussian, other: Gaussian) -> Gaussian:
    return Gaussian(torch.cat([one.chi_D, other.chi_D]), torch.cat([one.xi_D, other.xi_D]))


def _likelihood(inputs: Case, shared: Gaussian, private: Gaussian) -> Tensor:
    return expected_log_likelihood(*_design(inputs), _together(shared, private), inputs["sigma_y"])


def local_reparametrisation(inputs: Case) -> Case:
    """Compute case 10, without the moments of the rectified activations, which fedpeer does not need."""
    plain = MLP([len(inputs["W1_mu"]), len(inputs["W2_mu"]), len(inputs["b2_mu"])], activation="relu").double()
    net = bayesian(plain, estimator="local", sigma=1.0)
    x, eps1, eps2 = (tensor(inputs[name]) for name in ("x", "eps1", "eps2"))
    names = {"hidden1.weight": "W1", "hidden1.bias": "b1", "output.weight": "W2", "output.bias": "b2"}
    mu = {name: out_in(inputs[f"{key}_mu"]) for name, key in names.items()}
    sigma = {name: out_in(inputs[f"{key}_sigma"]) for name, key in names.items()}
    net.load_state_dict(joined(mu, {name: inverse_softplus(each) for name, each in sigma.items()}))
    first, second = (_layer(net, name) for name in ("hidden1", "output"))
    found = dict(zip(("pre1_mean", "pre1_var"), first.moments(x), strict=True))
    found["pre1_sample"] = reparametrised(*first.moments(x), handed([eps1]))
    found["hidden"] = found["pre1_sample"].relu()
    found |= zip(("pre2_mean", "pre2_var"), second.moments(found["hidden"]), strict=True)
    found["logits"] = sampled(net, x, handed([eps1, eps2]))
    found |= {"mean_forward_logits": net(x), "mean_forward_softmax": net(x).softmax(-1)}
    posterior = Gaussian.of(*(torch.cat([each.flatten() for each in of.values()]) for of in (mu, sigma)))
    standard = Gaussian.of(torch.zeros_like(posterior.chi_D), 1.0)
    found["kl_to_standard_normal"] = gaussian_kl(posterior, standard).sum()
    return {name: value.tolist() for name, value in found.items()}


def out_in(numbers: Any) -> Tensor:
    """Return a case's weights (in, out) as torch's (out, in); vectors stay as they are."""
    return tensor(numbers).mT if isinstance(numbers[0], list) else tensor(numbers)


def _layer(net: nn.Module, name: str) -> BayesianLayer:
    layer = net.get_submodule(name)
    assert isinstance(layer, BayesianLayer)
    return layer


def lateral_connections(inputs: Case) -> Case:
    """Compute case 12."""
    server, client = inputs["server"], inputs["client"]
    net = LateralMLP([len(inputs["x"][0]), *(len(layer["b"]) for layer in server)], activation="relu").double()
    names = [*(f"hidden{depth}" for depth in range(1, len(server))), "output"]
    keys = {"own.weight": "w", "own.bias": "c", "shift.weight": "b", "lateral.weight": "u", "gate.weight": "alpha"}
    state: dict[str, Tensor] = {}
    for name, of_server, of_client in zip(names, server, client, strict=True):
        state |= {f"server.{name}.weight": out_in(of_server["W"]), f"server.{name}.bias": tensor(of_server["b"])}
        state |= {f"client.{name}.{path}": out_in(of_client[key]) for path, key in keys.items()}
    net.load_state_dict(state)
    layers = zip(("server_activations", "client_activations"), net.activations(tensor(inputs["x"])), strict=True)
    return {name: [each.tolist() for each in found] for name, found in layers}


ADAPTERS: dict[str, Callable[[Case], Case]] = {
    "03a_gaussian_product_ratio": gaussian_product_ratio,
    "03b_virtual_cavity_delta_aggregation": virtual_round,
    "03c_negative_precision_delta": negative_precision,
    "03d_snr_pruning": snr_pruning,
    "04_virtual_free_energy_linear_gaussian": free_energy,
    "10_local_reparametrisation": local_reparametrisation,
    "12_lateral_connections": lateral_connections,
}
