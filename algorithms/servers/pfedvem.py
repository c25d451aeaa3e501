"""pFedVEM: a base shared as in FedAvg, under personal Bayesian heads; confidence holds each near the server's head.

The mathematics and the order of a client's turn are in `algorithms/pfedvem.py`. The server holds one model: the base
theta and the global head w. A client keeps a whole model too, its base and the mean of its own head, and the standard
deviations of that head. All clients train in every round, whether or not they take part. Participants are drawn as for
all other algorithms, a fixed number (the paper draws each client with the same probability).

Source: Zhu, Ma, Blaschko, Confidence-aware Personalized Federated Learning via Variational Expectation Maximization,
CVPR 2023, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedpeer.algorithms.bases import Base, base_of, head_span
from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError, CoordinatedAlgorithm
from fedpeer.algorithms.draws import Draws, branch
from fedpeer.algorithms.leaves import stack_states, take_rows
from fedpeer.algorithms.own_rule import check_gradients
from fedpeer.algorithms.pfedvem import SAMPLES, Head, Terms, confidence, feature_slopes, model_deviation, train_head
from fedpeer.algorithms.servers.models import Local, ServerModel
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.networks.bayesian import drawn_noise


@dataclass(frozen=True, eq=False)
class PFedVEMClient(Local):
    """State of a client: its base and the mean of its head as one model, n_k, and its head's raw standard deviations.

    pi_D    (..., D) as in `Head`
    """

    pi_D: Tensor


@dataclass(frozen=True, eq=False)
class PFedVEMUpdate(Local):
    """Update of a client: its base and the mean of its head as one model, n_k, and its confidence.

    tau     (...) weight of its head in the server's mean, where n_k is the weight of its base
    """

    tau: Tensor


@dataclass(frozen=True)
class PersonalHeads:
    """A peer's turn, with a server or without: personal Bayesian heads over a shared base.

    The base is trained by `learning.optimizer`, the head by full-batch steps of its own.

    Args:
        sigma: standard deviation of all numbers of a head at the start, > 0, in units of the weights; default 0.1.
        head_lr: learning rate of the head, >= 0; default 1e-4. The data term is a sum, so ten times the examples need a
            tenth of the rate.
        head_epochs: full-batch steps of the head in a round, >= 1; default 10.
        momentum: of the head's steps, in [0, 1); default 0.9.
        samples: draws of the head for one estimate of the loss, >= 1; default 5 (section 5.1).
        terms: terms of eq. (8) that make a confidence: "both" (default), "uncertainty" or "deviation" (ablations,
            Tables 2 and 3).
        head: name of the linear layer that is the head; default: the last module that has parameters.
    """

    bayesian: ClassVar[bool] = True
    own_loss = True

    context: TrainingContext
    _: KW_ONLY
    sigma: float = 0.1
    head_lr: float = 1e-4
    head_epochs: int = 10
    momentum: float = 0.9
    samples: int = SAMPLES
    terms: Terms = "both"
    head: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_gradients(self.context.module)
        if self.context.loss.name != "cross-entropy":
            raise AlgorithmError(
                f"learning.loss is {self.context.loss.name}, but the heads of pFedVEM classify; write cross-entropy"
            )
        if not self.sigma > 0:
            raise AlgorithmError(f"sigma = {self.sigma}: write a number above 0")
        if not self.head_lr >= 0:
            raise AlgorithmError(f"head_lr = {self.head_lr}: write 0 or more")
        if not 0 <= self.momentum < 1:
            raise AlgorithmError(f"momentum = {self.momentum}: write 0 or more and less than 1")
        if self.head_epochs < 1 or self.samples < 1:
            raise AlgorithmError(
                f"head_epochs = {self.head_epochs}, samples = {self.samples}: write 1 or more for both"
            )
        if len(self.head) > 1:
            raise AlgorithmError(f"head: {', '.join(self.head)} are {len(self.head)} layers; write a single one")
        assert self._base, "head and base are there"

    @cached_property
    def span(self) -> slice:
        """Place of the head in a model (..., n)."""
        return head_span(self.context, self._name)

    @cached_property
    def _base(self) -> Base:
        return base_of(self.context, self._name)

    @property
    def _name(self) -> str:
        parameters = [each for each in self.context.layout.tensors if each.kind == "parameter"]
        return self.head[0] if self.head else parameters[-1].module

    def parted(self, model_n: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bases (..., n - D) and the heads (..., D) of models (..., n)."""
        start, stop = self.span.start, self.span.stop
        return torch.cat((model_n[..., :start], model_n[..., stop:]), -1), model_n[..., start:stop]

    def joined(self, base_m: Tensor, head_D: Tensor) -> Tensor:
        """Return models (..., n) from heads (..., D) and bases (..., n - D), or from one base for all of them."""
        start, base_m = self.span.start, base_m.expand(*head_D.shape[:-1], -1)
        return torch.cat((base_m[..., :start], head_D, base_m[..., start:]), -1)

    def begun(self, values_n: Tensor, examples: Tensor) -> PFedVEMClient:
        """Return the state of peers before their first round: the common head as mean, with confidence 1 / sigma^2."""
        return PFedVEMClient(values_n, examples, Head.around(self.parted(values_n)[1], self.sigma).pi_D)

    def turn(
        self, client: PFedVEMClient, received: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[PFedVEMClient, Tensor]:
        """Return the clients' states after a round, and their confidences tau (...).

        Args:
            received: base and global head, (n,) or (..., n).
        """
        own, (base_m, w_D) = self.head_of(client), self.parted(received.model_n)
        w_D = w_D.expand_as(own.mu_D)
        tau = confidence(own, w_D, self.terms)
        begun = replace(client, model_n=self.joined(base_m, own.mu_D))
        return self.learn(begun, w_D, tau, batches, keys), tau

    def trust(self, client: PFedVEMClient, shared: ServerModel) -> dict[str, Tensor]:
        """Return tau and the two terms of 1 / tau (eq. 8), (...) each: the data of figures 10 and 11."""
        own, w_D = self.head_of(client), self.parted(shared.model_n)[1]
        return {
            "confidence": confidence(own, w_D, self.terms),
            "deviation": model_deviation(own, w_D),
            "uncertainty": own.sigma_D.square().mean(-1),
        }

    def head_of(self, client: PFedVEMClient) -> Head:
        """Return the clients' own heads, (..., D)."""
        return Head(self.parted(client.model_n)[1], client.pi_D)

    def learn(
        self, begun: PFedVEMClient, w_D: Tensor, tau: Tensor, batches: Batches, keys: Sequence[int]
    ) -> PFedVEMClient:
        """Return clients after lines 9 and 10: first the head is trained, and then the server's base under that head.

        Args:
            begun: clients that have taken the server's base.
            w_D: (..., D) the global head that each client received.
            tau: (...) their confidences.
        """
        if begun.model_n.dim() == 1:
            return self._alone(begun, w_D, tau, batches, keys[0])
        each = [self._alone(take_rows(begun, p), w_D[p], tau[p], batches.peer(p), key) for p, key in enumerate(keys)]
        return stack_states(each)

    def _alone(self, begun: PFedVEMClient, w_D: Tensor, tau: Tensor, batches: Batches, key: int) -> PFedVEMClient:
        own, draws = self.head_of(begun), Draws(key)
        (inputs, y_N), like_KD = batches.everything(), own.mu_D.expand(self.samples, -1)
        for_head, for_base = (drawn_noise(draws.torch(purpose)) for purpose in ("head", "base"))
        head = train_head(
            own,
            self._base.features(begun.model_n, inputs),
            y_N,
            w_D,
            tau,
            (for_head(like_KD) for _ in range(self.head_epochs)),
            lr=self.head_lr,
            momentum=self.momentum,
        )

        def slopes(z_bF: Tensor, y_b: Tensor) -> Tensor:
            return feature_slopes(head, z_bF, y_b, for_base(like_KD))

        with_head_n = self.joined(self.parted(begun.model_n)[0], head.mu_D)
        return replace(begun, model_n=self._base.train(with_head_n, batches, slopes, branch(key, 1)), pi_D=head.pi_D)


@dataclass(frozen=True)
class PFedVEM(PersonalHeads, CoordinatedAlgorithm[ServerModel, PFedVEMClient, ServerModel, PFedVEMUpdate]):
    """A shared base under personal Bayesian heads, each held near the global head in proportion to its confidence.

    Its settings are those of `PersonalHeads`.
    """

    everyone_trains = True
    moved = ("model_n",)
    positive = ("tau",)

    def start_server(self, values_n: Tensor) -> ServerModel:
        return ServerModel(values_n)

    def start_client(self, values_n: Tensor, examples: Tensor) -> PFedVEMClient:
        return self.begun(values_n, examples)

    def open(self, server: ServerModel, round: int) -> ServerModel:
        return server

    def train(
        self, client: PFedVEMClient, received: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[PFedVEMClient, PFedVEMUpdate]:
        kept, tau = self.turn(client, received, batches, keys)
        return kept, PFedVEMUpdate(kept.model_n, client.examples, tau)

    def close(self, server: ServerModel, updates: PFedVEMUpdate) -> ServerModel:
        base_Km, mu_KD = self.parted(updates.model_n)
        return ServerModel(
            self.joined(self.context.mean(base_Km, updates.examples), self.context.mean(mu_KD, updates.tau))
        )

    def server_model(self, server: ServerModel) -> Tensor:
        return server.model_n

    def personal_model(self, client: PFedVEMClient) -> Tensor:
        return client.model_n

    def statistics(self, client: PFedVEMClient, shared: ServerModel) -> dict[str, Tensor]:
        return self.trust(client, shared)
