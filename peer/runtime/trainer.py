"""The thread that trains and evaluates, one job after the other, while the event loop goes on.

It is a daemon thread: a peer that is to stop ends at once and does not wait for a round of steps whose result is no
longer needed. Training that round again is cheaper than a machine that does not shut down.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from fedpeer.peer.runtime.transient import disk_may_recover, pauses

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


class Trainer(Generic[_Job, _Result]):
    """Runs jobs in a thread of its own. Create it on a running event loop, on which all callbacks are called.

    A job that fails because of a disk (unreadable data, no space for compiled code) is repeated after growing pauses.

    A process that ends while the trainer is `busy` has to end by `os._exit`: an interpreter that shuts down stops the
    thread inside torch's own code, which aborts.

    Args:
        work: does a job, in the thread.
        done: called with each result.
        failed: called with a job's exception; no further job is done.
        waits: called with the reason each time a job is going to be repeated.
    """

    def __init__(
        self,
        work: Callable[[_Job], _Result],
        done: Callable[[_Result], None],
        failed: Callable[[Exception], None],
        waits: Callable[[OSError], None],
    ) -> None:
        self._work, self._done, self._failed, self._waits = work, done, failed, waits
        self._loop = asyncio.get_running_loop()
        # Unbounded: a node asks for one training at a time, and for an evaluation now and then.
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._submitted = self._ended = 0  # each is changed by one thread
        threading.Thread(target=self._run, name="fedpeer-train", daemon=True).start()

    @property
    def busy(self) -> bool:
        """True while a job is queued or under way."""
        return self._ended < self._submitted

    def submit(self, job: _Job) -> None:
        """Queue a job; it is done after those submitted before."""
        self._submitted += 1
        self._jobs.put(job)

    def close(self) -> None:
        """End the thread after the jobs submitted so far; it would keep all that they need in memory."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                result = self._patiently(job)
            except Exception as error:
                self._on_event(self._failed, error)
                return
            finally:
                self._ended += 1
            self._on_event(self._done, result)

    def _patiently(self, job: _Job) -> _Result:
        for pause in pauses():
            try:
                return self._work(job)
            except OSError as problem:
                if not disk_may_recover(problem):
                    raise
                self._on_event(self._waits, problem)
                time.sleep(pause)
        raise AssertionError("pauses have no end")

    def _on_event(self, whom: Callable[..., None], what: object) -> None:
        try:
            self._loop.call_soon_threadsafe(whom, what)
        except RuntimeError:  # the loop is closed: the process is ending, and nobody waits for this
            return
