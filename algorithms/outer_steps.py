"""Outer steps: the change of a peer's model from one averaging to the next is a gradient for a second optimizer.

A peer trains for some rounds from a model a, its group averages, and the average is z. Without an outer optimizer the
peer goes on from z. With an outer optimizer of learning rate lr and momentum mu the peer goes on from

    m <- mu m + (a - z)        a <- a - lr m                         sgd (SlowMo, Wang et al. 2020, Algorithm 1)
    m <- mu m + (a - z)        a <- a - lr ((a - z) + mu m)          nesterov (DiLoCo, Douillard et al. 2023)

If all peers began from the same a, the average of the models is a minus the average of the peers' changes. By gossip
each peer takes the step with its own estimate z. Since the step is linear, the mean of the peers' models takes the same
step, however much the models still differ. Nothing else is sent, and push-sum conserves its mass: the step is part of
the peer's own change, like its training.

Each slice may have its own optimizer and its own number of rounds between two averagings, so that a parameter's step
depends on its peer. A step follows the last round before an averaging, by its number, whether or not the averaging took
place: a peer that was alone then takes the step with its own change.

Running statistics of normalization take no outer steps (`running_statistics.py`): a peer goes on from their average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.contract import Algorithm
from fedpeer.algorithms.leaves import map_leaves
from fedpeer.algorithms.outer_optimizers import OuterOptimizer


@dataclass(frozen=True)
class OuterRule:
    """Outer steps of some slices.

    every   rounds from one averaging to the next, >= 1
    """

    optimizer: OuterOptimizer
    every: int


@dataclass(frozen=True, eq=False)
class OuterRules:
    """The outer steps of all parameters of all peers.

    rules     the distinct rules
    rule_Cn   (C, n) int8: for each kind of peer the number of each parameter's rule; -1: no outer steps
    kind_P    (P,) int64: each peer's kind, in the order of `Batches.number`; for a single peer one entry
    """

    rules: tuple[OuterRule, ...]
    rule_Cn: Tensor
    kind_P: Tensor

    @staticmethod
    def of_no_group(count: int) -> OuterRules:
        """Return the rules of a peer none of whose `count` numbers takes outer steps now."""
        return OuterRules((), torch.full((1, count), -1, dtype=torch.int8), torch.zeros(1, dtype=torch.int64))

    def alone(self, number: int) -> OuterRules:
        """Return the rules of this peer alone."""
        kind = int(self.kind_P[number])
        return replace(self, rule_Cn=self.rule_Cn[kind : kind + 1], kind_P=torch.zeros(1, dtype=torch.int64))

    def of_parameters(self, count: int) -> OuterRules:
        """Return the rules for the first `count` numbers; running statistics, after them, take no outer steps."""
        rule_Cn = self.rule_Cn.clone()
        rule_Cn[:, count:] = -1
        return replace(self, rule_Cn=rule_Cn)

    def to(self, device: str) -> OuterRules:
        return replace(self, rule_Cn=self.rule_Cn.to(device), kind_P=self.kind_P.to(device))

    def of(self, number: Tensor | None) -> Tensor:
        """Return the rule of each parameter, (..., n), for peers with these numbers; None: for a single peer."""
        return self.rule_Cn[0] if number is None else self.rule_Cn[self.kind_P[number]]


@dataclass(frozen=True, eq=False)
class OuterState:
    """State of a peer between rounds.

    inner        state of the algorithm whose results take outer steps
    anchor_n     (..., n) model from which the next outer step is taken, a
    momentum_n   (..., n) m
    round        (...) int64, number of the peer's last round of training; 0: none yet
    """

    inner: Any
    anchor_n: Tensor
    momentum_n: Tensor
    round: Tensor


class OuterSteps(Algorithm[OuterState, Any, Any]):
    """An algorithm that averages one vector, whose slices take outer steps after their averagings."""

    def __init__(self, inner: Algorithm[Any, Any, Any], rules: OuterRules) -> None:
        self.inner, self.rules = inner, rules

    def start_client(self, values_n: Tensor, examples: Tensor) -> OuterState:
        round = examples.new_zeros(values_n.shape[:-1], dtype=torch.int64)
        zeros_n = torch.zeros_like(values_n)
        return OuterState(self.inner.start_client(values_n, examples), zeros_n, zeros_n, round)

    def start_averaged(self, values_n: Tensor) -> Any:
        return self.inner.start_averaged(values_n)

    def train(self, client: OuterState, received: Any, batches: Batches, keys: Sequence[int]) -> tuple[OuterState, Any]:
        state = client

        def begun(received_n: Tensor) -> Tensor:
            nonlocal state
            start_n, state = _outer_step(self.rules, client, received_n, batches)
            return start_n

        inner, sent = self.inner.train(client.inner, map_leaves(begun, received), batches, keys)
        return replace(state, inner=inner), sent

    def weights(self, client: OuterState, index_D: NDArray[np.int64]) -> Tensor | None:
        return self.inner.weights(client.inner, index_D)

    def personal_model(self, client: OuterState) -> Tensor | None:
        return self.inner.personal_model(client.inner)

    def statistics(self, client: OuterState, shared: Any) -> Mapping[str, Tensor]:
        return self.inner.statistics(client.inner, shared)


def _outer_step(
    rules: OuterRules, client: OuterState, received_n: Tensor, batches: Batches
) -> tuple[Tensor, OuterState]:
    """Return the model (..., n) from which a round of training begins, and the state after its outer steps.

    Args:
        received_n: (..., n) the peer's estimate after the last averaging.
    """
    rule_n, since, now = rules.of(batches.number), client.round, batches.round - 1
    start_n, anchor_n, momentum_n = received_n, client.anchor_n, client.momentum_n
    for number, rule in enumerate(rules.rules):
        # An averaging lies between the last round of training and this one; there may be other rounds between them.
        due = (since > 0) & (torch.div(since - 1, rule.every, rounding_mode="floor") < now // rule.every)
        steps_n = (rule_n == number) & due.unsqueeze(-1)
        change_n = anchor_n - received_n
        moved_n = rule.optimizer.momentum * momentum_n + change_n
        step_n = change_n + rule.optimizer.momentum * moved_n if rule.optimizer.nesterov else moved_n
        momentum_n = torch.where(steps_n, moved_n, momentum_n)
        start_n = torch.where(steps_n, anchor_n - rule.optimizer.lr * step_n, start_n)
        anchor_n = torch.where(steps_n, start_n, anchor_n)
    # Numbers without outer steps follow: they may take some later, when others join their slice.
    follows_n = (since == 0).unsqueeze(-1) | (rule_n < 0)
    return start_n, OuterState(
        client.inner, torch.where(follows_n, received_n, anchor_n), momentum_n, torch.full_like(since, batches.round)
    )
