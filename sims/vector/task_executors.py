"""Whoever does an engine's tasks: worker processes or a device here; shards on other machines (`sims/ray/`).

An engine leads and never asks where. What is done away from here also lies away from here, until it is gathered.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.leaves import leaves_of
from fedpeer.sims.vector.pool import Stopped, WorkerPool
from fedpeer.sims.vector.tasks import Mixing, Several, Task, Worker

#: Messages by which a phase's tasks are handed out: enough for the workers to end together.
_MESSAGES = 32
#: Peers whose states are begun, settled or read at once in the leading process.
ROWS_AT_ONCE = 64
#: What all clients of a server are told.
Told = Literal["received", "server"]


class TaskExecutor(Protocol):
    """See the top of this file.

    halfway   whether what was trained is still there after a stop in the middle of a round
    """

    halfway: bool

    @property
    def process_ids(self) -> tuple[int, ...]: ...

    def run(self, tasks: Sequence[Task]) -> list[Any]:
        """Do all tasks, which are of one phase, each once as far as anyone can tell; results in their order.

        Raises:
            Stopped, EngineError: as `WorkerPool.run` does.
        """

    def set_mixing(self, group: str, mixing: Mixing) -> None:
        """From now on the group averages by this matrix."""

    def tell(self, what: Told, state: Any) -> None:
        """From now on this is what a server has told, or is."""

    def weights(self, group: str, peers: Sequence[int], sides: Sequence[int]) -> NDArray[np.float64] | None:
        """(M,) the algorithm's own weights of the members of a group, whose states lie on these sides."""

    def fetch(self, peers: Sequence[int]) -> None:
        """Have here what these clients have sent."""

    def settle(self, peers: Sequence[int], sides: Sequence[int], counted: Sequence[bool]) -> None:
        """Have clients keep what is to be kept of a round (`Worker.settle`)."""

    def finished(self, peers: Sequence[int], sides: Sequence[int], source: int, *, mixed: bool) -> None:
        """A round is over: the states of these peers, who trained, lie on these sides now, and x on side `source`,
        where it has just been mixed or not."""

    def gather(self) -> None:
        """Have all here as it was at the end of the last round."""

    def resume(self, sides: list[int]) -> None:
        """Go on from what the leader has put into its own memory, states on these sides and x on side 0; the sides are
        changed where states are put elsewhere."""


class LocalTaskExecutor:
    """This machine: a pool of worker processes on the CPU, or a device, whose tasks run in the leading process."""

    halfway = True

    def __init__(self, worker: Worker, pool: WorkerPool | None, stop: threading.Event) -> None:
        self._worker, self._pool, self._stop = worker, pool, stop

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The workers' process numbers; empty on a device."""
        return self._pool.process_ids if self._pool else ()

    def run(self, tasks: Sequence[Task]) -> list[Any]:
        if self._pool is not None:
            size = max(1, math.ceil(len(tasks) / _MESSAGES))
            several = [Several(tuple(tasks[at : at + size])) for at in range(0, len(tasks), size)]
            return [each for found in self._pool.run(several) for each in found]
        results = []
        for task in tasks:
            if self._stop.is_set():
                raise Stopped
            results.append(self._worker.do(task))
        return results

    def set_mixing(self, group: str, mixing: Mixing) -> None:
        if self._pool is not None:
            self._pool.set_mixing(group, mixing)
        else:
            self._worker.mixing[group] = mixing

    def tell(self, what: Told, state: Any) -> None:
        places: Mapping[str, Tensor] = leaves_of(getattr(self._worker.states, what))
        for name, leaf in leaves_of(state).items():
            places[name].copy_(leaf)

    def weights(self, group: str, peers: Sequence[int], sides: Sequence[int]) -> NDArray[np.float64] | None:
        return self._worker.weights(peers, sides, group)

    def fetch(self, peers: Sequence[int]) -> None:
        pass

    def settle(self, peers: Sequence[int], sides: Sequence[int], counted: Sequence[bool]) -> None:
        for at in range(0, len(peers), ROWS_AT_ONCE):
            some = slice(at, at + ROWS_AT_ONCE)
            self._worker.settle(peers[some], sides[some], counted[some])

    def finished(self, peers: Sequence[int], sides: Sequence[int], source: int, *, mixed: bool) -> None:
        pass

    def gather(self) -> None:
        pass

    def resume(self, sides: list[int]) -> None:
        pass
