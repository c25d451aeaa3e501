"""Executors of an engine's tasks: worker processes or a device of this machine, or shards on others (`sims/ray/`).

An engine leads and does not know where its tasks run. Results of tasks on other machines stay there until they are
gathered.
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
from fedpeer.sims.vector.tasks import Mixing, Task, TaskBatch, Worker

#: Messages in which the tasks of a phase are distributed: enough that workers finish at about the same time.
_MESSAGES = 32
#: Peers whose states the leading process starts, settles or reads at once.
ROWS_AT_ONCE = 64
#: The kinds of state that a server shares with all clients.
SharedState = Literal["received", "server"]


class TaskExecutor(Protocol):
    """Runs an engine's tasks, here or on other machines.

    halfway   whether the results of training survive a stop in the middle of a round
    """

    halfway: bool

    @property
    def process_ids(self) -> tuple[int, ...]: ...

    def run(self, tasks: Sequence[Task]) -> list[Any]:
        """Run all tasks of a phase, with the effect of running each once, and return their results in the same order.

        Raises:
            Stopped, EngineError: as `WorkerPool.run` does.
        """

    def set_mixing(self, group: str, mixing: Mixing) -> None:
        """Set the matrix by which the group averages from now on."""

    def set_shared(self, what: SharedState, state: Any) -> None:
        """Set the server's broadcast ("received") or the server's state ("server") for all tasks from now on."""

    def weights(self, group: str, peers: Sequence[int], sides: Sequence[int]) -> NDArray[np.float64] | None:
        """Return the algorithm's own weights of a group's members, (M,), whose states are on these sides."""

    def fetch(self, peers: Sequence[int]) -> None:
        """Bring these clients' updates into the leading process's memory."""

    def settle(self, peers: Sequence[int], sides: Sequence[int], counted: Sequence[bool]) -> None:
        """Settle what clients keep of a round (`Worker.settle`)."""

    def finished(self, peers: Sequence[int], sides: Sequence[int], source: int, *, mixed: bool) -> None:
        """Record the end of a round.

        Args:
            peers: the peers that trained.
            sides: where their states are now.
            source: where x is now.
            mixed: whether x has just been mixed.
        """

    def gather(self) -> None:
        """Bring everything into the leading process's memory, as it was at the end of the last round."""

    def resume(self, sides: list[int]) -> None:
        """Resume from the leading process's memory: states on these sides, x on side 0.

        An executor that puts the states on other sides changes `sides`.
        """


class LocalTaskExecutor:
    """This machine: a pool of worker processes on the CPU, or a device, whose tasks run in the leading process."""

    halfway = True

    def __init__(self, worker: Worker, pool: WorkerPool | None, stop: threading.Event) -> None:
        self._worker, self._pool, self._stop = worker, pool, stop

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process ids of the workers; empty on a device."""
        return self._pool.process_ids if self._pool else ()

    def run(self, tasks: Sequence[Task]) -> list[Any]:
        if self._pool is not None:
            size = max(1, math.ceil(len(tasks) / _MESSAGES))
            several = [TaskBatch(tuple(tasks[at : at + size])) for at in range(0, len(tasks), size)]
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
            self._worker.set_mixing(group, mixing)

    def set_shared(self, what: SharedState, state: Any) -> None:
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
