"""The contract of algorithms in which peers are equals.

An algorithm is functions over tensors with leading dimensions: the same code trains one peer `(n,)` and a block
`(B, n)`. It knows nothing of who averages with whom: between two rounds somebody (gossip, or a coordinator) changes
the parameters, slice by slice as the plan says. What a peer keeps for itself is its `State`; what it learnt in a
round is its `Change`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.slicing.plan import Plan

State = TypeVar("State")


@dataclass(frozen=True)
class Change:
    """What a round of local steps made of the estimate: `trained_n` (..., n).

    The group's mass moves by `weight * (trained - estimate)`, the weight untouched, so that the estimate moves by
    exactly what was trained and what arrived meanwhile is kept.
    """

    trained_n: Tensor


class GossipAlgorithm(Protocol[State]):
    """Peers as equals."""

    def start(self, plan: Plan, values_n: Tensor) -> State:
        """The state before the first round; `values_n` (..., n) are the initial parameters."""
        ...

    def train(self, state: State, estimate_n: Tensor, batches: Batches, keys: Sequence[int]) -> tuple[State, Change]:
        """A round of local steps from the estimate; `keys` name the streams of randomness, one a peer."""
        ...

    def weights(self, state: State, index_D: NDArray[np.int64]) -> Tensor | None:
        """(...) float64 above 0: the weights with which an averaging after training starts, in a group of these places.

        None where they are not the algorithm's business: all alike, or by examples, as the federation says.
        """
        return None

    def personal_model(self, state: State) -> Tensor | None:
        """(..., n) the model that a peer predicts with; None where that is the estimate."""
        return None

    def statistics(self, state: State, estimate_n: Tensor) -> Mapping[str, Tensor]:
        """Numbers of each peer (...) that a report shows, by name; none by default."""
        return {}
