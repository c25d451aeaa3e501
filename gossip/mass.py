"""Mass: a value and the push-sum weight that travels with it. Gossip moves mass, and must not lose any.

A peer's estimate of the average is value / weight. Adding, subtracting and scaling always act on both, so that the
total over all peers and everything under way is the same before and after any protocol. Masses are float64
accumulators: a share is rounded for the wire before it is debited, so the rounding error stays with the sender.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Mass:
    """A part of a group's total, held by a peer or under way.

    value_D    (..., D) float64, the weighted sum of estimates, not divided by the weight
    weight     (...) float64, no unit, > 0 wherever anything is held
    """

    value_D: Tensor
    weight: Tensor

    def __post_init__(self) -> None:
        assert self.value_D.dtype == self.weight.dtype == torch.float64, "masses are float64 accumulators"
        assert self.value_D.shape[:-1] == self.weight.shape, "one weight for each vector"

    @staticmethod
    def of(estimate_D: Tensor, weight: Tensor | float = 1.0) -> Mass:
        """Return the mass of a peer that enters with this estimate, (..., D), and weight, a number or (...)."""
        value_D = estimate_D.to(torch.float64)
        weight = torch.as_tensor(weight, dtype=torch.float64, device=value_D.device).expand(value_D.shape[:-1])
        return Mass(value_D * weight[..., None], weight)

    @property
    def estimate_D(self) -> Tensor:
        """The holder's estimate of the average, (..., D) float64."""
        return self.value_D / self.weight[..., None]

    @property
    def length(self) -> float:
        """The length of the estimate of one vector."""
        return float(self.value_D.norm()) / float(self.weight)

    def distance(self, other: Mass) -> float:
        """Return the distance between two estimates of one vector, without computing either estimate."""
        difference_D = torch.sub(self.value_D, other.value_D, alpha=float(self.weight / other.weight))
        return float(difference_D.norm()) / float(self.weight)

    def __add__(self, other: Mass) -> Mass:
        return Mass(self.value_D + other.value_D, self.weight + other.weight)

    def __sub__(self, other: Mass) -> Mass:
        return Mass(self.value_D - other.value_D, self.weight - other.weight)

    def scaled(self, factor: float) -> Mass:
        return Mass(self.value_D * factor, self.weight * factor)
