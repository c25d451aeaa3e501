"""Bayesian stacks of linear layers under plain SGD, trained without autograd: local reparametrisation, closed slopes.

`linear_stack` with Gaussian weights N(mu, softplus(rho)^2). A layer's outputs are drawn from their exact moments,

    z = m + s * noise,    m = a mu^T,    s^2 = v = a^2 (sigma^2)^T    (Kingma, Salimans, Welling 2015, eq. 6),

so the backward pass has two paths: delta = dL/dz into mu as in the plain stack, and delta * noise / (2 s) = dL/dv into
sigma^2. The divergence to a Gaussian reference is added in closed form (`gaussian.kl_slopes`). What a step costs beyond
a plain one is two more matrix products, and one exponential and one logarithm a weight.

The same function trains one peer `(n,)` and a block `(B, n)` of peers of equal shape as one batched program.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.gaussian import Gaussian
from fedpeer.algorithms.linear_stack import BACKWARD, FORWARD, Layer, affine, descend
from fedpeer.algorithms.losses import Loss


#: The least normal number: the variance of what has none.
_LEAST = torch.finfo(torch.float32).tiny


@torch.no_grad()
def train(
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
    """All steps of a round, in place on mu and rho, (n,) or (B, n).

    Each is a step of plain SGD on the mean loss of the batch over so many draws of noise, plus `strength` (...) times
    the divergence to the reference (..., n), a distribution. `generators`: the noise of each peer.
    """
    assert loss.delta is not None, f"{loss.name} has no closed gradient"
    rate = (lr * strength).unsqueeze(-1)
    # The divergence's part of a step: mu <- mu - rate * (xi mu - chi).
    pressure_n, pull_n = rate * reference.xi_D, rate * reference.chi_D
    left_n = 1 - pressure_n
    # Few buffers, used for several things: memory that does not fit into the cache costs more than arithmetic.
    variance_n, tilt_n, change_n = (torch.empty_like(rho_n) for _ in range(3))
    mean_W, variance_W, change_W = ([layer.weights(x) for layer in layers] for x in (mu_n, variance_n, change_n))
    mean_b, variance_b, change_b = ([layer.biases(x) for layer in layers] for x in (mu_n, variance_n, change_n))
    step_size = lr / (batches.size * samples)
    for step in range(batches.steps):
        # sigma = log(1 + e^rho) has the slope e^rho / (1 + e^rho); the tilt is slope / sigma.
        torch.exp(rho_n, out=tilt_n)
        torch.add(tilt_n, 1, out=change_n)
        torch.log1p(tilt_n, out=variance_n)
        tilt_n.div_(change_n.mul_(variance_n))
        variance_n.mul_(variance_n)
        inputs, targets = batches.inputs(step).flatten(mu_n.dim()), batches.targets(step)
        a, y = _repeated(inputs, samples, -2), _repeated(targets, samples, batches.index.dim() - 2)
        noise = _noise(layers, batches.size, samples, generators, mu_n)
        seen, squares, ratios = [a], [], []
        for depth, layer in enumerate(layers):
            squares.append(a * a)
            v = affine(squares[-1], variance_W[depth], variance_b[depth])
            silent = v == 0 if layer.bias is None else None
            s = v.clamp_min_(_LEAST).sqrt_()
            ratios.append(noise[depth] / s)
            if silent is not None:  # no bias, and an input of zeros: the mean is drawn, and there is no slope
                ratios[-1].masked_fill_(silent, 0)
            z = affine(a, mean_W[depth], mean_b[depth]).addcmul_(s, noise[depth])
            a = FORWARD[layer.activation](z)
            seen.append(a)
        delta = loss.delta(a, y).mul_(step_size)
        deltas = []
        for depth in range(len(layers) - 1, -1, -1):
            spread = delta * ratios[depth]  # 2 dL/dv, and the 2 is that of v's slopes in a and sigma
            deltas.append(delta)
            torch.matmul(spread.transpose(-1, -2), squares[depth], out=change_W[depth])
            if (bias := change_b[depth]) is not None:
                torch.sum(spread, -2, keepdim=True, out=bias)
            if depth:
                below = (delta @ mean_W[depth]).addcmul_(seen[depth], spread @ variance_W[depth])
                delta = BACKWARD[layers[depth - 1].activation](below, seen[depth])
        torch.addcmul(pull_n, mu_n, left_n, out=mu_n)
        for depth, delta in enumerate(reversed(deltas)):
            descend(mean_W[depth], mean_b[depth], delta, seen[depth], -1)
        # rho <- rho - slope / sigma * (sigma^2 (2 lr dL/dv + rate * xi) - rate)
        change_n.add_(pressure_n).mul_(variance_n).sub_(rate)
        rho_n.addcmul_(change_n, tilt_n, value=-1)


def _repeated(x: Tensor, samples: int, dim: int) -> Tensor:
    """The batch once for each draw of noise."""
    return x if samples == 1 else torch.cat([x] * samples, dim)


def _noise(
    layers: tuple[Layer, ...], size: int, samples: int, generators: Sequence[torch.Generator], like: Tensor
) -> list[Tensor]:
    """Of each layer (..., samples * b, fan_out), drawn in the order in which `networks.bayesian` asks for it."""
    peers = []
    for generator in generators:
        draws = [[torch.randn((size, each.fan_out), generator=generator) for each in layers] for _ in range(samples)]
        peers.append(draws[0] if samples == 1 else [torch.cat(each) for each in zip(*draws, strict=True)])
    if like.dim() == 1:
        return [each.to(like.device) for each in peers[0]]
    return [torch.stack(each).to(like.device) for each in zip(*peers, strict=True)]
