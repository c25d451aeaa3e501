"""The contract of training: what a peer does in a round, whoever combines what the peers send.

An algorithm is functions over frozen dataclasses of tensors (`leaves.py`), built on a `Workbench`; its keyword-only
parameters are its settings. The functions take leading dimensions: the same code trains one peer `(n,)` and a block of
peers `(B, n)`. They know nothing of who averages with whom, who answered, or how anything travels. What a peer keeps
for itself survives in `Client`.

In a round a peer trains from what it has received, and sends what came of it. Among equals both are the vectors that
are averaged, `Sent` before the averaging and `Received` after it: gossip, or a coordinator, combines them slice by
slice as the plan says. An algorithm with a server says itself how they are combined (`coordinated.py`).

Imports no torch, so that what an algorithm shares can be told without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from fedpeer.algorithms.batches import Batches
    from fedpeer.slicing.models import PartialModel
    from fedpeer.slicing.network import NetworkMap

Client = TypeVar("Client")
Received = TypeVar("Received", contravariant=True)
Sent = TypeVar("Sent", covariant=True)

#: What an algorithm shares: nothing, the federation's partial models, one model that owns everything, partial models of
#: its own, what clients say to a coordinator, or the data.
Sharing = Literal["nothing", "partial models", "everything", "own models", "with a coordinator", "the data"]


@dataclass(frozen=True)
class Method:
    """What an algorithm with its settings shares, known before there are data and a network.

    cross_model   whether weights between unrelated models are averaged too (Algorithm 2)
    models        of own models: which these are in a network
    own_weights   whether each averaging begins anew, from the algorithm's own weights
    vectors       how many vectors (n,) of a peer are averaged
    linear        of the data: lam and passes of a linear model that is solved; None for the network's own training
    """

    sharing: Sharing
    cross_model: bool = False
    models: Callable[[NetworkMap], tuple[PartialModel, ...]] | None = None
    own_weights: bool = False
    vectors: int = 1
    linear: tuple[float, float] | None = None

    @property
    def served(self) -> bool:
        """Whether it has a server."""
        return self.sharing == "with a coordinator"

    @property
    def averages(self) -> bool:
        """Whether its peers are equals that average something."""
        return self.sharing not in ("nothing", "with a coordinator", "the data")

    @property
    def pooled(self) -> bool:
        """Whether all examples are in one place, which only a simulation can do."""
        return self.sharing == "the data"


class Algorithm(Protocol[Client, Received, Sent]):
    """The side of a peer.

    sharing   what it shares, where the settings do not change that; else `method` says it
    """

    sharing: ClassVar[Sharing] = "nothing"

    @classmethod
    def method(cls, **settings: Any) -> Method:
        """What it shares with these settings."""
        return Method(cls.sharing)

    def start_client(self, values_n: Tensor, examples: Tensor) -> Client:
        """A peer before its first round: initial parameters (..., n), and how many examples it trains on (...)."""
        ...

    def start_averaged(self, values_n: Tensor) -> Any:
        """What equals average, before the first round: `Sent` for initial parameters (..., n)."""
        raise AssertionError(f"{type(self).__name__} averages nothing among equals")

    def train(self, client: Client, received: Received, batches: Batches, keys: Sequence[int]) -> tuple[Client, Sent]:
        """A round of local steps; `keys` name the streams of randomness, one a peer. What came in is unchanged."""
        ...

    def weights(self, client: Client, index_D: NDArray[np.int64]) -> Tensor | None:
        """(...) float64 above 0: the weights with which an averaging after training starts, in a group of these places.

        None where they are not the algorithm's business: all alike, or by examples, as the federation says.
        """
        return None

    def personal_model(self, client: Client) -> Tensor | None:
        """(..., n) the model that a peer predicts with; None where that is what is averaged."""
        return None

    def statistics(self, client: Client, shared: Any) -> Mapping[str, Tensor]:
        """Numbers of each peer (...) that a report shows, by name; none by default.

        `shared` is what a peer holds for the average, or the server after the round.
        """
        return {}
