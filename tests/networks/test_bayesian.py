"""Bayesian layers: every estimator's moments and gradients; means and rhos are sliced like the plain network."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from fedpeer.networks.bayesian import (
    BayesianLayer,
    Estimator,
    bayesian,
    drawn_noise,
    inverse_softplus,
    sampled,
    split_parameters,
)
from fedpeer.networks.registry import NetworkError, cnn, lstm, mlp, transformer
from fedpeer.slicing.flat import FlatLayout
from fedpeer.slicing.trace import trace
from tests.reference.handed_noise import handed

ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
#: Plain layers with an input each: two examples, with several positions where the layer has positions.
LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Tensor]]] = {
    "linear": (lambda: nn.Linear(3, 2), lambda g: torch.randn(2, 3, generator=g, dtype=torch.float64)),
    "no bias": (lambda: nn.Linear(3, 2, bias=False), lambda g: torch.randn(2, 3, generator=g, dtype=torch.float64)),
    "sequence": (lambda: nn.Linear(3, 2), lambda g: torch.randn(2, 4, 3, generator=g, dtype=torch.float64)),
    "convolution": (
        lambda: nn.Conv2d(2, 3, 3, padding="same"),
        lambda g: torch.randn(2, 2, 4, 5, generator=g, dtype=torch.float64),
    ),
    "strided": (
        lambda: nn.Conv2d(2, 4, 3, stride=2, groups=2),
        lambda g: torch.randn(2, 2, 5, 5, generator=g, dtype=torch.float64),
    ),
    "embedding": (lambda: nn.Embedding(5, 3), lambda g: torch.tensor([[0, 4, 4], [2, 0, 1]])),
}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def layer(kind: str, estimator: Estimator = "local") -> tuple[BayesianLayer, Tensor]:
    """Return a layer with standard deviations that all differ, and an input."""
    make, example = LAYERS[kind]
    made = bayesian(make().double(), estimator=estimator, sigma=1.0)
    assert isinstance(made, BayesianLayer)
    draw = generator(1)
    with torch.no_grad():
        for mu in made.mu.parameters():
            mu.copy_(torch.randn(mu.shape, generator=draw, dtype=mu.dtype))
        for rho in made.rho.parameters():
            rho.copy_(inverse_softplus(0.2 + torch.rand(rho.shape, generator=draw, dtype=rho.dtype)))
    return made, example(draw)


def spread(output: Callable[..., Tensor], noise: list[Tensor]) -> Tensor:
    """Return the exact variance of an output affine in standard normal noise: the sum of its squared slopes."""
    leaves = [each.requires_grad_() for each in noise]
    out = output(*leaves)
    slopes = (torch.autograd.grad(one, leaves, retain_graph=True, materialize_grads=True) for one in out.flatten())
    return torch.stack([torch.cat([each.flatten() for each in of_one]).square().sum() for of_one in slopes]).view_as(
        out
    )


@pytest.mark.parametrize("kind", LAYERS)
def test_moments_are_those_of_a_plain_layer_with_drawn_weights(kind: str) -> None:
    """The slow reference is torch's own layer and the slopes of its output in each of its weights."""
    made, x = layer(kind)
    mean, variance = made.moments(x)
    mu, sigma = dict(made.mu.named_parameters()), made.sigma()

    def plain(*noise: Tensor) -> Tensor:
        weights = {name: mu[name] + sigma[name] * each for name, each in zip(mu, noise, strict=True)}
        out: Tensor = functional_call(made.mu, weights, (x,))
        return out

    none = [torch.zeros_like(each) for each in mu.values()]
    torch.testing.assert_close(plain(*none), mean)
    torch.testing.assert_close(spread(plain, none), variance)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_has_the_exact_mean_and_variance(kind: str, estimator: Estimator) -> None:
    """The output of flipout is affine in the perturbation of the weights for any signs."""
    made, x = layer(kind, estimator)
    mean, variance = made.moments(x)
    options: list[Tensor] = []
    draw = drawn_noise(generator(3))

    def recording(like: Tensor) -> Tensor:
        options.append(draw(like))
        return options[-1]

    sampled(made, x, recording)
    torch.testing.assert_close(sampled(made, x, torch.zeros_like), mean)
    torch.testing.assert_close(spread(lambda *noise: sampled(made, x, handed(noise)), options), variance)


def test_flipout_is_one_perturbation_with_signs_of_each_example_on_both_sides() -> None:
    made, x = layer("linear", "flipout")
    draw, shapes = drawn_noise(generator(4)), ((2, 3), (2,), (2, 3), (2, 2))
    noise = [draw(torch.zeros(shape, dtype=torch.float64)) for shape in shapes]
    sigma = made.sigma()
    with torch.no_grad():
        found = sampled(made, x, handed(noise))
        for b in range(2):
            into, out = (1 - 2 * (signs[b] < 0).double() for signs in noise[2:])
            perturbed = (sigma["weight"] * noise[0]) @ (into * x[b]) + sigma["bias"] * noise[1]
            torch.testing.assert_close(found[b], made.mu(x[b]) + out * perturbed)


