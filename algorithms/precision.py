"""The widest floating-point type of a device, in which sums over many values are taken."""

from __future__ import annotations

import torch


def widest(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on Apple's GPUs, which have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
