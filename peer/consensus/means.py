"""Mean of an averaging group, computed by its coordinator, and the spec of such a group.

Each member trains for itself and sends its slice of the result with its weight. The coordinator takes the weighted
mean, which is committed like the server's model of an algorithm that has one. `mean_bytes.py` has the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import numpy as np
from torch import Tensor

from fedpeer.gossip.tensor_bytes import raw
from fedpeer.peer.consensus import round_results
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.events import AggregateUpdates, UpdatesAggregated
from fedpeer.peer.wire.mean_bytes import VALUES, WEIGHT, mean_from_bytes, weight_and_values
from fedpeer.rejection import Rejection

#: Parts of a waiting time: for the peer's capability, and for not being the first of this group. So the group decides
#: nothing between a peer with an accelerator and a peer without one, and everything among equally capable peers.
CAPABLE, FIRST = 2 / 3, 1 / 3


def mean_result(job: AggregateUpdates) -> UpdatesAggregated:
    """Return the mean of the updates that arrived; it lies between them, so it is finite as they are."""
    return round_results.server_result(job, mean_from_bytes(tuple(job.updates.values())), sound=True)


def spec_of(value_D: Tensor, *, weight_max: float, patience: float) -> AlgorithmSpec:
    """Return the spec of a group with these initial values (D,).

    Args:
        weight_max: upper bound of one member's weight.
        patience: see `AlgorithmSpec`.
    """
    size = len(value_D) * VALUES.itemsize

    def wrong(data: bytes) -> Rejection | None:
        weight, value_D = weight_and_values(data)
        if not 0 < weight <= weight_max:  # false for NaN too
            return Rejection("bad_weight", f"{weight}; at most {weight_max:g}")
        missing = value_D.size - int(np.isfinite(value_D).sum())
        return Rejection("not_finite", f"{missing} of {value_D.size} numbers are NaN or infinite") if missing else None

    return AlgorithmSpec(
        server_bytes=size,
        update_bytes=WEIGHT.size + size,
        server=bytes(raw(value_D)),
        client=b"",
        takes_part=lambda round, among: tuple(among),
        fault=wrong,
        sound=lambda data: bool(np.isfinite(np.frombuffer(data, VALUES)).all()),
        everyone=lambda round: True,
        patience=patience,
        trains_at_once=False,
    )


def patience_in(group: str, me: str, members: Collection[str], capable: float) -> float:
    """Return how long a peer waits before it stands for coordinator of this group, from 0 to 1.

    `capable` is its waiting time by capability (`capability.py`). Among equally capable members, each group has its own
    first one.
    """
    first = min(members, key=lambda peer: hashlib.blake2b(f"{group} {peer}".encode(), digest_size=8).digest())
    return CAPABLE * capable + (0.0 if me == first else FIRST)
