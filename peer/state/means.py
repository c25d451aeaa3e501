"""The mean of an averaging group by its coordinator: what its council must know, and what the coordinator computes.

Members are equals. Each trains for itself and sends its slice of what came of it, with its weight; the coordinator
takes the weighted mean, which is decreed like the server of an algorithm that has one. Sums are taken in float64 in the
order of ids, and the mean travels as float32 like the parameters, so it is the same whoever coordinates.

    an update: weight f64 | values f32, D of them          a mean: values f32, D of them          all little-endian
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from struct import Struct

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.peer.state import course
from fedpeer.peer.state.course import AlgorithmSpec
from fedpeer.peer.state.events import AggregateUpdates, UpdatesAggregated
from fedpeer.peer.wire.framing import raw
from fedpeer.rejection import Rejection

_WEIGHT = Struct("<d")
_VALUES = np.dtype("<f4")
#: How a waiting time is made up: of how capable the peer is, and of whether another one is the first of this group. So
#: between a peer with an accelerator and one without the group decides nothing, and among equals everything.
CAPABLE, FIRST = 2 / 3, 1 / 3


def update_of(weight: float, value_D: Tensor) -> bytes:
    """A member's update: its weight, and its slice (D,) float32."""
    return _WEIGHT.pack(weight) + raw(value_D)


def mean_of(updates: Sequence[bytes]) -> bytes:
    """The weighted mean of these updates, one or more, summed in their order."""
    total_D, weights = np.zeros(0), 0.0
    for number, update in enumerate(updates):
        weight, value_D = _parted(update)
        total_D = weight * value_D if not number else total_D + weight * value_D
        weights += weight
    return (total_D / weights).astype(_VALUES).tobytes()


def values_of(content: bytes, length: int) -> Tensor:
    """(D,) float32: the `length` numbers of the mean in a content that was decreed (`leaf_bytes.py`)."""
    return torch.from_numpy(np.frombuffer(content[-length * _VALUES.itemsize :], _VALUES).astype(np.float32))


def concluded(job: AggregateUpdates) -> UpdatesAggregated:
    """The end of a round: the mean of the updates that came, of numbers like them since it lies between them."""
    return course.concluded(job, mean_of(tuple(job.updates.values())), sound=True)


def course_of(value_D: Tensor, *, weight_max: float, patience: float) -> AlgorithmSpec:
    """What a node must know of a group whose values (D,) this peer starts with.

    Args:
        weight_max: the most that one member's weight may be.
        patience: see `AlgorithmSpec`.
    """
    size = len(value_D) * _VALUES.itemsize

    def wrong(data: bytes) -> Rejection | None:
        weight, value_D = _parted(data)
        if not 0 < weight <= weight_max:  # false for NaN too
            return Rejection("bad_weight", f"{weight}; at most {weight_max:g}")
        missing = value_D.size - int(np.isfinite(value_D).sum())
        return Rejection("not_finite", f"{missing} of {value_D.size} numbers are NaN or infinite") if missing else None

    return AlgorithmSpec(
        server_bytes=size,
        update_bytes=_WEIGHT.size + size,
        server=bytes(raw(value_D)),
        client=b"",
        takes_part=lambda round, among: tuple(among),
        fault=wrong,
        sound=lambda data: bool(np.isfinite(np.frombuffer(data, _VALUES)).all()),
        everyone=lambda round: True,
        patience=patience,
    )


def patience_in(group: str, me: str, members: Collection[str], capable: float) -> float:
    """How long a peer waits before it stands for coordinator of this group, from 0 to 1: `capable` is its waiting time
    by what it can do (`capability.py`), and in each group another member is first among those who can do alike."""
    first = min(members, key=lambda peer: hashlib.blake2b(f"{group} {peer}".encode(), digest_size=8).digest())
    return CAPABLE * capable + (0.0 if me == first else FIRST)


def _parted(update: bytes) -> tuple[float, NDArray[np.float64]]:
    (weight,) = _WEIGHT.unpack_from(update)
    return float(weight), np.frombuffer(update, _VALUES, offset=_WEIGHT.size).astype(np.float64)
