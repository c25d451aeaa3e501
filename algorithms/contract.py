"""The contract of training: one peer's part in a round, however the results of all peers are then combined.

An algorithm is a class of pure functions over frozen dataclasses of tensors (`leaves.py`). It is built on a
`TrainingContext` (network, loss, local optimizer), and its keyword-only parameters are the settings that users write.
One round of one peer is one call:

    client, sent = algorithm.train(client, received, batches, keys)

    Client     state that the peer keeps between rounds and never sends
    Received   what the peer trains from
    Sent       what the peer sends after its local steps

- Peers without a server: `Sent` and `Received` are the same vectors, before and after they were averaged. Gossip or a
  coordinator averages them slice by slice, as the plan says.
- With a server (`coordinated.py`): `Received` is the server's broadcast, `Sent` a client's update, and the algorithm
  itself says how the server combines the updates.

The same code trains one peer and a block of peers: every tensor may have leading dimensions, (n,) for one peer and
(B, n) for a block of B; `...` in a shape stands for either. n is the length of a peer's flat parameter vector. The
functions do no IO and draw random numbers from `keys` only; they do not know which peers average together, which peers
answered, or how messages travel.

Examples, simplest first: `local_training.py` (average the model), `gradient_tracking.py` (average two vectors),
`noloco.py` (average a vector from which each peer derives its model), `confident_peers.py` (its own state, and weights
of the averages), `servers/fedavg.py` (a server). An algorithm with its own state derives from `Algorithm` or has its
own `Client`, whose leaves are all stored.

This module imports no torch: the `Method` of an algorithm can be read without loading torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpeer.algorithms.servers.models import ServerModel

if TYPE_CHECKING:
    from torch import Tensor

    from fedpeer.algorithms.batches import Batches
    from fedpeer.slicing.models import PartialModel
    from fedpeer.slicing.network import NetworkMap

Client = TypeVar("Client")
Received = TypeVar("Received", contravariant=True)
Sent = TypeVar("Sent", covariant=True)

#: What an algorithm shares:
#:   nothing              each peer learns alone
#:   partial models       the federation's partial models, slice by slice
#:   everything           the whole network, among all peers
#:   own models           partial models that the algorithm defines itself (`Method.models`)
#:   with a coordinator   the updates that clients send to a server
#:   the data             all examples, in one place
Sharing = Literal["nothing", "partial models", "everything", "own models", "with a coordinator", "the data"]


@dataclass(frozen=True)
class Method:
    """Sharing of an algorithm with given settings, known before there are data and a network.

    sharing       what is shared, and among which peers; see `Sharing`
    cross_model   whether weights between unrelated partial models are averaged too; default False (Bouchra Pilet, Frey,
                  Taiani 2021, Algorithm 2)
    models        with "own models": network -> the partial models that the algorithm shares; else None
    own_weights   whether every averaging starts again from the weights that `Algorithm.weights` returns; default False
    vectors       number of vectors (n,) that each peer averages, >= 1; default 1
    derived       whether a peer derives its model from its state and the average (`Algorithm.derived_model`); default
                  False: its model is the first averaged vector
    ratio         whether peers divide one averaged vector by another, so that averages must not be rounded coarsely;
                  default False
    linear        with "the data": (lam, passes) of a linear model that a solver fits; None: train the network itself
    bayesian      whether it learns distributions of parameters, so that calibration is measured; default False
    own_loss      whether it trains by a loss of its own, not by `learning.loss`; default False
    """

    sharing: Sharing
    cross_model: bool = False
    models: Callable[[NetworkMap], tuple[PartialModel, ...]] | None = None
    own_weights: bool = False
    vectors: int = 1
    derived: bool = False
    ratio: bool = False
    linear: tuple[float, float] | None = None
    bayesian: bool = False
    own_loss: bool = False

    @property
    def has_server(self) -> bool:
        """True if the algorithm has a server."""
        return self.sharing == "with a coordinator"

    @property
    def averages(self) -> bool:
        """True if peers average something without a server."""
        return self.sharing not in ("nothing", "with a coordinator", "the data")

    @property
    def averages_models(self) -> bool:
        """True if peers average their models without a server, and average nothing else."""
        return self.averages and self.vectors == 1 and not self.derived

    @property
    def pooled(self) -> bool:
        """True if all examples are in one place, which only a simulation can do."""
        return self.sharing == "the data"


class Algorithm(Protocol[Client, Received, Sent]):
    """The side of a peer; an algorithm with a server adds the other side (`coordinated.CoordinatedAlgorithm`).

    sharing    what the algorithm shares; where that depends on the settings, override `method` as well
    bayesian   whether it learns distributions of parameters
    own_loss   whether it trains by a loss of its own
    """

    sharing: ClassVar[Sharing] = "nothing"
    bayesian: ClassVar[bool] = False
    own_loss: bool = False

    @classmethod
    def method(cls, **settings: Any) -> Method:
        """Return what the algorithm shares under these settings."""
        return Method(cls.sharing, bayesian=cls.bayesian, own_loss=cls.own_loss)

    def start_client(self, values_n: Tensor, examples: Tensor) -> Client:
        """Return the state of a peer before its first round.

        Args:
            values_n: (..., n) initial parameters.
            examples: (...) number of examples that the peer trains on.
        """
        ...

    def start_averaged(self, values_n: Tensor) -> Any:
        """Return the vectors that peers without a server average first, for initial parameters (..., n).

        The default is the model alone.
        """
        return ServerModel(values_n)

    def train(self, client: Client, received: Received, batches: Batches, keys: Sequence[int]) -> tuple[Client, Sent]:
        """Return the peer's state after a round of local steps, and what it sends.

        Args:
            client: its state before the round.
            received: what the peer trains from: averaged vectors (..., n), or the broadcast (without leading
                dimensions).
            batches: its examples of the round, one batch a local step.
            keys: 128-bit keys of the streams of randomness, one for each peer.

        The arguments are not changed.
        """
        ...

    def weights(self, client: Client, index_D: NDArray[np.int64]) -> Tensor | None:
        """Return the weights with which the next averaging of a group starts, (...) float64 > 0.

        None leaves them to the federation: equal weights, or by number of examples.

        Args:
            client: the state after training.
            index_D: (D,) places of the group's parameters in the peer's vector.
        """
        return None

    def derived_model(self, client: Client, averaged: Any) -> Tensor | None:
        """Return the model of a peer without a server, (..., n); None where it is the first averaged vector.

        Args:
            client: the state after training.
            averaged: the peer's estimate of the average, of the type of `Sent`.
        """
        return None

    def personal_model(self, client: Client) -> Tensor | None:
        """Return the model that a peer predicts with, (..., n); None where it is the averaged or derived model."""
        return None

    def statistics(self, client: Client, shared: Any) -> Mapping[str, Tensor]:
        """Return numbers about each peer that a report shows, (...) by name; none by default.

        Args:
            client: the peer's state after the round.
            shared: the peer's estimate of the average, or the server's state after the round.
        """
        return {}
