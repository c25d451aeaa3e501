"""MOCHA: every client learns a linear model of its own task, the server learns how the tasks are related.

A client keeps the dual variables of its examples. In a round it is told W and how hard its subproblem pulls, takes
steps of dual coordinate ascent within its budget, and sends delta v_t, F numbers. The server adds it to row t of V, and
now and then learns the coupling M of the tasks anew from W = M V; W is not stored, so it follows at once. At all times
V is that of the clients' dual variables: who was told that its update did not count takes its steps back.

Everybody is told all of W, since a broadcast is one; a client reads its own row. Rounds take all of a client's
examples, not the batches of the local training plan. The comparators on the same contract: `mocha_comparators`.

Source: Smith, Chiang, Sanjabi, Talwalkar, Federated multi-task learning, NIPS 2017, algorithm 1. The objective is by
default that of the authors' program: mean loss of each task, lam/2 tr(W^T Omega W), trace-one covariance.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError, CoordinatedAlgorithm, where
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.leaves import stack_states, take_rows
from fedpeer.algorithms.mocha.dual import DualTask, gap_of, loss_of, sigma_prime, sigma_primes, w_of
from fedpeer.algorithms.mocha.linear import check_linear, number_of, task_of
from fedpeer.algorithms.mocha.losses import HINGE, LOGISTIC, SQUARED, DualLoss, smoothed_hinge
from fedpeer.algorithms.mocha.relations import Kind, Relations, correlations, require
from fedpeer.algorithms.mocha.sdca import Order, budgets, reshuffled, solve
from fedpeer.algorithms.workbench import Workbench
from fedpeer.rejection import Rejection

#: sigma' of each task, or the paper's one for all, the largest.
Sigma: TypeAlias = Literal["per-task", "paper"]
#: Of the largest number of a coupling, what rounding may take from its symmetry; T times as much from an eigenvalue.
_ROUNDING = 1e-9
LossName: TypeAlias = Literal["hinge", "smoothed-hinge", "logistic", "squared"]


@dataclass(frozen=True, eq=False)
class Coupling:
    """How the tasks are related now.

    matrix_TT   (T, T) float64, M
    excess      () float64, how far its update can have been from the best (`Relations.after`)
    rounds      () int64, rounds closed
    """

    matrix_TT: Tensor
    excess: Tensor
    rounds: Tensor


@dataclass(frozen=True, eq=False)
class MochaServer:
    """What the server holds: V (T, F) float64, all delta v of all rounds, and the coupling."""

    v_TF: Tensor
    coupling: Coupling


@dataclass(frozen=True, eq=False)
class MochaBroadcast:
    """What everybody is told, float64: W (T, F), and of each task its curvature (T,), sigma' M_tt."""

    w_TF: Tensor
    curvature_T: Tensor


