"""pFedVEM without a server: peers as equals, who gossip a base and a global head and keep heads of their own.

All that a server does in pFedVEM is to take two weighted means, sum of weight * value over sum of weights: of bases by
numbers of examples n_j (Algorithm 1, line 6), of heads by confidence tau_j (line 5). Push-sum computes just that in a
group whose averaging starts anew from the masses (weight * value, weight), and at every moment both sums are over the
same peers in the same parts. So base and head are two averaging groups, and each averaging starts from the weights that
`weights` gives. Nothing travels beside what travels anyway, and what keeps masses whole under loss keeps these.

A peer's estimate stands for what a server would have told it, (theta, w). Its change takes the estimate to its own base
and head, which therefore are what it puts in. What it predicts with is its own model, not the estimate.

Source: Zhu, Ma, Blaschko, CVPR 2023 (`pfedvem.py`); Kempe, Dobra, Gehrke 2003 for the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.contract import Change, GossipAlgorithm
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.pfedvem import confidence
from fedpeer.algorithms.servers.models import Model
from fedpeer.algorithms.servers.pfedvem import Personal, PFedVEM
from fedpeer.slicing.models import PartialModel
from fedpeer.slicing.plan import Plan


def base_and_head(head: str) -> tuple[PartialModel, PartialModel]:
    """The partial models whose groups are the base and the head, for everybody; `head`: its layer by dotted name."""
    return PartialModel("base", (), "all"), PartialModel("head", ("base",), modules=(head,))


@dataclass(frozen=True, eq=False)
class Trusting(Personal):
    """What a peer keeps between rounds: what a client does, and the confidence of its last training.

    tau     (...) 1 / rho^2, from its head before that training and the w that it took to be the global one
    """

    tau: Tensor


@dataclass(frozen=True)
class ConfidentPeers(GossipAlgorithm[Trusting]):
    """pFedVEM without a server: a base and a global head are gossiped, under heads of one's own.

    `client` is how each peer trains, as under a server.
    """

    client: PFedVEM

    def start(self, plan: Plan, values_n: Tensor) -> Trusting:
        """All heads are the common one, and all confidences 1 / sigma^2; examples are counted when they are met.

        Raises:
            AlgorithmError: a group of the plan holds numbers of both base and head.
        """
        for group in plan.groups:
            for index_D in group.indices.values():
                self._is_head(index_D, group.id)
        begun = self.client.start_client(values_n, torch.ones(values_n.shape[:-1], dtype=torch.int64))
        tau = confidence(self.client.head_of(begun), self.client.parted(values_n)[1], self.client.terms)
        return Trusting(begun.model_n, begun.examples, begun.pi_D, tau)

    def train(
        self, state: Trusting, estimate_n: Tensor, batches: Batches, keys: Sequence[int]
    ) -> tuple[Trusting, Change]:
        """A turn as under a server that has said `estimate_n` (..., n) to each."""
        examples = torch.tensor([len(each) for each in batches.whole], device=state.examples.device)
        own = Personal(state.model_n, examples.reshape(state.examples.shape), state.pi_D)
        kept, sent = self.client.train(own, Model(estimate_n), batches, keys)
        return Trusting(kept.model_n, kept.examples, kept.pi_D, sent.tau), Change(sent.model_n)

    def weights(self, state: Trusting, index_D: NDArray[np.int64]) -> Tensor:
        """(...) float64: with what weight an averaging after this state's training starts, in a group of these places.

        tau in the head's group, n in the base's; both above 0.
        """
        return (state.tau if self._is_head(index_D) else state.examples).to(torch.float64)

    def personal_model(self, state: Trusting) -> Tensor:
        """(..., n) the model that a peer predicts with: its own base under the mean of its own head."""
        return state.model_n

    def statistics(self, state: Trusting, estimate_n: Tensor) -> dict[str, Tensor]:
        """Confidence, deviation and uncertainty (...) against what each takes to be the global head."""
        return self.client.statistics(state, Model(estimate_n))

    def _is_head(self, index_D: NDArray[np.int64], group: str = "") -> bool:
        inside_D = (index_D >= self.client.span.start) & (index_D < self.client.span.stop)
        if inside_D.any() and not inside_D.all():
            raise AlgorithmError(
                f'group "{group}" holds numbers of both base and head, which are averaged by weights of their own; '
                "let one partial model claim all, and another, which depends on it, the head's layer"
            )
        return bool(inside_D.all())
