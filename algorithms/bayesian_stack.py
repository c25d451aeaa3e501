"""Bayesian stacks of linear layers under plain SGD, trained without autograd: local reparametrisation, closed slopes.

This is `linear_stack` with Gaussian weights N(mu, softplus(rho)^2). A layer's outputs are drawn from their exact
moments,

    z = m + s * noise,    m = a mu^T,    s^2 = v = a^2 (sigma^2)^T    (Kingma, Salimans, Welling 2015, eq. 6),

so the backward pass has two paths: delta = dL/dz into mu as in the plain stack, and delta * noise / (2 s) = dL/dv into
sigma^2. The divergence to a Gaussian reference is added in closed form (`gaussian.kl_slopes`). A step costs two more
matrix products than a plain one, and two passes over all weights (`bayesian_passes`).

The same function trains one peer `(n,)` and a block `(B, n)` of peers of equal shape as one batched program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.bayesian_passes import Passes
from fedpeer.algorithms.gaussian import Gaussian
from fedpeer.algorithms.linear_stack import BACKWARD, FORWARD, Layer, descend
from fedpeer.algorithms.losses import Loss

#: The smallest normal float32, used in place of a variance of 0.
_LEAST = torch.finfo(torch.float32).tiny


@torch.no_grad()
def train_bayesian_stack(
    layers: tuple[Layer, ...],
    loss: Loss,
    mu_n: Tensor,
    rho_n: Tensor,
    reference: Gaussian,
    strength: Tensor,
    batches: Batches,
    lr: float,
    samples: int,
    generators: Sequence[torch.Generator],
) -> None:
    """Take all steps of a round, in place on mu and rho, (n,) or (B, n).

    Each is a step of plain SGD on the mean loss of the batch over `samples` draws of noise, plus the weighted
    divergence.

    Args:
        reference: (..., n), a distribution.
        strength: (...) weight of the divergence to the reference.
        samples: draws of noise in each step, >= 1.
        generators: the noise of each peer.
    """
    assert loss.delta is not None, f"{loss.name} has no closed gradient"
    rate = (lr * strength).unsqueeze(-1)
    passes = Passes(mu_n, rho_n, rate * reference.xi_D, rate * reference.chi_D, rate)
    means, variances, changes = (
        [_Views.of(layer, x) for layer in layers] for x in (mu_n, passes.variance_n, passes.change_n)
    )
    step_size = lr / (batches.size * samples)
    for step in range(batches.steps):
        passes.spread()
        inputs, targets = batches.inputs(step).flatten(mu_n.dim()), batches.targets(step)
        a, y = _repeated(inputs, samples, -2), _repeated(targets, samples, batches.index.dim() - 2)
        noise = _noise(layers, batches.size, samples, generators, mu_n)
        seen, squares, ratios = [a], [], []
        for layer, mean, variance, eps in zip(layers, means, variances, noise, strict=True):
            squares.append(a * a)
            # With no bias and an input of zeros, v is 0: the draw is the mean, and every factor of v's slope is 0.
            s = variance.affine(squares[-1]).clamp_min_(_LEAST).sqrt_()
            ratios.append(eps / s)
            a = FORWARD[layer.activation](mean.affine(a).addcmul_(s, eps))
            seen.append(a)
        weights = batches.weights(step)
        w = weights if weights is None else _repeated(weights, samples, -1)
        delta = loss.slope(a, y, w).mul_(step_size)
        deltas = [delta]
        for depth in range(len(layers) - 1, -1, -1):
            spread = delta * ratios[depth]  # 2 dL/dv; the 2 comes from v's slopes in a and sigma
            change = changes[depth]
            torch.matmul(spread.mT, squares[depth], out=change.weight)
            if change.bias is not None:
                torch.sum(spread, -2, keepdim=True, out=change.bias)
            if depth:
                below = (delta @ means[depth].weight).addcmul_(seen[depth], spread @ variances[depth].weight)
                delta = BACKWARD[layers[depth - 1].activation](below, seen[depth])
                deltas.append(delta)
        passes.descend()
        for mean, delta, a in zip(means, reversed(deltas), seen, strict=False):
            descend(mean.weight, mean.bias, delta, a, -1)


@dataclass(frozen=True, eq=False)
class _Views:
    """A layer's part of a vector (..., n): weight (..., out, in), its transpose, and bias (..., 1, out)."""

    weight: Tensor
    transposed: Tensor
    bias: Tensor | None
    added: Tensor | None  # the bias in the shape that products need

    @staticmethod
    def of(layer: Layer, x_n: Tensor) -> _Views:
        weight, bias = layer.weights(x_n), layer.biases(x_n)
        return _Views(weight, weight.mT, bias, bias if bias is None or x_n.dim() > 1 else bias.squeeze(0))

    def affine(self, a: Tensor) -> Tensor:
        """Return a (..., b, in) times the weight plus the bias, (..., b, out)."""
        if self.added is None:
            return a @ self.transposed
        return (torch.addmm if a.dim() == 2 else torch.baddbmm)(self.added, a, self.transposed)


def _repeated(x: Tensor, samples: int, dim: int) -> Tensor:
    """Return the batch once for each draw of noise."""
    return x if samples == 1 else torch.cat([x] * samples, dim)


def _noise(
    layers: tuple[Layer, ...], size: int, samples: int, generators: Sequence[torch.Generator], like: Tensor
) -> list[Tensor]:
    """Return each layer's noise, (..., samples * b, fan_out), drawn in the order of `networks.bayesian`."""
    peers = []
    for generator in generators:
        draws = [[torch.randn((size, each.fan_out), generator=generator) for each in layers] for _ in range(samples)]
        peers.append(draws[0] if samples == 1 else [torch.cat(each) for each in zip(*draws, strict=True)])
    if like.dim() == 1:
        return [each.to(like.device) for each in peers[0]]
    return [torch.stack(each).to(like.device) for each in zip(*peers, strict=True)]
