"""What the vector engine's two kinds of rounds have in common: by gossip (`gossip_rounds.py`), or by a server
(`server_rounds.py`). A round is: some peers train, what they send is combined.
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
from fedpeer.sims.vector.tasks import Task
from fedpeer.sims.vector.workspace import Job, States, Workspace

Tensors = Mapping[str, Tensor]


@dataclass
class Session:
    """What an engine and its rounds share.

    run       does tasks, by the hands
    sides     on which each peer's state lies, as the last finished round left it
    refused   told of an update that is left out, whose it is and why
    """

    job: Job
    algorithm: AnyAlgorithm
    workspace: Workspace
    hands: TaskExecutor
    run: Callable[[Sequence[Task]], list[Any]]
    sides: list[int]
    refused: Callable[[str, str], None]

    @property
    def states(self) -> States:
        assert self.workspace.states is not None, "an engine has states"
        return self.workspace.states

    def sides_of(self, peers: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.sides[peer] for peer in peers)


class VectorRounds(Protocol):
    """How what peers send is combined.

    weights   push-sum weights of each group's members after the last round, in units of their mean at the start
    source    the side of x from which equals train
    """

    weights: dict[str, NDArray[np.float64]]
    source: int

    def begin(self) -> None:
        """Before the first round."""

    def open(self, number: int) -> Sequence[int]:
        """Who trains in round 1, 2, ..., told what they receive."""

    def close(self, number: int, trained: Sequence[int]) -> None:
        """Combine what those who have trained send.

        Raises:
            Stopped: if asked to stop meanwhile; `snapshot` then still gives the last consistent state.
        """

    def traffic(self, round: int) -> tuple[list[int], list[int]]:
        """Messages and bytes that each peer would send in this round, the last one finished."""

    def disagreement(self) -> dict[str, float]:
        """Of each group: the largest distance of a member from the members' mean, relative to the mean's norm."""

    def snapshot(self, *, trained: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to go on; `trained`: from the middle of a round, whose training is done."""

    def restore(self, tensors: Tensors, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""


def blocks_of_peers(job: Job, peers: Iterable[int]) -> list[tuple[int, ...]]:
    """Return blocks of peers with equal numbers of steps and equal batches, the longest first."""
    cohorts: dict[tuple[int, int], list[int]] = {}
    for peer in peers:
        cohorts.setdefault((job.steps_P[peer], job.batch_P[peer]), []).append(peer)
    blocks = [
        tuple(cohort[first : first + job.block])
        for cohort in cohorts.values()
        for first in range(0, len(cohort), job.block)
    ]
    return sorted(blocks, key=lambda block: (-job.steps_P[block[0]] * len(block), block))


def column_slices(rows: int) -> Iterator[range]:
    """Yield so many rows, a few at a time."""
    yield from (range(at, min(at + ROWS_AT_ONCE, rows)) for at in range(0, rows, ROWS_AT_ONCE))
