"""Detection of callbacks that block the event loop, for the fixture `quick_loop` of this folder, which fails the test.

Every callback of every loop is timed while the fixture is in use. Other programs on the machine must not fail a test,
so time in which the kernel preempts the callback does not count: a callback is slow if its computing time is too long,
or if its wall-clock time is too long and it waited voluntarily (for a disk, a lock, a sleep).
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

#: Seconds that one callback may take; the project promises this for groups of up to a million parameters.
CALLBACK_MAX_S = 0.05


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
            wall, busy, waits = (after - begun for after, begun in zip(_now(), before, strict=True))
            if busy > CALLBACK_MAX_S or (wall > CALLBACK_MAX_S and waits > 0):
                slow.append(f"{wall * 1e3:.0f} ms, of it computing {busy * 1e3:.0f}: {name!r}")

        patch.setattr(asyncio.Handle, "_run", timed)
        yield slow


def _now() -> tuple[float, float, float]:
    """Return the clock, this thread's computing time, and its number of voluntary context switches."""
    return time.perf_counter(), time.thread_time(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
