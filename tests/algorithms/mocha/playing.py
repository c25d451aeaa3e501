"""Clients with one task each, and whole rounds of MOCHA or a comparator among them, with absent and late clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches, Examples
from fedpeer.algorithms.coordinated import CoordinatedAlgorithm
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.leaves import stack_states
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.mocha.dual import DualTask
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.networks.registry import linear_network
from tests.reference.mocha import DualProblem, State

Algorithm = CoordinatedAlgorithm[Any, Any, Any, Any]


@dataclass(frozen=True, eq=False)
class Tasks:
    """Examples of each task: x (S, F) and labels 0 or 1, or numbers if `loss` is that of a regression."""

    xs: tuple[Tensor, ...]
    ys: tuple[Tensor, ...]
    bias: bool = True
    loss: str = "binary"

    @staticmethod
    def drawn(seed: int, sizes: Sequence[int] = (9, 5, 7), features: int = 4, *, bias: bool = True) -> Tasks:
        """Return random tasks with labels by noisy planes, different for each task."""
        draws = np.random.default_rng(seed)
        xs = tuple(torch.from_numpy(draws.standard_normal((size, features))) for size in sizes)
        planes = (torch.from_numpy(draws.standard_normal(features)) for _ in sizes)
        noise = (torch.from_numpy(draws.standard_normal(size)) for size in sizes)
        ys = tuple((x @ plane + each + 0.5 > 0).long() for x, plane, each in zip(xs, planes, noise, strict=True))
        return Tasks(xs, ys, bias)

    @cached_property
    def context(self) -> TrainingContext:
        module = linear_network((self.xs[0].shape[1],), 1, bias=self.bias).double()
        choice = OptimizerChoice("SGD", {"lr": 0.1})
        made = TrainingContext.of(module, LOSSES[self.loss], choice, clients=len(self.xs))
        return replace(made, examples_max=max(map(len, self.xs)))

    @cached_property
    def x_NF(self) -> Tensor:
        return torch.cat(self.xs)

    def batches(self, number: int) -> Batches:
        """Return one client's batches; MOCHA takes all examples, so the batches themselves hold one example each."""
        first = sum(map(len, self.xs[:number]))
        index_M = torch.arange(first, first + len(self.xs[number]))
        y_M = self.ys[number]
        whole = (Examples(self.x_NF, index_M, y_M),)
        return Batches(self.x_NF, index_M[:1, None], y_M[:1, None], None, whole, torch.tensor(number))

    def block(self, numbers: Sequence[int]) -> Batches:
        alone = [self.batches(number) for number in numbers]
        index, y = (torch.stack([getattr(each, name) for each in alone]) for name in ("index", "y"))
        whole = tuple(each.whole[0] for each in alone)
        return Batches(self.x_NF, index, y, None, whole, torch.tensor(list(numbers)))

    def examples(self, number: int) -> Tensor:
        return torch.tensor(len(self.xs[number]))


class Play:
    """The server and all clients of one algorithm, and the rounds that they run."""

    def __init__(self, algorithm: Algorithm, tasks: Tasks, seed: int = 0) -> None:
        self.algorithm, self.tasks, self.draws, self.round = algorithm, tasks, Draws(seed), 0
        start_n = torch.full((tasks.context.layout.n,), 0.25, dtype=torch.float64)
        self.server: Any = algorithm.start_server(start_n)
        self.clients = [algorithm.start_client(start_n, tasks.examples(t)) for t in range(len(tasks.xs))]

    def rounds(self, number: int) -> Play:
        for _ in range(number):
            self.one()
        return self

    def one(self, options: Iterable[int] | None = None, late: Iterable[int] = ()) -> None:
        """Run a round with the clients in `options`, or with all; updates of the clients in `late` do not count."""
        self.round += 1
        numbers, missing = sorted(range(len(self.clients)) if options is None else options), set(late)
        told = self.algorithm.open(self.server, self.round)
        ended = {
            t: self.algorithm.train(
                self.clients[t], told, self.tasks.batches(t), (self.draws.key("local", str(t), self.round),)
            )
            for t in numbers
        }
        came = [ended[t][1] for t in numbers if t not in missing]
        if came:
            self.server = self.algorithm.close(self.server, stack_states(came))
        for t, (trained, _) in ended.items():
            counted = torch.tensor(t not in missing)
            self.clients[t] = self.algorithm.settle(self.clients[t], trained, self.server, counted)

    def statistic(self, name: str) -> Tensor:
        """Return a statistic (T,) of each client."""
        return torch.stack([self.algorithm.statistics(client, self.server)[name] for client in self.clients])

    @property
    def w_TF(self) -> Tensor:
        return torch.stack([self.algorithm.personal_model(client) for client in self.clients])

    def problem(self) -> DualProblem:
        """Return the current W step, for the functions that see all clients' data."""
        algorithm: Any = self.algorithm
        made = tuple(algorithm.task(self.tasks.batches(t)) for t in range(len(self.clients)))
        return DualProblem(algorithm.local_loss, made, self.server.coupling.matrix_TT)

    @property
    def state(self) -> State:
        """Return all clients' dual variables and the server's V."""
        alphas = [client.alpha_S[: len(x)] for client, x in zip(self.clients, self.tasks.xs, strict=True)]
        return State(tuple(alphas), self.server.v_TF)


def features_of(tasks: Tasks, make: Any = DualTask.averaged) -> tuple[DualTask, ...]:
    """Return the tasks in the form that the functions take: x with a one appended for the bias, labels -1 and 1."""
    rows = []
    for x_SF, y_S in zip(tasks.xs, tasks.ys, strict=True):
        with_one = torch.cat([x_SF, torch.ones(len(x_SF), 1)], 1) if tasks.bias else x_SF
        rows.append(make(with_one.double(), torch.where(y_S == 1, 1.0, -1.0).double()))
    return tuple(rows)
