"""Detection of callbacks that block the event loop, for the fixture `quick_loop` of this folder, which fails the test.

Every callback of every loop is timed while the fixture is in use. Other programs on the machine must not fail a test,
so time for which the thread waits for a processor does not count: a callback is slow if it computes for too long, or if
it waits too long for anything else (a disk, a lock, a sleep).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

#: Seconds that one callback may take; the project promises this for groups of up to a million parameters.
CALLBACK_MAX_S = 0.05

#: The step in which asyncio waits for the threads of an ended loop, which has no other callbacks to block.
_ENDING = "shutdown_default_executor()"

#: The file in which the kernel counts each thread's waits for a processor; it is open as long as the thread.
_own = threading.local()


@contextmanager
def slow_callbacks() -> Iterator[list[str]]:
    """Collect a line for each callback that is too slow."""
    slow: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            before = _now()
            callback = handle._callback  # type: ignore[attr-defined]
            name = getattr(callback, "__self__", callback)  # the task, if this is a step of one
            run(handle)
            wall, busy, queued = (after - begun for after, begun in zip(_now(), before, strict=True))
            if max(busy, wall - busy - queued) > CALLBACK_MAX_S and _ENDING not in repr(name):
                slow.append(f"{wall * 1e3:.0f} ms, of it computing {busy * 1e3:.0f}: {name!r}")

        patch.setattr(asyncio.Handle, "_run", timed)
        yield slow


def _now() -> tuple[float, float, float]:
    """Return the clock, this thread's computing time, and for how long it has waited for a processor (Linux only)."""
    if not hasattr(_own, "schedstat"):
        with suppress(OSError):
            _own.schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    queued = int(os.pread(_own.schedstat, 100, 0).split()[1]) / 1e9 if hasattr(_own, "schedstat") else 0.0
    return time.perf_counter(), time.thread_time(), queued
