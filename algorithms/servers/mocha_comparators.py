"""The methods that MOCHA is compared with, on its contract and coupling: CoCoA, minibatch SDCA, minibatch SGD.

CoCoA is MOCHA without budgets: every client works until it has reached the same theta, so a round takes as long as the
slowest client. The minibatch methods take a few examples of each client a round, evaluate all of them at the W with
which the round began, and scale the sum down; SGD is primal, and its server keeps W. The time of a round in the papers'
model follows from the steps in the statistics (`mocha.comparators.seconds_of`).

Source: Smith et al., Federated multi-task learning, NIPS 2017, section 5 and the released program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches, train_singly
from fedpeer.algorithms.coordinated import AlgorithmError, CoordinatedAlgorithm
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.mocha.comparators import batch_slope, cocoa_turn, minibatch_sdca_turn
from fedpeer.algorithms.mocha.dual import DualTask, loss_of
from fedpeer.algorithms.mocha.linear import number_of
from fedpeer.algorithms.mocha.relations import require
from fedpeer.algorithms.mocha.sdca import Order
from fedpeer.algorithms.servers.mocha import Coupled, Coupling, DualMethod, Sigma, added, curvatures


@dataclass(frozen=True)
class Cocoa(DualMethod):
    """CoCoA: MOCHA without budgets: every client works until it has reached theta.

    The settings of `Coupled`, and:

    Args:
        theta: relative error of each local solution (0 exact, 1 no progress), certified by the local duality gap, in
            (0, 1); default 0.5.
        sigma: as in `Mocha`.
    """

    _: KW_ONLY
    theta: float = 0.5
    sigma: Sigma = "per-task"

    def __post_init__(self) -> None:
        super().__post_init__()
        require("theta", self.theta, 0 < self.theta < 1, "a number between 0 and 1")

    def curvatures(self, coupling_TT: Tensor) -> Tensor:
        return curvatures(coupling_TT, self.sigma)

    def turn(
        self, task: DualTask, alpha_S: Tensor, w_F: Tensor, curvature: float, number: int, draws: Draws
    ) -> tuple[Tensor, Tensor, int]:
        permutation_S = draws.numpy("order").permutation(len(alpha_S))
        return cocoa_turn(self.local_loss, task, alpha_S, w_F, curvature, permutation_S, self.theta)


@dataclass(frozen=True)
class MinibatchSdca(DualMethod):
    """Minibatch SDCA: each example's step is computed alone at the old W; beta / (batch * clients) of each is taken.

    The settings of `Coupled`, and:

    Args:
        batch: examples of each client in a round, >= 1; default 10.
        beta: in (0, batch * clients]; default 1, which is always safe. Larger values suit unrelated examples.
    """

    _: KW_ONLY
    batch: int = 10
    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("batch", self.batch, self.batch >= 1, "1 or more")
        most = self.batch * self.context.clients
        require("beta", self.beta, 0 < self.beta <= most, f"a number above 0 and up to {most}, batch times clients")

    def curvatures(self, coupling_TT: Tensor) -> Tensor:
        return coupling_TT.diagonal()

    def turn(
        self, task: DualTask, alpha_S: Tensor, w_F: Tensor, curvature: float, number: int, draws: Draws
    ) -> tuple[Tensor, Tensor, int]:
        drawn, part = _batch(len(alpha_S), self.batch, draws), self.beta / (self.batch * self.context.clients)
        return *minibatch_sdca_turn(self.local_loss, task, alpha_S, w_F, curvature, drawn, part), len(drawn)


@dataclass(frozen=True, eq=False)
class PrimalServer:
    """The state of the server of minibatch SGD: W (T, F) float64, and the coupling."""

    w_TF: Tensor
    coupling: Coupling


@dataclass(frozen=True, eq=False)
class PrimalBroadcast:
    """The broadcast: W (T, F), and the slope of the regulariser there, M^-1 W (T, F)."""

    w_TF: Tensor
    pull_TF: Tensor


@dataclass(frozen=True, eq=False)
class PrimalClient:
    """State of a client; its fields are those of `MochaClient`."""

    model_n: Tensor
    number: Tensor
    primal: Tensor
    steps: Tensor


@dataclass(frozen=True, eq=False)
class SlopeUpdate:
    """Update of a client: the slope of its losses on its batch, (..., F) float64, and its task's number (...)."""

    slope_F: Tensor
    number: Tensor