def correlation_of_examples(estimator: Estimator) -> float:
    """Return the correlation between the outputs of two equal examples."""
    made, x = layer("linear", estimator)
    noise = drawn_noise(generator(4))
    with torch.no_grad():
        draws = torch.stack([sampled(made, x[:1].expand(2, 3), noise)[:, 0] for _ in range(500)])
    return float(torch.corrcoef(draws.T)[0, 1])


@pytest.mark.slow
def test_one_draw_of_the_weights_is_shared_by_the_batch_and_the_other_estimators_share_none() -> None:
    assert correlation_of_examples("weights") == pytest.approx(1)
    assert abs(correlation_of_examples("local")) < 0.2
    assert abs(correlation_of_examples("flipout")) < 0.2


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_are_those_of_finite_differences(kind: str, estimator: Estimator) -> None:
    made, x = layer(kind, estimator)
    names, values = zip(*made.named_parameters(), strict=True)

    def output(*parameters: Tensor) -> Tensor:
        made.noise = drawn_noise(generator(5))
        out: Tensor = functional_call(made, dict(zip(names, parameters, strict=True)), (x,))
        made.noise = None
        return out

    assert torch.autograd.gradcheck(output, values, fast_mode=True)


def test_an_input_of_zeros_has_gradients() -> None:
    made, _ = layer("no bias")
    out = sampled(made, torch.zeros(2, 3, dtype=torch.float64), drawn_noise(generator(6)))
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(out.sum(), list(made.parameters())))


def test_without_noise_the_means_compute() -> None:
    plain = mlp((6,), 3, layers=(6, 5, 3), activation="relu")
    x = torch.randn(4, 6, generator=generator(7))
    net = bayesian(plain, estimator="local", sigma=0.1)
    assert torch.equal(net(x), plain(x))
    sampled(net, x, drawn_noise(generator(8)))
    assert torch.equal(net(x), plain(x)), "noise is there for one pass only"


def test_noise_is_let_go_after_a_mistake() -> None:
    net = bayesian(nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2)), estimator="local", sigma=0.1)
    with pytest.raises(RuntimeError):
        sampled(net, torch.zeros(1, 3), drawn_noise(generator(9)))
    assert all(module.noise is None for module in net.modules() if isinstance(module, BayesianLayer))


