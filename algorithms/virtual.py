"""VIRTUAL's algebra: a server's posterior that is the product of its clients' factors, refined one or many at a time.

The server holds s(theta), client i its factor s_i(theta), and s = prod_i s_i at all times. A client takes its own
factor out (the cavity) and trains a posterior against cavity times a share of the prior. The ratio of its new factor to
its old one, the delta, is what the client has learnt. Deltas are multiplied into the server. The prior is inside the
factors and is not multiplied in again.

Damping and pruning change the delta, and the client stores exactly what it sent; otherwise the server would no longer
be the product, and the next cavity would be meaningless. The posterior is trained as (mu, rho), so it is always a
distribution; factors and deltas are derived from it, and their precisions may have any sign. A named rule
(`Positivity`) keeps the server's precision positive. It returns for each coordinate which part of the deltas was taken,
so that clients can store the same part.

The networks are in `networks/bayesian.py`. Sources: Corinzia, Buhmann, 2019 ("2019") and Corinzia, Beuret, Buhmann,
2021 ("2021"), both Variational federated multi-task learning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from torch import Tensor

from fedpeer.algorithms.gaussian import Gaussian

#: The share of the prior in each client's reference: equal (2021), by number of examples, or all of it (2019).
Exponent = Literal["1/K", "n/N", "1"]
#: Where the deltas would make a coordinate's precision too small: take a smaller part of them, or none.
Positivity = Literal["shrink", "reject"]
#: The share of a coordinate's precision that one round must leave. With 1/100 a weight's standard deviation can grow
#: tenfold, more than data can justify in a round; a coordinate near zero precision could have any mean.
LEAST_LEFT = 0.01
#: How the places of the kept weights are sent: not at all (all are kept), one bit a weight, or a list of numbers.
_Index = Literal["none", "bitmap", "list"]


def cavity(server: Gaussian, factor: Gaussian) -> Gaussian:
    """Return the other clients' knowledge: the received server over the stored factor (2021, algorithm 1, line 7).

    The factor may be many rounds older than the server. If several clients refine at a time, the cavity's precision can
    be negative; it stays negative, and only the reference is floored.
    """
    return server / factor


def reference(cavity: Gaussian, prior: Gaussian, exponent: Tensor | float) -> Gaussian:
    """Return the reference that a client's posterior is held near: cavity times prior^exponent.

    2021, algorithm 1, line 7. The caller floors it where it serves as a distribution.
    """
    return cavity * prior**exponent


def fedavg_start(server: Gaussian, cavity: Gaussian, share: Tensor | float) -> Gaussian:
    """Return the start of training in the ablation "+ FedAvg init" (2021, section IV.F), which forgets the own factor.

    The server to the power of the client's share (1/K or n/N) replaces it. Without the ablation a client starts from
    the server itself, which is cavity times own factor. The caller floors it, like the reference.
    """
    return cavity * server**share


def damped(new: Gaussian, old: Gaussian, gamma: float) -> Gaussian:
    """Return new^gamma old^(1 - gamma) (2021, appendix D); gamma in (0, 1] is the weight of the new factor."""
    return new if gamma == 1 else new**gamma * old ** (1 - gamma)


def delta(new: Gaussian, old: Gaussian) -> Gaussian:
    """Return the delta that a client sends: its new factor over its old one (2021, algorithm 1, line 9)."""
    return new / old


def client_delta(posterior: Gaussian, cavity: Gaussian, factor: Gaussian, *, gamma: float = 1.0) -> Gaussian:
    """Return the delta that a client sends, unless it is pruned, after training a posterior (..., D).

    Args:
        gamma: damping, in (0, 1]; default 1: none.
    """
    return delta(damped(posterior / cavity, factor, gamma), factor)


@dataclass(frozen=True)
class Aggregate:
    """The server after a round.

    server    (..., D) a distribution
    taken_D   (..., D) in [0, 1]: the power to which the deltas were taken; clients store factor * delta^taken
    """

    server: Gaussian
    taken_D: Tensor


def applied(
    server: Gaussian, change: Gaussian, *, positivity: Positivity = "shrink", server_lr: float = 1.0
) -> Aggregate:
    """Return the server after a change (..., D), the product of a round's deltas, is multiplied in.

    Where the precision would fall below `LEAST_LEFT` of what it was, the rule takes a smaller part of that coordinate's
    change, or nothing.

    Args:
        server_lr: eta_s, 2021 appendix D; default 1. With any other value, clients do not store the same change, so the
            server is no longer the product of their factors; the setting is there to reproduce the paper.
    """
    change = change**server_lr
    lost_D = -change.xi_D
    room_D = (1 - LEAST_LEFT) * server.xi_D
    too_much_D = lost_D > room_D
    match positivity:
        case "shrink":
            part_D = room_D / torch.where(too_much_D, lost_D, 1.0)
        case "reject":
            part_D = torch.zeros_like(room_D)
        case _:
            assert_never(positivity)
    taken_D = torch.where(too_much_D, part_D, 1.0)
    return Aggregate(server * change**taken_D, taken_D)


def stored(factor: Gaussian, delta: Gaussian, taken_D: Tensor | float = 1.0) -> Gaussian:
    """Return the factor that a client keeps: its old factor times the part of its delta that the server took."""
    return factor * delta**taken_D


def update_snr(delta: Gaussian, new: Gaussian) -> Tensor:
    """Return the signal-to-noise ratio of an update, |chi_new - chi_old| / sqrt(xi_new), (..., D) (2021, section IV.F).

    `new` is a distribution, the posterior, since a factor's precision may be negative.
    """
    return delta.chi_D.abs() / new.xi_D.sqrt()


def posterior_snr(new: Gaussian) -> Tensor:
    """Return the signal-to-noise ratio of weights, |mu| / sigma, (..., D).

    Blundell et al., Weight uncertainty, 2015, 5.1.
    """
    return new.chi_D.abs() / new.xi_D.sqrt()


def snr_threshold(snr_D: Tensor, percentile: float) -> Tensor:
    """Return the percentile (0..100) of one tensor's D ratios, (...), with linear interpolation."""
    place = percentile * (snr_D.shape[-1] - 1) / 100
    below = int(place)
    sorted_D = snr_D.sort(-1).values
    above = min(below + 1, snr_D.shape[-1] - 1)
    return torch.lerp(sorted_D[..., below], sorted_D[..., above], place - below)


def kept_weights(snr_D: Tensor, percentile: float) -> Tensor:
    """Return the weights whose ratio reaches the percentile of their tensor, (..., D) bool; at 0 all weights."""
    return snr_D >= snr_threshold(snr_D, percentile)[..., None]


def pruned(delta: Gaussian, keep_D: Tensor) -> Gaussian:
    """Return the delta with both natural parameters 0, which is the factor 1, wherever `keep_D` (bool) is False."""
    return delta**keep_D


def delta_bytes(size: int, kept: int, index: _Index) -> int:
    """Return the bytes of a tensor's pruned delta.

    It has two scalars of 4 bytes for each kept weight, and the places of these weights.
    """
    match index:
        case "none":
            assert kept == size, "the places of pruned weights must be sent"
            bits = 0
        case "bitmap":
            bits = size
        case "list":
            bits = kept * (size - 1).bit_length()
        case _:
            assert_never(index)
    return 8 * kept + -(-bits // 8)