@dataclass(frozen=True)
class MinibatchSgd(Coupled, CoordinatedAlgorithm[PrimalServer, PrimalClient, PrimalBroadcast, SlopeUpdate]):
    """Minibatch SGD: in round h, W - beta / h (slopes of the losses, from a batch of each client, + M^-1 W).

    The settings of `Coupled`, and:

    Args:
        batch: examples of each client in a round, >= 1; default 10.
        beta: step size of the first round, > 0; default 0.1.
    """

    _: KW_ONLY
    batch: int = 10
    beta: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require("batch", self.batch, self.batch >= 1, "1 or more")
        require("beta", self.beta, self.beta > 0, "a number above 0")
        if self.omega == "global":
            raise AlgorithmError("omega = global has no Omega, which minibatch-sgd needs; take another omega")

    def start_server(self, values_n: Tensor) -> PrimalServer:
        w_TF = values_n.new_zeros((self.context.clients, len(values_n)), dtype=torch.float64)
        return PrimalServer(w_TF, self.coupling_at_first(values_n))

    def start_client(self, values_n: Tensor, examples: Tensor) -> PrimalClient:
        nothing = values_n.new_zeros(values_n.shape[:-1], dtype=torch.float64)
        none = nothing.to(torch.int64)
        return PrimalClient(values_n, none - 1, nothing, none)

    def open(self, server: PrimalServer, round: int) -> PrimalBroadcast:
        return PrimalBroadcast(server.w_TF, torch.linalg.solve(server.coupling.matrix_TT, server.w_TF))

    def train(
        self, client: PrimalClient, broadcast: PrimalBroadcast, batches: Batches, keys: Sequence[int]
    ) -> tuple[PrimalClient, SlopeUpdate]:
        return train_singly(partial(self._alone, broadcast), client, batches, keys)

    def close(self, server: PrimalServer, updates: SlopeUpdate) -> PrimalServer:
        number = int(server.coupling.rounds) + 1
        slope_TF = added(self.open(server, number).pull_TF, updates.number, updates.slope_F)
        w_TF = server.w_TF - self.beta / number * slope_TF
        return PrimalServer(w_TF, self.coupling_after(server.coupling, w_TF))

    def settle(
        self, before: PrimalClient, trained: PrimalClient, server: PrimalServer, counted: Tensor
    ) -> PrimalClient:
        return replace(trained, model_n=server.w_TF[trained.number].to(before.model_n.dtype))

    def statistics(self, client: PrimalClient, server: PrimalServer) -> Mapping[str, Tensor]:
        """Return each client's primal objective and steps; no gap, since W does not come from dual variables."""
        own = {"primal": client.primal, "steps": client.steps.to(client.primal.dtype)}
        return own | self.task_statistics(server.coupling, client.primal)

    def _alone(
        self, broadcast: PrimalBroadcast, client: PrimalClient, batches: Batches, key: int
    ) -> tuple[PrimalClient, SlopeUpdate]:
        task, number = self.task(batches), number_of(batches)
        w_F, pull_F = broadcast.w_TF[int(number)].cpu(), broadcast.pull_TF[int(number)].cpu()
        drawn = _batch(len(task.y_S), self.batch, Draws(key))
        primal = loss_of(self.local_loss, task, w_F) + float(pull_F @ w_F) / 2
        local_task = replace(
            client,
            number=number,
            primal=client.primal.new_tensor(primal),
            steps=client.steps.new_tensor(len(drawn)),
        )
        slope_F = batch_slope(self.local_loss, task, w_F, drawn)
        return local_task, SlopeUpdate(slope_F.to(client.model_n.device), number)


def _batch(examples: int, size: int, draws: Draws) -> Order:
    """Return the numbers of distinct examples of one client."""
    return draws.numpy("order").permutation(examples)[:size]