def test_the_same_stream_gives_the_same_draw_and_another_does_not() -> None:
    net = bayesian(mlp((6,), 3, layers=(6, 5, 3)), estimator="flipout", sigma=0.1)
    x = torch.randn(4, 6, generator=generator(10))
    first, again, other = (sampled(net, x, drawn_noise(generator(seed))) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_handed_noise_must_fit() -> None:
    net = bayesian(nn.Linear(3, 2), estimator="local", sigma=0.1)
    with pytest.raises(AssertionError, match=r"\(2, 3\) for \(2, 2\)"):
        sampled(net, torch.zeros(2, 3), handed(repeat(torch.zeros(2, 3))))


NETWORKS: dict[str, tuple[nn.Module, Tensor]] = {
    "mlp": (mlp((1, 4, 4), 3, layers=(16, 5, 3)), torch.ones(2, 1, 4, 4)),
    "cnn": (cnn((1, 8, 8), 3, channels=(2, 3), hidden=(4,)), torch.ones(2, 1, 8, 8)),
    "tokens": (lstm((5,), 7, hidden=4, layers=2, embedding=3), torch.arange(10).reshape(2, 5) % 7),
    "features": (lstm((5, 2), 3, hidden=4, cell="gru"), torch.ones(2, 5, 2)),
    "transformer": (transformer((5, 2), 3, width=4, heads=2, layers=1), torch.linspace(-1, 1, 20).reshape(2, 5, 2)),
    "weight norm": (nn.Sequential(weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3)), torch.ones(2, 4)),
    "attention": (
        nn.Sequential(nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True), nn.Flatten(), nn.Linear(20, 3)),
        torch.linspace(-1, 1, 40).reshape(2, 5, 4),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_means_and_rhos_are_cut_as_the_plain_network_is(name: str) -> None:
    plain, _ = NETWORKS[name]
    net = bayesian(plain, estimator="local", sigma=0.3)
    mu, rho = split_parameters(net)
    there = dict(plain.named_parameters())
    assert list(mu) == list(rho) == list(there)
    assert all(torch.equal(mu[key], there[key]) for key in there)
    layout = FlatLayout.of(plain)
    assert torch.cat([each.flatten() for each in mu.values()]).equal(layout.flatten(plain))
    for key, each in rho.items():
        assert each.shape == there[key].shape
        torch.testing.assert_close(functional.softplus(each), torch.full_like(each, 0.3))
    assert {*map(id, (*mu.values(), *rho.values()))} == {*map(id, net.parameters())}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_whole_networks_draw(name: str, estimator: Estimator) -> None:
    """Small deviations in all layers make small changes; recurrent layers have their weights drawn."""
    plain, x = NETWORKS[name]
    net = bayesian(plain, estimator=estimator, sigma=1e-3)
    noise = drawn_noise(generator(11))
    first, second = sampled(net, x, noise), sampled(net, x, noise)
    assert 0 < (first - plain(x)).abs().max() < 0.1
    assert not torch.equal(first, second)
    rhos = split_parameters(net)[1]
    # Inactive rectifiers and tokens that do not occur have no slope; at least one weight of the network has one.
    assert any(slope.any() for slope in torch.autograd.grad(first.square().sum(), list(rhos.values())))


def test_a_linear_layer_with_its_own_forward_pass_draws_its_weights() -> None:
    class Masked(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return functional.linear(input, self.weight * torch.eye(4), self.bias)

    for layer, wanted in ((Masked(4, 4), "weights"), (nn.Linear(4, 4), "local")):
        made = bayesian(layer, estimator="local", sigma=0.3)
        assert isinstance(made, BayesianLayer)
        assert made.estimator == wanted


def test_a_module_with_weights_of_its_own_beside_layers_is_drawn_as_a_whole() -> None:
    """A transformer has its positions; its layers cannot be Gaussian without it."""
    plain, x = (
        transformer((4,), 3, width=4, heads=2, layers=1, vocabulary=5),
        torch.tensor([[0, 4, 4, 1], [2, 0, 1, 3]]),
    )
    net = bayesian(plain, estimator="local", sigma=1e-3)
    mu, rho = split_parameters(net)
    assert list(mu) == list(rho) == [name for name, _ in plain.named_parameters()]
    assert all(torch.equal(mu[name], parameter) for name, parameter in plain.named_parameters())
    torch.testing.assert_close(net(x), plain(x))
    assert 0 < (sampled(net, x, drawn_noise(generator(11))) - plain(x)).abs().max() < 0.1


def test_the_plain_network_is_not_changed() -> None:
    plain = mlp((4,), 2, layers=(4, 3, 2))
    before = [p.clone() for p in plain.parameters()]
    net = bayesian(plain, estimator="local", sigma=0.1)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    assert all(torch.equal(p, b) for p, b in zip(plain.parameters(), before, strict=True))
    assert isinstance(plain.get_submodule("hidden1"), nn.Linear)


def test_parts_keep_their_names_when_traced() -> None:
    plain = mlp((4,), 2, layers=(4, 3, 2))
    net = bayesian(plain, estimator="local", sigma=0.1)
    wanted = [part.name for part in trace(plain, torch.zeros(1, 4)).parts]
    found = [part.name for part in trace(net, torch.zeros(1, 4)).parts]
    assert [name.removesuffix(".mu") for name in found] == wanted


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_clients_in_one_program_are_clients_one_by_one(estimator: Estimator) -> None:
    """The program is a `vmap` over parameters, data and noise that was drawn before."""
    net = bayesian(mlp((4,), 2, layers=(4, 3, 2), activation="tanh"), estimator=estimator, sigma=0.2)
    draw, clients = generator(12), 3
    x_PBF = torch.randn(clients, 5, 4, generator=draw)
    stacks = {
        name: p.detach() + 0.1 * torch.randn(clients, *p.shape, generator=draw) for name, p in net.named_parameters()
    }
    options: list[Tensor] = []

    def recording(like: Tensor) -> Tensor:
        options.append(torch.randn(clients, *like.shape, generator=draw))
        return options[-1][0]

    sampled(net, x_PBF[0], recording)

    class Sampling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor, noise: list[Tensor]) -> Tensor:
            return sampled(self.net, x, handed(noise))

    sampling = Sampling()

    def alone(parameters: dict[str, Tensor], x: Tensor, noise: list[Tensor]) -> Any:
        return functional_call(sampling, {f"net.{name}": p for name, p in parameters.items()}, (x, noise))

    together = vmap(alone)(stacks, x_PBF, options)
    for p in range(clients):
        one = alone({name: each[p] for name, each in stacks.items()}, x_PBF[p], [each[p] for each in options])
        torch.testing.assert_close(together[p], one)


def test_what_has_no_distribution_is_refused() -> None:
    with pytest.raises(NetworkError, match="BatchNorm2d keeps running statistics"):
        bayesian(cnn((1, 8, 8), 3, norm="batch"), estimator="local", sigma=0.1)
    with pytest.raises(NetworkError, match="pads with circular"):
        bayesian(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), estimator="local", sigma=0.1)


def test_inverse_softplus_is_that_from_tiny_to_large() -> None:
    sigma = torch.tensor([1e-8, 1e-3, 1.0, 50.0, 1e4], dtype=torch.float64)
    torch.testing.assert_close(functional.softplus(inverse_softplus(sigma)), sigma, rtol=1e-12, atol=0)
