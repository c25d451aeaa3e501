"""A pool of worker processes: one that dies is reported and replaced, and its task is done again.

Workers start by `forkserver` with torch preloaded (a plain fork after torch has used threads hangs), use one torch
thread each, and receive tasks one at a time over a pipe. They ignore Ctrl-C; the leading process decides.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from fedpeer.sims.ends import how_ended
from fedpeer.sims.vector import worker as worker_process
from fedpeer.sims.vector.by_value import ByValue
from fedpeer.sims.vector.fork_server import worker_context
from fedpeer.sims.vector.tasks import Mixing, WorkerTask
from fedpeer.sims.vector.workspace import Job, WorkspaceHandles

#: Deaths at the same task after which the run is given up: one may be due to the machine, three are due to the task.
DEATHS_PER_TASK_MAX = 3
#: Attempts to start a worker while the fork server is being killed.
_LAUNCHES_MAX = 3


class EngineError(RuntimeError):
    """The engine cannot continue, such as after a task that failed in every worker that took it.

    The message has the worker's traceback, or the reason of its death.
    """


class StateLostError(EngineError):
    """The peers' states are lost from the engine's memory; a checkpoint may have them."""


class Stopped(Exception):  # noqa: N818 - not an error but a request
    """The run was asked to stop in the middle of a phase."""


@dataclass
class _Worker:
    name: str
    process: BaseProcess
    pipe: Connection
    task: int | None = None

    def send(self, *message: object) -> None:
        """Send a message; a worker that is dead does not get it, and is found at the next wait."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send(message)


class WorkerPool:
    """The worker processes of one job. A context manager, so that no process outlives the run."""

    def __init__(
        self,
        job: Job,
        handles: WorkspaceHandles,
        workers: int,
        replaced: Callable[[str, str], None],
        stop: threading.Event,
    ) -> None:
        closed = all(each.way in ("single sample", "stack") for each in job.networks)
        self._context = worker_context(autograd=not closed)
        self._job, self._handles, self._replaced, self._stop = job, handles, replaced, stop
        self._mixing: dict[str, Mixing] = {}
        self._reason = ""
        self._workers = [self._start(f"worker{number}") for number in range(1, workers + 1)]

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process ids of the workers, for measurements and for tests that kill them."""
        return tuple(worker.process.pid or 0 for worker in self._workers)

    def set_mixing(self, group: str, mixing: Mixing) -> None:
        """Send every worker (and every later replacement) the group's matrix, unless they already have it."""
        known = self._mixing.get(group)
        if isinstance(known, np.ndarray) and isinstance(mixing, np.ndarray) and np.array_equal(known, mixing):
            return
        self._mixing[group] = mixing
        for worker in self._workers:
            worker.send("mixing", group, mixing)

    def run(self, tasks: Sequence[WorkerTask]) -> list[Any]:
        """Run all tasks, with the effect of running each once, and return their results in the same order.

        Raises:
            Stopped: the stop event was set; unfinished tasks are abandoned.
            EngineError: a task raised an exception, or killed DEATHS_PER_TASK_MAX workers.
        """
        results: list[Any] = [None] * len(tasks)
        waiting, deaths, left = deque(range(len(tasks))), [0] * len(tasks), len(tasks)
        for worker in self._workers:
            self._send_next(worker, tasks, waiting)
        while left:
            if self._stop.is_set():
                raise Stopped
            # The wait ends at an answer or a death; its timeout bounds how late a stop is noticed.
            ready = wait([w.pipe for w in self._workers] + [w.process.sentinel for w in self._workers], timeout=0.2)
            for worker in list(self._workers):
                if worker.pipe in ready:
                    answer = self._receive(worker)
                    if answer is not None:
                        results[answer[0]] = answer[1]
                        left -= 1
                        worker.task = None
                        self._send_next(worker, tasks, waiting)
                        continue
                if worker.pipe in ready or worker.process.sentinel in ready:
                    if self._stop.is_set():  # the signal that asks to stop may have ended the workers, too
                        raise Stopped
                    lost = self._replace(worker)
                    if lost is not None:
                        deaths[lost] += 1
                        if deaths[lost] >= DEATHS_PER_TASK_MAX:
                            raise EngineError(
                                f"{tasks[lost]} killed {deaths[lost]} workers, the last by {self._reason}"
                            )
                        waiting.appendleft(lost)
                    for idle in self._workers:
                        if idle.task is None:
                            self._send_next(idle, tasks, waiting)
        return results

    def _send_next(self, worker: _Worker, tasks: Sequence[WorkerTask], waiting: deque[int]) -> None:
        if waiting:
            worker.task = waiting.popleft()
            worker.send("task", worker.task, tasks[worker.task])

    def _receive(self, worker: _Worker) -> tuple[int, Any] | None:
        """Return a worker's answer, or None if the worker is dead."""
        try:
            kind, number, content = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            return None
        if kind == "error":
            raise EngineError(f"{worker.name} failed:\n{content}")
        return number, content

    def _replace(self, worker: _Worker) -> int | None:
        """Start another process under the same name; return the dead one's unfinished task, if any."""
        worker.process.join()
        code = worker.process.exitcode or 0
        self._reason = how_ended(code)
        worker.pipe.close()
        self._workers[self._workers.index(worker)] = self._start(worker.name)
        self._replaced(worker.name, self._reason)
        return worker.task

    def _start(self, name: str) -> _Worker:
        leader_end, worker_end = self._context.Pipe()
        worker = _Worker(name, self._launched(name, worker_end), leader_end)
        worker_end.close()
        for group, mixing in self._mixing.items():
            worker.send("mixing", group, mixing)
        return worker

    def _launched(self, name: str, worker_end: Connection) -> BaseProcess:
        """Start a process, again if it or the fork server is killed meanwhile, as by a signal to the whole group."""
        for attempt in range(1, _LAUNCHES_MAX + 1):
            process: BaseProcess = self._context.Process(  # type: ignore[attr-defined]
                target=worker_process.worker_main,
                args=(worker_end, ByValue(self._job), self._handles),
                name=f"fedpeer-{name}",
                daemon=True,
            )
            try:
                with _script_hidden():
                    process.start()
            except (ConnectionError, EOFError):
                if attempt == _LAUNCHES_MAX:
                    raise
            else:
                return process
        raise AssertionError("the last attempt returns or raises")


@contextlib.contextmanager
def _script_hidden() -> Iterator[None]:
    """Keep multiprocessing from importing the leading process's script into a new process.

    Multiprocessing imports it for the definitions in it. Workers get the definitions that they need by value; so a
    user's script needs no `__main__` guard, and a worker starts in a tenth of the time.
    """
    script = sys.modules["__main__"]
    spec, path = script.__spec__, script.__dict__.pop("__file__", None)
    script.__spec__ = None
    try:
        yield
    finally:
        script.__spec__ = spec
        if path is not None:
            script.__file__ = path
