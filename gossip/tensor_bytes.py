"""The bytes of a tensor, as they travel and are kept."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

#: What bytes may come in.
Bytes = bytes | bytearray | memoryview


def raw(tensor: Tensor) -> memoryview:
    """A tensor's bytes, little-endian; a view where it is contiguous."""
    assert sys.byteorder == "little", "bytes of tensors are little-endian; this machine would have to swap them"
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
