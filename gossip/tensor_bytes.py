"""The bytes of a tensor, as they are sent and stored."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

#: Types that hold received bytes.
Bytes = bytes | bytearray | memoryview


def raw(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes, little-endian; a view if the tensor is contiguous."""
    assert sys.byteorder == "little", "bytes of tensors are little-endian; this machine would have to swap them"
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
