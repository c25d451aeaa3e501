"""FedRep: FedPer, but the head is trained first, on the base as received, and then the base under that head.

Source: Collins, Hassani, Mokhtari, Shakkottai, Exploiting Shared Representations for Personalized Federated Learning,
2021, Algorithm 1. The paper takes one base step a round and gives all clients the same weight; here the base takes the
rest of the round's steps, and the mean is weighted by n_k as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.partial_training import HeadFirst
from fedpeer.algorithms.servers.fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedPer with the head trained first, and then the base under it.

    Head and base each take at least one step; if the round has a single batch, both take their step on it.

    Args:
        head: as in FedPer.
        head_share: share of the round's steps that train the head, 0 to below 1; default 0.5. With 0 all heads stay as
            they began.
    """

    _: KW_ONLY
    head_share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self._parts, "built now, so that what it refuses is refused now"

    @cached_property
    def _parts(self) -> HeadFirst:
        return HeadFirst(self.context, self.head, self.head_share)

    def learn(self, start_n: Tensor, batches: Batches, keys: Sequence[int]) -> Tensor:
        return self._parts.with_base(self._parts.with_head(start_n, batches, keys), batches, keys)
