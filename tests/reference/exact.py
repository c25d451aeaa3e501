"""The exact mean over the members of a group, in peer order and float64, and the distance of members from it.

Without a server it is all-to-all: everyone has every mass and sums in the same order, so all get the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpeer.gossip.mass import Mass


def weighted_mean(mass_PD: Mass) -> Tensor:
    """Return the sum of all values over the sum of all weights, (D,) float64, P rows in peer order."""
    return mass_PD.value_D.sum(dim=0) / mass_PD.weight.sum()


def variance(estimate_PD: Tensor) -> float:
    """Return the mean over the P rows of the squared Euclidean distance from their plain mean."""
    estimate_PD = estimate_PD.to(torch.float64)
    return float((estimate_PD - estimate_PD.mean(dim=0)).square().sum(dim=-1).mean())


def disagreement(estimate_PD: Tensor) -> float:
    """Return the relative spread of P estimates: root mean square distance from their mean over root mean square norm.

    From 0 (all equal) to 1 (the mean is zero); 0 if all are zero.
    """
    norm = float(estimate_PD.to(torch.float64).square().sum(dim=-1).mean())
    return (variance(estimate_PD) / norm) ** 0.5 if norm else 0.0
