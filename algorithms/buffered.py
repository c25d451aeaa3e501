"""Buffered aggregation (FedBuff): any algorithm that averages models, in rounds that wait only for some of the clients.

A round closes when a given number of updates have arrived, the aggregation goal. A slower client goes on with its
training, and its update counts once in a later round, with less weight the older it is. So a client sends the change
from the broadcast that it trained from; the server applies the change to the broadcast of the later round.

Running statistics of normalization are sent as they are, and the server's statistics move towards them by the weight of
the update. If changes were added, a variance that fell both in training and at the server could become negative.

Source: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, Federated Learning with Buffered Asynchronous Aggregation,
2022, Algorithm 1. The discount (1 + age) ** -a with a = 1/2 is the polynomial one of Xie, Koyejo, Gupta, Asynchronous
Federated Optimization, 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.leaves import leaves_of, rebuilt
from fedpeer.algorithms.precision import widest
from fedpeer.algorithms.registry import AVERAGE_MODELS
from fedpeer.algorithms.wrapper import Inner, Wrapper


class Buffered(Wrapper):
    """An algorithm whose clients send changes, which can count in any later round."""

    def __init__(self, inner: Inner, name: str) -> None:
        """
        Args:
            name: the algorithm's name, for messages.

        Raises:
            AlgorithmError: its clients send more than a model (raised by the first training, too), or the server does
                not take the mean of the models, so that a change of one model means nothing for another.
        """
        super().__init__(inner)
        self._name = name
        if not (inner.moved and inner.takes_mean):
            raise self._mistake()

    def _mistake(self) -> AlgorithmError:
        return AlgorithmError(
            f"learning.aggregation_goal: an update of {self._name} belongs to one round; leave it out, or take one of "
            f"{', '.join(AVERAGE_MODELS)}"
        )

    def train(self, client: Any, broadcast: Any, batches: Batches, keys: Sequence[int]) -> tuple[Any, Any]:
        trained, update = self.inner.train(client, broadcast, batches, keys)
        if self.besides_a_model(update):
            raise self._mistake()
        sent, was = leaves_of(update), leaves_of(broadcast)
        changes = {name: self._averaged_only(sent[name], _wide(sent[name]) - was[name]) for name in self.moved}
        return trained, rebuilt(update, {**sent, **changes})

    def rebased(self, server: Any, updates: Any, round: int, age_K: Tensor) -> Any:
        sent, now = leaves_of(updates), leaves_of(self.inner.open(server, round))
        weight_K1 = discount(age_K).unsqueeze(-1)
        moved = {}
        for name in self.moved:
            was, came = _wide(now[name]).expand_as(sent[name]), _wide(sent[name])
            fresh = self._averaged_only(came, was + came)  # the values if the update were of this round
            moved[name] = torch.lerp(was, fresh, weight_K1).to(sent[name].dtype)
        return rebuilt(updates, {**sent, **moved})

    def _averaged_only(self, statistics: Tensor, others: Tensor) -> Tensor:
        """Return `statistics` (..., D) at running statistics, and `others`, in the same type, at all other places."""
        found, others = self.running_statistics(), others.to(statistics.dtype)
        return others if found is None else torch.where(found.to(others.device), statistics, others)


def discount(age: Tensor) -> Tensor:
    """Return the weight of changes that are `age` rounds old, 1 / sqrt(1 + age), in (0, 1].

    >>> import torch
    >>> discount(torch.tensor([0, 3, 8])).tolist()
    [1.0, 0.5, 0.3333333333333333]
    """
    return _wide(1 + age).rsqrt()


def _wide(values: Tensor) -> Tensor:
    return values.to(widest(values.device))
