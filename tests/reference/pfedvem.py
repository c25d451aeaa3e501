"""What pFedVEM's figures show of the clients' confidences."""

from __future__ import annotations

from torch import Tensor


def confidence_ratio(tau_J: Tensor) -> Tensor:
    """tau_j / (sum of all clients' tau), shape (..., J): what figure 10 shows the distribution of."""
    return tau_J / tau_J.sum(-1, keepdim=True)
