"""Groups that a coordinator averages: a member's update and the mean as bytes.

Sums are taken in float64 in the order of ids, and the mean is sent as float32 like the parameters, so it is the same
whichever peer coordinates.

    an update: weight f64 | values f32, D of them          a mean: values f32, D of them          all little-endian
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.gossip.tensor_bytes import raw

WEIGHT = Struct("<d")
VALUES = np.dtype("<f4")


def update_of(weight: float, value_D: Tensor) -> bytes:
    """Return a member's update as bytes: its weight, and its slice (D,) float32."""
    return WEIGHT.pack(weight) + raw(value_D)


def mean_from_bytes(updates: Sequence[bytes]) -> bytes:
    """Return the weighted mean of one or more updates as bytes, summed in their order."""
    total_D, weights = np.zeros(0), 0.0
    for number, update in enumerate(updates):
        weight, value_D = weight_and_values(update)
        total_D = weight * value_D if not number else total_D + weight * value_D
        weights += weight
    return (total_D / weights).astype(VALUES).tobytes()


def values_of(content: bytes, length: int) -> Tensor:
    """Return the mean, (D,) float32 with D = `length`, in the content of a committed round (`leaf_bytes.py`)."""
    return torch.from_numpy(np.frombuffer(content[-length * VALUES.itemsize :], VALUES).astype(np.float32))


def weight_and_values(update: bytes) -> tuple[float, NDArray[np.float64]]:
    """Return the weight and the slice, (D,) float64, in a member's update."""
    (weight,) = WEIGHT.unpack_from(update)
    return float(weight), np.frombuffer(update, VALUES, offset=WEIGHT.size).astype(np.float64)
