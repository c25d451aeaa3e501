"""Bayesian layers: plain layers whose weights are independent Gaussians N(mu, softplus(rho)^2).

`bayesian` turns a plain network (MLP, CNN, recurrent) into a Bayesian one of the same structure: each module with
weights becomes a `BayesianLayer` of two such modules, `mu` and `rho`. Means and rhos have the names, shapes and order
of the plain network's tensors, so a plan that cuts the plain network's flat vector into slices applies to both. A
module that has weights of its own beside layers, such as a transformer with its positions, becomes one such layer.

Without noise a network computes with its means. With noise (`sampled`) each layer draws its output by one of three
estimators, all of which are exact in each output's mean and variance:

    local     draws the output itself, once for each example and unit (Kingma, Salimans, Welling 2015); in a
              convolution and an embedding also for each position, so positions share no weight sample
    flipout   draws one perturbation of the weights for the batch, with random signs for each example (Wen et al. 2018)
    weights   draws the weights once for the batch (Blundell et al. 2015); also used for layers that the others do not
              cover: recurrent layers, gates, attention, layers with weight norm, and modules that have parameters of
              their own beside layers

Noise is standard normal and passed in; nothing here draws from any other generator. Layers ask for noise in the order
of the forward pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedpeer.networks.registry import NetworkError

#: Returns standard normal noise with the shape, type and device of its argument.
NoiseSource = Callable[[Tensor], Tensor]
Estimator = Literal["local", "flipout", "weights"]
#: Layers that are linear in their weights, which `local` and `flipout` need.
_LINEAR = (nn.Linear, nn.Conv2d, nn.Embedding)


def drawn_noise(generator: torch.Generator) -> NoiseSource:
    """Return a source of noise from a CPU generator, with the same numbers on every device."""

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)

    return noise


def inverse_softplus(sigma: Tensor) -> Tensor:
    """Return the rho with softplus(rho) = sigma > 0, without overflow for large sigma."""
    return sigma + torch.log(-torch.expm1(-sigma))


class BayesianLayer(nn.Module):
    """A layer with Gaussian weights; `mu` and `rho` are two modules of the plain layer's type and shape.

    layer      the plain layer, whose weights become the means
    estimator  how outputs are drawn, as above; layers that are not linear in their weights use `weights`
    sigma      initial standard deviation of all weights, > 0
    """

    def __init__(self, layer: nn.Module, *, estimator: Estimator, sigma: float) -> None:
        super().__init__()
        self.mu = layer
        self.rho = copy.deepcopy(layer)
        for rho in self.rho.parameters():
            nn.init.constant_(rho, inverse_softplus(torch.tensor(sigma, dtype=torch.float64)).item())
        # A weight that is computed from other parameters, as by weight norm, is not linear in them, nor need a forward
        # pass of a user's own be.
        linear = type(layer).forward in {kind.forward for kind in _LINEAR}
        plain = {name for name, _ in layer.named_parameters()} <= {"weight", "bias"}
        self.estimator = estimator if linear and plain else "weights"
        self.noise: NoiseSource | None = None

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Return the plain layer's output with mean weights; with noise, a draw of all that the layer returns."""
        if self.noise is None:
            return cast(Tensor, self.mu(*inputs, **options))
        if self.estimator == "weights":
            return self._sampled_weights(inputs, options, self.noise)
        (x,) = *inputs, *options.values()
        if self.estimator == "local":
            return reparametrised(*self.moments(x), self.noise)
        return self._flipout(x, self.noise)

    def sigma(self) -> dict[str, Tensor]:
        """Return the standard deviations by the plain layer's names."""
        return {name: functional.softplus(rho) for name, rho in self.rho.named_parameters()}

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of each output, exact given the input (Kingma, Salimans, Welling 2015, eq. 6)."""
        variance = {name: sigma.square() for name, sigma in self.sigma().items()}
        return cast(Tensor, self.mu(x)), self._linear(x if self._looks_up else x.square(), variance)

    @property
    def _looks_up(self) -> bool:
        """True if the input is tokens, which are neither squared nor signed."""
        return isinstance(self.mu, nn.Embedding)

    def _flipout(self, x: Tensor, noise: NoiseSource) -> Tensor:
        """Return mean + (((x * s) dW + db) * r) with signs s and r for each example (Wen et al. 2018, eq. 4)."""
        change = {name: sigma * noise(sigma) for name, sigma in self.sigma().items()}
        mean = cast(Tensor, self.mu(x))
        signed = x if self._looks_up else x * _signs(self._one_position(x), noise)
        return mean + self._linear(signed, change) * _signs(self._one_position(mean), noise)

    def _sampled_weights(self, inputs: tuple[Any, ...], options: dict[str, Any], noise: NoiseSource) -> Tensor:
        sigma = self.sigma()
        drawn = {name: mu + sigma[name] * noise(mu) for name, mu in self.mu.named_parameters()}
        return cast(Tensor, functional_call(self.mu, drawn, inputs, options))

    def _linear(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Apply the plain layer's operation with other weights."""
        weight, bias = weights["weight"], weights.get("bias")
        match self.mu:
            case nn.Linear():
                return functional.linear(x, weight, bias)
            case nn.Conv2d() as conv:
                return functional.conv2d(x, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)
            case _:
                return functional.embedding(x, weight)

    def _one_position(self, x: Tensor) -> Tensor:
        """Select one number for each example and channel of images, or for each example and feature of other inputs."""
        if isinstance(self.mu, nn.Conv2d):
            return x[..., :1, :1]
        return x[:, :1] if x.dim() > 2 else x


