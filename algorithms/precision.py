"""The precision of a device: its widest floating-point type, and convolutions that do not round float32."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def widest(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on Apple's GPUs, which have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def unrounded(device: str) -> Iterator[None]:
    """Make convolutions on NVIDIA's GPUs compute in float32 within this context.

    Otherwise torch lets them round their inputs to ten bits (TF32), and a gradient's error is then a few percent, so
    that a GPU's numbers would differ from a CPU's. Matrix products are not rounded unless a program asks for it.

    It also suppresses cuDNN's warning that the weights of an LSTM or GRU are copied at each call: they are views of a
    peer's row, and cuDNN needs them in its own order.
    """
    if not device.startswith("cuda"):
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        yield
