"""MOCHA: every client learns a linear model of its own task, and the server learns how the tasks are related.

A client keeps the dual variables of its examples. In a round it receives W and the curvature of its subproblem, takes
steps of dual coordinate ascent within its budget, and sends delta v_t (F numbers). The server adds it to row t of V.
After every `inner` rounds it learns the coupling M of the tasks anew from W = M V; W is not stored, so a new coupling
changes it at once. At all times V belongs to the clients' dual variables: a client whose update did not count takes its
steps back.

All clients receive the same broadcast, the whole W, and so see each other's models; each reads its own row. Rounds use
all of a client's examples, not the batches of the local training plan. The comparators on the same contract are in
`mocha_comparators`.

Source: Smith, Chiang, Sanjabi, Talwalkar, Federated multi-task learning, NIPS 2017, algorithm 1. The default objective
is the one of the authors' program: mean loss of each task, lam/2 tr(W^T Omega W), trace-one covariance.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedpeer.algorithms.batches import Batches, train_singly
from fedpeer.algorithms.coordinated import AlgorithmError, CoordinatedAlgorithm, where
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.mocha.dual import DualTask, gap_of, loss_of, sigma_prime, sigma_primes, w_of
from fedpeer.algorithms.mocha.linear import check_linear, number_of, task_of
from fedpeer.algorithms.mocha.losses import HINGE, LOGISTIC, SQUARED, DualLoss, smoothed_hinge
from fedpeer.algorithms.mocha.relations import RelationKind, Relations, correlations, require
from fedpeer.algorithms.mocha.sdca import Order, budgets, reshuffled, solve
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.rejection import Rejection

#: sigma': one for each task, or, as in the paper, the largest of these for all tasks.
Sigma: TypeAlias = Literal["per-task", "paper"]
#: Asymmetry that rounding may cause, relative to the largest number of a coupling; for an eigenvalue, T times as much.
_ROUNDING = 1e-9
LossName: TypeAlias = Literal["hinge", "smoothed-hinge", "logistic", "squared"]


@dataclass(frozen=True, eq=False)
class Coupling:
    """Present relation of the tasks.

    matrix_TT   (T, T) float64, M
    excess      () float64, bound on the distance of its last update from the optimum (`Relations.after`)
    rounds      () int64, number of closed rounds
    """

    matrix_TT: Tensor
    excess: Tensor
    rounds: Tensor


@dataclass(frozen=True, eq=False)
class MochaServer:
    """The server's state: V (T, F) float64, the sum of all delta v of all rounds, and the coupling."""

    v_TF: Tensor
    coupling: Coupling


@dataclass(frozen=True, eq=False)
class MochaBroadcast:
    """The broadcast, float64: W (T, F), and the curvature sigma' M_tt of each task's subproblem (T,)."""

    w_TF: Tensor
    curvature_T: Tensor


@dataclass(frozen=True, eq=False)
class MochaClient:
    """State of a client.

    model_n       (..., n) w_t, or its initial parameters until it first takes part
    alpha_S       (..., S) float64 dual variables of its examples, padded with zeros to the context's `examples_max`
    number        (...) int64 its task; -1 until it first takes part
    gap, primal   (...) float64 its parts of the duality gap and of the primal objective at the start of its last round
    steps         (...) int64 its coordinate steps in that round
    """

    model_n: Tensor
    alpha_S: Tensor
    number: Tensor
    gap: Tensor
    primal: Tensor
    steps: Tensor


@dataclass(frozen=True, eq=False)
class MochaUpdate:
    """Update of a client: delta v_t (..., F) float64, and the number of its task (...) int64."""

    delta_v_F: Tensor
    number: Tensor


class _CoupledServer(Protocol):
    """The state of a server with a coupling."""

    @property
    def coupling(self) -> Coupling: ...


class _LinearClient(Protocol):
    """The state of a client with its own linear model."""

    @property
    def model_n(self) -> Tensor: ...


