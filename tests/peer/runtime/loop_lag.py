"""A callback that holds up the event loop fails the test: the fixture `quick_loop` of this folder.

Every callback of every loop is timed while the fixture is in use. Other programs on the machine must not fail a test,
so being put aside by the kernel does not count: a callback is slow if it computed for too long, or if it took too long
by the clock and waited for something of its own accord (a disk, a lock, a sleep).
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

#: Seconds that one callback may take: what the project promises for groups of up to a million parameters.
CALLBACK_MAX_S = 0.05


@contextmanager
def slow_callbacks() -> Iterator[list[str]]:
    """Gathers a line for each callback that is too slow."""
    slow: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            before = _now()
            callback = handle._callback  # type: ignore[attr-defined]
            name = getattr(callback, "__self__", callback)  # of a task, what it runs
            run(handle)
            wall, busy, waits = (after - begun for after, begun in zip(_now(), before, strict=True))
            if busy > CALLBACK_MAX_S or (wall > CALLBACK_MAX_S and waits > 0):
                slow.append(f"{wall * 1e3:.0f} ms, of it computing {busy * 1e3:.0f}: {name!r}")

        patch.setattr(asyncio.Handle, "_run", timed)
        yield slow


def _now() -> tuple[float, float, float]:
    """The clock, this thread's computing time, and how often it waited of its own accord."""
    return time.perf_counter(), time.thread_time(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