@dataclass(frozen=True, eq=False)
class MochaClient:
    """What a client keeps.

    model_n       (..., n) w_t, or its initial parameters while it was never asked
    alpha_S       (..., S) float64 dual variables of its examples, and zeros up to the bench's most
    number        (...) int64 its task; -1 while it was never asked
    gap, primal   (...) float64 its parts of the duality gap and of the primal objective, where its last round began
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
    """What a client sends: delta v_t (..., F) float64, and the number of its task (...) int64."""

    delta_v_F: Tensor
    number: Tensor


@dataclass(frozen=True)
class Coupled:
    """The settings of all methods that learn tasks under a coupling; see `Relations` for those of `omega`.

    loss       of the local problem; the bench's is for evaluation only
    smoothing  of the smoothed hinge, in units of the margin
    average    whether the objective has each task's mean loss or the sum
    inner      rounds between two updates of the coupling
    """

    context: Workbench
    takes_mean = False  # every node has weights of its own
    fixed_clients = True  # V and M have a place for each task
    numbered = "number"
    _: KW_ONLY
    omega: Kind = "trace-constrained"
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
        """How the tasks are related, as a rule."""
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
        """All examples of one client."""
        return task_of(self.context, batches, averaged=self.average == "mean")

    def coupling_at_first(self, values_n: Tensor) -> Coupling:
        """That of the server before the first round, on the device of the parameters."""
        matrix_TT, nothing = self.related.start(), values_n.new_zeros((), dtype=torch.float64)
        return Coupling(matrix_TT.to(values_n.device), nothing, nothing.to(torch.int64))

    def coupling_after(self, coupling: Coupling, w_TF: Tensor) -> Coupling:
        """That after one more round, which led to W (T, F); learned anew after every `inner` of them."""
        rounds = coupling.rounds + 1
        if not self.related.learned or int(rounds) % self.inner:
            return replace(coupling, rounds=rounds)
        matrix_TT, excess = self.related.after(w_TF.cpu())
        return Coupling(matrix_TT.to(w_TF.device), coupling.excess.new_tensor(excess), rounds)

    def coupling_fault(self, coupling: Coupling) -> Rejection | None:
        """What is wrong with a coupling of finite numbers: M is symmetric, positive semi-definite, M_tt above 0."""
        matrix_TT = coupling.matrix_TT.cpu()
        largest = float(matrix_TT.abs().max())
        if float((matrix_TT - matrix_TT.T).abs().max()) > _ROUNDING * largest:
            return Rejection("bad_task_matrix", "the coupling of the tasks is not symmetric")
        if float(matrix_TT.diagonal().min()) <= 0:
            return Rejection("bad_task_matrix", "the coupling of the tasks has a diagonal that is not above 0")
        least = float(torch.linalg.eigvalsh(matrix_TT)[0])
        if least < -_ROUNDING * largest * len(matrix_TT):
            return Rejection("bad_task_matrix", f"the coupling of the tasks has the eigenvalue {least:g}, below 0")
        return None

    def said_of(self, coupling: Coupling, each: Tensor) -> dict[str, Tensor]:
        """Of the coupling, what statistics tell of each client, shaped like `each`: the excess where there can be."""
        return {"excess": coupling.excess.expand_as(each)} if self.omega == "sparse-precision" else {}


@dataclass(frozen=True)
class DualMethod(Coupled, CoordinatedAlgorithm[MochaServer, MochaClient, MochaBroadcast, MochaUpdate]):
    """Rounds of nodes that move dual variables; `turn` says how."""

    def start_server(self, values_n: Tensor) -> MochaServer:
        v_TF = values_n.new_zeros((self.context.clients, len(values_n)), dtype=torch.float64)
        return MochaServer(v_TF, self.coupling_at_first(values_n))

    def start_client(self, values_n: Tensor, examples: Tensor) -> MochaClient:
        nothing, few = values_n.new_zeros(values_n.shape[:-1], dtype=torch.float64), self.context.examples_max
        none = nothing.to(torch.int64)
        assert int(examples.max()) <= few, "the bench knows the most examples of a client"
        alpha_S = nothing.unsqueeze(-1).repeat(*[1] * nothing.dim(), few)
        return MochaClient(values_n, alpha_S, none - 1, nothing, nothing, none)

    def open(self, server: MochaServer, round: int) -> MochaBroadcast:
        coupling_TT = server.coupling.matrix_TT
        return MochaBroadcast(w_of(server.v_TF, coupling_TT), self.curvatures(coupling_TT))

    def train(
        self, client: MochaClient, broadcast: MochaBroadcast, batches: Batches, keys: Sequence[int]
    ) -> tuple[MochaClient, MochaUpdate]:
        if not client.number.dim():
            return self._alone(client, broadcast, batches, keys[0])
        rows = range(len(client.number))
        nodes, said = zip(
            *(self._alone(take_rows(client, row), broadcast, batches.peer(row), keys[row]) for row in rows), strict=True
        )
        return stack_states(nodes), stack_states(said)

    def close(self, server: MochaServer, updates: MochaUpdate) -> MochaServer:
        v_TF = added(server.v_TF, updates.number, updates.delta_v_F)
        return MochaServer(v_TF, self.coupling_after(server.coupling, w_of(v_TF, server.coupling.matrix_TT)))

    def settle(self, before: MochaClient, trained: MochaClient, server: MochaServer, counted: Tensor) -> MochaClient:
        # V is that of all dual variables only if both sides take the same steps.
        w_TF = w_of(server.v_TF, server.coupling.matrix_TT)
        model_n = w_TF[trained.number].to(before.model_n.dtype)
        return replace(trained, model_n=model_n, alpha_S=where(counted, trained.alpha_S, before.alpha_S))

    def server_fault(self, server: MochaServer) -> Rejection | None:
        return self.coupling_fault(server.coupling)

    def server_model(self, server: MochaServer) -> None:
        return None

    def personal_model(self, client: MochaClient) -> Tensor:
        return client.model_n

    def statistics(self, client: MochaClient, server: MochaServer) -> Mapping[str, Tensor]:
        """Where all take part, the sums over the clients of the gap and of the primal are those before the round."""
        own = {"gap": client.gap, "primal": client.primal, "steps": client.steps.to(client.gap.dtype)}
        return own | self.said_of(server.coupling, client.gap)

    def relations(self, server: MochaServer) -> Tensor | None:
        return correlations(server.coupling.matrix_TT) if self.related.learned else None

    @abstractmethod
    def curvatures(self, coupling_TT: Tensor) -> Tensor:
        """(T,) how hard each node's subproblem pulls at its own delta v_t."""

    @abstractmethod
    def turn(
        self, task: DualTask, alpha_S: Tensor, w_F: Tensor, curvature: float, number: int, draws: Draws
    ) -> tuple[Tensor, Tensor, int]:
        """One node's work: (new alpha_S, delta v_F, steps taken)."""

    def _alone(
        self, client: MochaClient, broadcast: MochaBroadcast, batches: Batches, key: int
    ) -> tuple[MochaClient, MochaUpdate]:
        task, number = self.task(batches), number_of(batches)
        device, mine = client.alpha_S.device, int(number)
        alpha_S, w_F = client.alpha_S[: len(task.y_S)].cpu(), broadcast.w_TF[mine].cpu()
        curvature = float(broadcast.curvature_T[mine])
        new_S, delta_v_F, steps = self.turn(task, alpha_S, w_F, curvature, mine, Draws(key))
        # A node's part of the regulariser, which is R*(V) = <V, W> / 2.
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
    """MOCHA: linear models of related tasks, by dual coordinate ascent within every node's own budget.

    passes       over its examples, that a node is given in a round (the program: 0.5 or 1, in a thousand rounds; steps
                 cost little beside a round, and 50 come as far in fifty on UCI HAR); `low`, `high`: the part of it that
                 it manages is drawn from U(low, high), each round anew (0.1, 1 for systems that differ much, 0.9, 1 for
                 little)
    drop         probability that a node does nothing in a round; `dropped`: numbers of clients that never do anything,
                 with whom the method ends elsewhere
    sigma        which sigma' the subproblems have
    shuffle      whether passes are over fresh permutations or in the order of the examples
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
            raise AlgorithmError(f"low = {self.low}, high = {self.high}: write parts above 0, low up to high")
        require("drop", self.drop, 0 <= self.drop < 1, "a probability below 1; dropped=... names who never answers")
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
    """(T,) sigma' M_tt, such that all tasks may take their whole steps at once."""
    rule_T = sigma_primes(coupling_TT) if sigma == "per-task" else sigma_prime(coupling_TT)
    return rule_T * coupling_TT.diagonal()


def added(rows_TF: Tensor, number_K: Tensor, changes_KF: Tensor) -> Tensor:
    """(T, F) with each change added to the row of its task; a number that is no task's comes from a liar, and is not.

    Tasks are different, so that the order of updates decides no bit.
    """
    known_K = (number_K >= 0) & (number_K < len(rows_TF))
    return rows_TF.index_add(0, number_K[known_K], changes_KF[known_K])