@dataclass(frozen=True)
class Coupled:
    """The settings of all methods that learn tasks under a coupling; `Relations` explains those of the coupling.

    The objective is sum of losses + lam/2 tr(W^T Omega W) + ridge |W|^2.

    Args:
        omega: how the tasks are related, see `Relations`; default "trace-constrained".
        lam: weight of the coupled regulariser, > 0; default 0.001.
        ridge: weight of |W|^2, >= 0; default 0.
        floor: with "trace-constrained", part of the covariance that is I / T, in [0, 1]; default 1e-3.
        clusters: with "clustered", number of clusters, in (0, T]; default 2.
        eta: with "clustered", ridge of the covariance eta I + Q, > 0; default 0.1.
        sparsity: with "sparse-precision", weight of sum |Omega_tt'|, > 0; default 0.01.
        loss: of the local problem: "hinge" (default), "smoothed-hinge", "logistic" or "squared"; `learning.loss` is for
            evaluation only.
        smoothing: width of the smoothed hinge, > 0, in units of the margin; default 0.5.
        average: whether the objective has each task's "mean" loss (default; the program) or the "sum" (the paper).
        inner: rounds between two updates of the coupling, >= 1; default 10.
    """

    context: TrainingContext
    takes_mean = False  # each client's update goes to a row of its own
    fixed_clients = True  # V and M have a place for each task
    numbered = "number"
    own_loss = True
    _: KW_ONLY
    omega: RelationKind = "trace-constrained"
    lam: float = 0.001
    ridge: float = 0.0
    floor: float = 1e-3
    clusters: float = 2.0
    eta: float = 0.1
    sparsity: float = 0.01
    loss: LossName = "hinge"
    smoothing: float = 0.5
    average: Literal["mean", "sum"] = "mean"
    inner: int = 10

    def __post_init__(self) -> None:
        check_linear(self.context, type(self).__name__, squared=self.loss == "squared")
        assert self.related.tasks == self.context.clients, "its bounds are checked as it is made"
        require("smoothing", self.smoothing, self.smoothing > 0, "a number above 0")
        require("inner", self.inner, self.inner >= 1, "1 or more")

    @cached_property
    def related(self) -> Relations:
        """The rule by which the tasks are related."""
        return Relations(
            kind=self.omega,
            tasks=self.context.clients,
            lam=self.lam,
            ridge=self.ridge,
            floor=self.floor,
            clusters=self.clusters,
            eta=self.eta,
            sparsity=self.sparsity,
        )

    @cached_property
    def local_loss(self) -> DualLoss:
        """The loss of the local problem."""
        losses = {"hinge": HINGE, "logistic": LOGISTIC, "squared": SQUARED}
        return losses[self.loss] if self.loss in losses else smoothed_hinge(self.smoothing)

    def task(self, batches: Batches) -> DualTask:
        """Return all examples of one client as its task."""
        return task_of(self.context, batches, averaged=self.average == "mean")

    def coupling_at_first(self, values_n: Tensor) -> Coupling:
        """Return the server's coupling before the first round, on the device of the parameters."""
        matrix_TT, nothing = self.related.start(), values_n.new_zeros((), dtype=torch.float64)
        return Coupling(matrix_TT.to(values_n.device), nothing, nothing.to(torch.int64))

    def coupling_after(self, coupling: Coupling, w_TF: Tensor) -> Coupling:
        """Return the coupling after one more round, which led to W (T, F); every `inner` rounds it is learned anew."""
        rounds = coupling.rounds + 1
        if not self.related.learned or int(rounds) % self.inner:
            return replace(coupling, rounds=rounds)
        matrix_TT, excess = self.related.after(w_TF.cpu())
        return Coupling(matrix_TT.to(w_TF.device), coupling.excess.new_tensor(excess), rounds)

    def server_fault(self, server: _CoupledServer) -> Rejection | None:
        """Return why a server's coupling of finite numbers is invalid, or None.

        M must be symmetric and positive semi-definite, with M_tt > 0.
        """
        matrix_TT = server.coupling.matrix_TT.cpu()
        largest = float(matrix_TT.abs().max())
        if float((matrix_TT - matrix_TT.T).abs().max()) > _ROUNDING * largest:
            return Rejection("bad_task_matrix", "the coupling of the tasks is not symmetric")
        if float(matrix_TT.diagonal().min()) <= 0:
            return Rejection(
                "bad_task_matrix", "the coupling of the tasks has a number on its diagonal that is not above 0"
            )
        least = float(torch.linalg.eigvalsh(matrix_TT)[0])
        if least < -_ROUNDING * largest * len(matrix_TT):
            return Rejection("bad_task_matrix", f"the coupling of the tasks has the eigenvalue {least:g}, below 0")
        return None

    def server_model(self, server: object) -> None:
        """Return None: a newcomer has no task, so the server has no model for it."""

    def personal_model(self, client: _LinearClient) -> Tensor:
        return client.model_n

    def relations(self, server: _CoupledServer) -> Tensor | None:
        return correlations(server.coupling.matrix_TT) if self.related.learned else None

    def task_statistics(self, coupling: Coupling, each: Tensor) -> dict[str, Tensor]:
        """Return the coupling's statistics for each client, shaped like `each`: the excess with "sparse-precision"."""
        return {"excess": coupling.excess.expand_as(each)} if self.omega == "sparse-precision" else {}


