"""A wrapper of an algorithm with a server, which changes the algorithm in one respect only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import CoordinatedAlgorithm
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.leaves import leaves_of
from fedpeer.rejection import Rejection

Inner = CoordinatedAlgorithm[Any, Any, Any, Any]


class Wrapper(CoordinatedAlgorithm[Any, Any, Any, Any]):
    """An algorithm that passes all calls to its inner algorithm."""

    def __init__(self, inner: Inner) -> None:
        self.inner = inner
        self.own_loss = inner.own_loss
        self.everyone_trains, self.takes_mean = inner.everyone_trains, inner.takes_mean
        self.common_start = inner.common_start
        self.counts, self.positive, self.moved = inner.counts, inner.positive, inner.moved
        self.fixed_clients, self.numbered = inner.fixed_clients, inner.numbered

    def besides_a_model(self, update: Any) -> list[str]:
        """Return the leaves of an update that are neither part of a model nor numbers of examples."""
        return [name for name in leaves_of(update) if name not in (*self.moved, *self.counts)]

    def start_server(self, values_n: Tensor) -> Any:
        return self.inner.start_server(values_n)

    def start_client(self, values_n: Tensor, examples: Tensor) -> Any:
        return self.inner.start_client(values_n, examples)

    def participants(self, round: int, clients: int, share: float, draws: Draws) -> tuple[int, ...]:
        return self.inner.participants(round, clients, share, draws)

    def open(self, server: Any, round: int) -> Any:
        return self.inner.open(server, round)

    def train(self, client: Any, broadcast: Any, batches: Batches, keys: Sequence[int]) -> tuple[Any, Any]:
        return self.inner.train(client, broadcast, batches, keys)

    def rebased(self, server: Any, updates: Any, round: int, age_K: Tensor) -> Any:
        return self.inner.rebased(server, updates, round, age_K)

    def changes(self, broadcast: Any, updates: Any) -> Mapping[str, Tensor]:
        return self.inner.changes(broadcast, updates)

    def close(self, server: Any, updates: Any) -> Any:
        return self.inner.close(server, updates)

    def settle(self, before: Any, trained: Any, server: Any, counted: Tensor) -> Any:
        return self.inner.settle(before, trained, server, counted)

    def running_statistics(self) -> Tensor | None:
        return self.inner.running_statistics()

    def server_fault(self, server: Any) -> Rejection | None:
        return self.inner.server_fault(server)

    def server_model(self, server: Any) -> Tensor | None:
        return self.inner.server_model(server)

    def personal_model(self, client: Any) -> Tensor:
        return self.inner.personal_model(client)

    def statistics(self, client: Any, server: Any) -> Mapping[str, Tensor]:
        return self.inner.statistics(client, server)

    def relations(self, server: Any) -> Tensor | None:
        return self.inner.relations(server)
