"""The widest floating-point type of a device: sums over many values are kept in it."""

from __future__ import annotations

import torch


def widest(device: torch.device) -> torch.dtype:
    """float64, but float32 on Apple's GPUs, which have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