@dataclass(frozen=True)
class DualMethod(Coupled, CoordinatedAlgorithm[MochaServer, MochaClient, MochaBroadcast, MochaUpdate]):
    """Rounds of clients that move dual variables; `turn` is one client's work."""

    def start_server(self, values_n: Tensor) -> MochaServer:
        v_TF = values_n.new_zeros((self.context.clients, len(values_n)), dtype=torch.float64)
        return MochaServer(v_TF, self.coupling_at_first(values_n))

    def start_client(self, values_n: Tensor, examples: Tensor) -> MochaClient:
        nothing, few = values_n.new_zeros(values_n.shape[:-1], dtype=torch.float64), self.context.examples_max
        none = nothing.to(torch.int64)
        assert int(examples.max()) <= few, "the context knows the most examples of a client"
        alpha_S = nothing.unsqueeze(-1).repeat(*[1] * nothing.dim(), few)
        return MochaClient(values_n, alpha_S, none - 1, nothing, nothing, none)

    def open(self, server: MochaServer, round: int) -> MochaBroadcast:
        coupling_TT = server.coupling.matrix_TT
        return MochaBroadcast(w_of(server.v_TF, coupling_TT), self.curvatures(coupling_TT))

    def train(
        self, client: MochaClient, broadcast: MochaBroadcast, batches: Batches, keys: Sequence[int]
    ) -> tuple[MochaClient, MochaUpdate]:
        return train_singly(partial(self._alone, broadcast), client, batches, keys)

    def close(self, server: MochaServer, updates: MochaUpdate) -> MochaServer:
        v_TF = added(server.v_TF, updates.number, updates.delta_v_F)
        return MochaServer(v_TF, self.coupling_after(server.coupling, w_of(v_TF, server.coupling.matrix_TT)))

    def settle(self, before: MochaClient, trained: MochaClient, server: MochaServer, counted: Tensor) -> MochaClient:
        # V belongs to all dual variables only if both sides take the same steps.
        w_TF = w_of(server.v_TF, server.coupling.matrix_TT)
        model_n = w_TF[trained.number].to(before.model_n.dtype)
        return replace(trained, model_n=model_n, alpha_S=where(counted, trained.alpha_S, before.alpha_S))

    def statistics(self, client: MochaClient, server: MochaServer) -> Mapping[str, Tensor]:
        """Return each client's gap, primal objective and steps.

        If all clients take part, the sums of gap and primal over the clients are those of the whole problem before the
        round.
        """
        own = {"gap": client.gap, "primal": client.primal, "steps": client.steps.to(client.gap.dtype)}
        return own | self.task_statistics(server.coupling, client.gap)

    @abstractmethod
    def curvatures(self, coupling_TT: Tensor) -> Tensor:
        """Return the curvature of each client's subproblem in its own delta v_t, (T,)."""

    @abstractmethod
    def turn(
        self, task: DualTask, alpha_S: Tensor, w_F: Tensor, curvature: float, number: int, draws: Draws
    ) -> tuple[Tensor, Tensor, int]:
        """Return one client's work: (new alpha_S, delta v_F, steps taken)."""

    def _alone(
        self, broadcast: MochaBroadcast, client: MochaClient, batches: Batches, key: int
    ) -> tuple[MochaClient, MochaUpdate]:
        task, number = self.task(batches), number_of(batches)
        device, mine = client.alpha_S.device, int(number)
        alpha_S, w_F = client.alpha_S[: len(task.y_S)].cpu(), broadcast.w_TF[mine].cpu()
        curvature = float(broadcast.curvature_T[mine])
        new_S, delta_v_F, steps = self.turn(task, alpha_S, w_F, curvature, mine, Draws(key))
        # The client's part of the regulariser, which is R*(V) = <V, W> / 2.
        primal = loss_of(self.local_loss, task, w_F) + float(task.v_F(alpha_S) @ w_F) / 2
        node = MochaClient(
            client.model_n,
            functional.pad(new_S, (0, client.alpha_S.shape[-1] - len(new_S))).to(device),
            number,
            client.gap.new_tensor(gap_of(self.local_loss, task, alpha_S, w_F)),
            client.primal.new_tensor(primal),
            client.steps.new_tensor(steps),
        )
        return node, MochaUpdate(delta_v_F.to(device), number)


