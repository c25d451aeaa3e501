"""The interface of the vector engine's rounds, by gossip (`gossip_rounds.py`) or by a server (`server_rounds.py`).

In a round some peers train, and then the engine combines what they send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.config.building import AnyAlgorithm
from fedpeer.sims.vector.task_executors import ROWS_AT_ONCE, TaskExecutor
from fedpeer.sims.vector.tasks import BlockContext, WorkerTask
from fedpeer.sims.vector.workspace import Job, States, Workspace

Tensors = Mapping[str, Tensor]


@dataclass
class Session:
    """The objects that an engine shares with its rounds.

    parts     the context of the blocks of each network of the job
    run       runs tasks on the executor
    sides     side of each peer's state after the last finished round
    refused   called with the peer whose update is left out and the reason
    """

    job: Job
    parts: Sequence[BlockContext]
    workspace: Workspace
    executor: TaskExecutor
    run: Callable[[Sequence[WorkerTask]], list[Any]]
    sides: list[int]
    refused: Callable[[str, str], None]

    @property
    def algorithm(self) -> AnyAlgorithm:
        """The algorithm; with several networks, that of the first one."""
        return self.parts[0].algorithm

    @property
    def states(self) -> States:
        """The states; with several networks, those of the peers with the first one."""
        return self.parts[0].states

    def sides_of(self, peers: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.sides[peer] for peer in peers)


class VectorRounds(Protocol):
    """The rounds of an engine, by gossip or by a server.

    weights   push-sum weights of each group's members after the last round, in units of their mean at the start
    source    the side of x from which peers train, if they average with each other
    """

    weights: dict[str, NDArray[np.float64]]
    source: int

    def begin(self) -> None:
        """Prepare the first round."""

    def open(self, number: int) -> Sequence[int]:
        """Open round 1, 2, ...: send the clients a server's broadcast, if any, and return the peers that train."""

    def close(self, number: int, trained: Sequence[int]) -> None:
        """Combine the vectors or updates of the peers that have trained.

        Raises:
            Stopped: the run was asked to stop; `snapshot` then still returns the last consistent state.
        """

    def traffic(self, round: int) -> tuple[list[int], list[int]]:
        """Return the messages and bytes that each peer would send in this round, the last finished one."""

    def disagreement(self) -> dict[str, float]:
        """Return each group's largest distance of a member from the members' mean, relative to the mean's norm."""

    def snapshot(self, *, trained: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything needed to resume.

        Args:
            trained: whether a round is open whose training is done and belongs to the snapshot.
        """

    def restore(self, tensors: Tensors, state: Mapping[str, Any]) -> None:
        """Resume from a snapshot."""


def blocks_of_peers(job: Job, peers: Iterable[int]) -> list[tuple[int, ...]]:
    """Return blocks of peers with equal numbers of steps, equal batches and the same network, the longest first."""
    cohorts: dict[tuple[int, int, int], list[int]] = {}
    for peer in peers:
        cohorts.setdefault((job.steps_P[peer], job.batch_P[peer], job.network_P[peer]), []).append(peer)
    blocks = [
        tuple(cohort[first : first + size])
        for (*_, network), cohort in cohorts.items()
        for size in [job.networks[network].block]
        for first in range(0, len(cohort), size)
    ]
    return sorted(blocks, key=lambda block: (-job.steps_P[block[0]] * len(block), block))


def column_slices(rows: int) -> Iterator[range]:
    """Yield ranges that together cover so many rows, a few rows each."""
    yield from (range(at, min(at + ROWS_AT_ONCE, rows)) for at in range(0, rows, ROWS_AT_ONCE))