def reparametrised(mean: Tensor, variance: Tensor, noise: NoiseSource) -> Tensor:
    """Draw a value with this mean and variance.

    The root of a variance of 0 (no bias, and an input of zeros) has no finite slope. The smallest normal number
    replaces it: then the draw is the mean, and the slope is 0.
    """
    return mean + variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt() * noise(mean)


def _signs(like: Tensor, noise: NoiseSource) -> Tensor:
    """Draw +1 or -1 with equal probability."""
    return 1.0 - 2.0 * (noise(like) < 0).to(like.dtype)


def bayesian(network: nn.Module, *, estimator: Estimator, sigma: float) -> nn.Module:
    """Return a copy of a plain network in which each module with weights is a `BayesianLayer`.

    The means are the plain network's weights; all standard deviations are `sigma` > 0.

    Raises:
        NetworkError: a layer with state other than weights, or a convolution that does not pad with zeros.
    """
    if _has_weights(network):
        _check(network)
        return BayesianLayer(copy.deepcopy(network), estimator=estimator, sigma=sigma)
    twin = copy.deepcopy(network)
    for name, child in network.named_children():
        setattr(twin, name, bayesian(child, estimator=estimator, sigma=sigma))
    return twin


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def _check(layer: nn.Module) -> None:
    kind, kept = type(layer).__name__, layer.state_dict().keys()
    if any(each.is_floating_point() and name in kept for name, each in layer.named_buffers()):
        raise NetworkError(f"{kind} keeps running statistics, which have no distribution; use norm=none")
    if isinstance(layer, nn.Conv2d) and layer.padding_mode != "zeros":
        raise NetworkError(f"{kind} pads with {layer.padding_mode}; Bayesian convolutions pad with zeros")


def sampled(network: nn.Module, x: Tensor, noise: NoiseSource) -> Tensor:
    """Return the outputs of a Bayesian network for one draw of noise; `network(x)` alone computes with the means."""
    layers = [module for module in network.modules() if isinstance(module, BayesianLayer)]
    for layer in layers:
        layer.noise = noise
    try:
        return cast(Tensor, network(x))
    finally:
        for layer in layers:
            layer.noise = None


def split_parameters(network: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return a Bayesian network's means and rhos, by the plain network's names and in its order."""
    mu, rho = dict[str, Tensor](), dict[str, Tensor]()
    for path, layer in network.named_modules():
        if isinstance(layer, BayesianLayer):
            for half, found in ((layer.mu, mu), (layer.rho, rho)):
                found |= {f"{path}.{name}" if path else name: each for name, each in half.named_parameters()}
    return mu, rho
