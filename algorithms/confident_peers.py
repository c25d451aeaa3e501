"""pFedVEM without a server: peers gossip a base and a global head, and each keeps its own head.

A server in pFedVEM only takes two weighted means, sum of weight * value over sum of weights: the mean of bases by
numbers of examples n_j (Algorithm 1, line 6), and the mean of heads by confidence tau_j (line 5). Push-sum computes the
same in a group whose averaging starts again from the masses (weight * value, weight), and both sums always contain the
same fractions of the same peers. So base and head are two averaging groups, and each averaging starts from the weights
that `weights` returns. No other message is sent, and these masses are conserved under message loss like all others.

A peer's estimate replaces the broadcast of a server, (theta, w). Training turns the estimate into the peer's own base
and head, which it then contributes to the next average. It predicts with its own model, not with the estimate.

Source: Zhu, Ma, Blaschko, CVPR 2023 (`pfedvem.py`); Kempe, Dobra, Gehrke 2003 for the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.contract import Algorithm, Method, Sharing
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.pfedvem import confidence
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.algorithms.servers.pfedvem import PersonalHeads, PFedVEMClient
from fedpeer.slicing.models import PartialModel
from fedpeer.slicing.network import NetworkMap


def base_and_head(network: NetworkMap, head: str = "") -> tuple[PartialModel, PartialModel]:
    """Return the partial models whose groups are the base and the head, for all peers.

    Args:
        head: the head's layer by dotted name; default: the last layer with parameters.
    """
    last = [tensor.module for tensor in network.tensors if tensor.kind == "parameter"][-1]
    return PartialModel("base", (), "all"), PartialModel("head", ("base",), modules=(head or last,))


@dataclass(frozen=True, eq=False)
class Trusting(PFedVEMClient):
    """State of a peer between rounds: the state of a client, and the confidence of its last training.

    tau     (...) 1 / rho^2, from its head before that training and its estimate w of the global head
    """

    tau: Tensor


@dataclass(frozen=True)
class ConfidentPeers(PersonalHeads, Algorithm[Trusting, ServerModel, ServerModel]):
    """pFedVEM without a server: peers average a base and a global head, and each keeps its own head.

    Its settings are those of `servers.pfedvem.PersonalHeads`.
    """

    sharing: ClassVar[Sharing] = "own models"

    @classmethod
    def method(cls, *, head: tuple[str, ...] = (), **settings: Any) -> Method:
        models = partial(base_and_head, head="".join(head[:1]))
        return Method(cls.sharing, models=models, own_weights=True, bayesian=cls.bayesian, own_loss=cls.own_loss)

    def start_client(self, values_n: Tensor, examples: Tensor) -> Trusting:
        """Return the first state: all heads are the common one, and all confidences 1 / sigma^2."""
        begun = self.begun(values_n, examples)
        tau = confidence(self.head_of(begun), self.parted(values_n)[1], self.terms)
        return Trusting(begun.model_n, begun.examples, begun.pi_D, tau)

    def train(
        self, client: Trusting, received: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[Trusting, ServerModel]:
        """Return state and model after a client's turn, with `received` (..., n) in place of the broadcast."""
        examples = torch.tensor([len(each) for each in batches.whole], device=client.examples.device)
        own = PFedVEMClient(client.model_n, examples.reshape(client.examples.shape), client.pi_D)
        kept, tau = self.turn(own, received, batches, keys)
        return Trusting(kept.model_n, kept.examples, kept.pi_D, tau), ServerModel(kept.model_n)

    def weights(self, client: Trusting, index_D: NDArray[np.int64]) -> Tensor:
        """Return the weights of a group, (...): tau in the head's group, n in the base's group.

        Raises:
            AlgorithmError: the group holds parameters of both.
        """
        inside_D = (index_D >= self.span.start) & (index_D < self.span.stop)
        if inside_D.any() and not inside_D.all():
            raise AlgorithmError(
                "an averaging group holds numbers of both base and head, which need different weights; let one partial "
                "model claim the whole network, and another one, which depends on it, the head's layer"
            )
        return (client.tau if inside_D.all() else client.examples).to(torch.float64)

    def personal_model(self, client: Trusting) -> Tensor:
        """Return the model that a peer predicts with, (..., n): its own base under the mean of its own head."""
        return client.model_n

    def statistics(self, client: Trusting, shared: ServerModel) -> dict[str, Tensor]:
        """Return confidence, deviation and uncertainty (...) of each peer against its estimate of the global head."""
        return self.trust(client, shared)