@dataclass(frozen=True)
class Mocha(DualMethod):
    """MOCHA: linear models of related tasks, by dual coordinate ascent within each client's own budget.

    The settings of `Coupled`, and:

    Args:
        passes: passes over its examples that a client may take in a round, > 0; default 10. The program takes 0.5 or 1,
            in a thousand rounds; steps cost little beside a round, and 50 passes come as far in fifty rounds on UCI
            HAR.
        low, high: the part of `passes` that a client manages is drawn from U(low, high) in each round, 0 < low <= high;
            default 1, 1. 0.1, 1 is for systems that differ much, 0.9, 1 for systems that differ little.
        drop: probability that a client does nothing in a round, in [0, 1); default 0.
        dropped: numbers of clients that never do anything; default none. With them the method converges to another
            point.
        sigma: sigma' of the subproblems: "per-task" (default), or "paper", the largest of these for all tasks.
        shuffle: whether passes are over fresh permutations (default true) or in the order of the examples.
    """

    _: KW_ONLY
    passes: float = 10.0
    low: float = 1.0
    high: float = 1.0
    drop: float = 0.0
    dropped: tuple[int, ...] = ()
    sigma: Sigma = "per-task"
    shuffle: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require("passes", self.passes, self.passes > 0, "a number above 0")
        if not 0 < self.low <= self.high:
            raise AlgorithmError(f"low = {self.low}, high = {self.high}: write parts above 0, low at most high")
        require(
            "drop", self.drop, 0 <= self.drop < 1, "a probability below 1; dropped=... are clients that never answer"
        )
        within = all(0 <= number < self.context.clients for number in self.dropped)
        require("dropped", self.dropped, within, f"numbers of clients, 0 to {self.context.clients - 1}")

    def curvatures(self, coupling_TT: Tensor) -> Tensor:
        return curvatures(coupling_TT, self.sigma)

    def turn(
        self, task: DualTask, alpha_S: Tensor, w_F: Tensor, curvature: float, number: int, draws: Draws
    ) -> tuple[Tensor, Tensor, int]:
        order_H = self._order(len(alpha_S), number, draws)
        new_S, delta_v_F = solve(self.local_loss, task, alpha_S, w_F, curvature, order_H, once=True)
        return new_S, delta_v_F, len(order_H)

    def _order(self, examples: int, number: int, draws: Draws) -> Order:
        fractions = (self.passes * self.low, self.passes * self.high)
        dropping = np.array([1.0 if number in self.dropped else self.drop])
        steps = int(budgets(np.array([examples]), fractions, dropping, draws.numpy("budget"))[0])
        if not self.shuffle:
            return np.resize(np.arange(examples), steps)
        return reshuffled(examples, steps, draws.numpy("order"))


def curvatures(coupling_TT: Tensor, sigma: Sigma) -> Tensor:
    """Return sigma' M_tt, (T,), with which all tasks may take their whole steps at once."""
    rule_T = sigma_primes(coupling_TT) if sigma == "per-task" else sigma_prime(coupling_TT)
    return rule_T * coupling_TT.diagonal()


def added(rows_TF: Tensor, number_K: Tensor, changes_KF: Tensor) -> Tensor:
    """Return the rows (T, F), each with the change of its task added; changes with an unknown number are ignored.

    Such a number comes from a Byzantine client. Each update has its own task, so the order of updates changes no bit.
    """
    known_K = (number_K >= 0) & (number_K < len(rows_TF))
    return rows_TF.index_add(0, number_K[known_K], changes_KF[known_K])
