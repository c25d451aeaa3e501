"""The clients' confidences as pFedVEM's figures show them."""

from __future__ import annotations

from torch import Tensor


def confidence_ratio(tau_J: Tensor) -> Tensor:
    """Return tau_j / (sum of all clients' tau), shape (..., J); figure 10 shows its distribution."""
    return tau_J / tau_J.sum(-1, keepdim=True)
