"""Trackers in threads of their own, so that a run or a peer goes on without one that fails.

Calls return at once. A tracker that fails, does not keep up, or does not end in time gets one warning, and everything
else goes on.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from fedpeer.runs.trackers.tracker import Series, SeriesLog, Tracker

#: Most calls that wait for a tracker; with more it counts as too slow: a round takes longer than sending its numbers.
WAITING_MAX = 1000
#: Seconds that a run waits at its end for all trackers together.
PATIENCE_S = 30.0

_Call = Callable[[dict[str, SeriesLog]], None]


class GuardedTrackers:
    """Several trackers at once, by name."""

    def __init__(self, trackers: Mapping[str, Tracker], *, patience: float = PATIENCE_S) -> None:
        self._warnings: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._threads = [_TrackerThread(name, tracker, self._warnings.put) for name, tracker in trackers.items()]
        self._patience = patience

    @property
    def seconds(self) -> float:
        """Processor seconds that the trackers' calls have taken, without those of their own threads."""
        return sum(thread.seconds for thread in self._threads)

    def warnings(self) -> list[str]:
        """Return the warnings since the last call."""
        found = []
        while not self._warnings.empty():
            found.append(self._warnings.get())
        return found

    def open(self, series: Series, parameters: Mapping[str, object]) -> None:
        """Open a series; one that is open under its id is closed before."""
        for thread in self._threads:
            thread.put(partial(_open, tracker=thread.tracker, series=series, parameters=parameters))

    def add(self, id: str, values: Mapping[str, float], round: int) -> None:
        """Add the numbers of a round to an open series."""
        for thread in self._threads:
            thread.put(lambda logs: logs[id].add(values, round))

    def end(self, id: str) -> None:
        """Close a series."""
        for thread in self._threads:
            thread.put(lambda logs: _close(logs, id))

    def close(self) -> None:
        """Close everything that is open, and wait for the trackers, but not for ever."""
        for thread in self._threads:
            thread.finish()
        until = time.monotonic() + self._patience
        for thread in self._threads:
            thread.join(until)


def _open(logs: dict[str, SeriesLog], tracker: Tracker, series: Series, parameters: Mapping[str, object]) -> None:
    _close(logs, series.id)
    logs[series.id] = tracker.open(series, parameters)


def _close(logs: dict[str, SeriesLog], id: str) -> None:
    log = logs.pop(id, None)
    if log is not None:
        log.close()


def _close_all(logs: dict[str, SeriesLog]) -> None:
    for id in list(logs):
        _close(logs, id)


class _TrackerThread:
    """One tracker and its thread."""

    def __init__(self, name: str, tracker: Tracker, warn: Callable[[str], None]) -> None:
        self.tracker, self.seconds = tracker, 0.0
        self._name, self._warn = name, warn
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name=f"fedpeer-{name}", daemon=True)
        self._thread.start()

    def put(self, call: _Call) -> None:
        if not self._failed and self._calls.qsize() >= WAITING_MAX:
            self._fail("does not keep up")
        if not self._failed:
            self._calls.put(call)

    def finish(self) -> None:
        """Close all series, and end the thread."""
        self.put(_close_all)
        self._calls.put(None)

    def join(self, until: float) -> None:
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive() and not self._failed:
            self._fail("has not finished in time")

    def _run(self) -> None:
        logs: dict[str, SeriesLog] = {}
        while (call := self._calls.get()) is not None:
            if self._failed:
                continue
            began = time.thread_time()
            try:
                call(logs)
            except (Exception, SystemExit) as problem:  # whatever the library raises
                reason = (str(problem).strip().splitlines() or [""])[0]
                self._fail(f"failed ({type(problem).__name__}: {reason})")
            self.seconds += time.thread_time() - began

    def _fail(self, how: str) -> None:
        if not self._failed:
            self._failed = True
            self._warn(f"the tracker {self._name} {how}; everything else goes on without it")
