"""Transient failures: resources of the machine that are missing now and may become available by themselves.

For a disk that is full, read-only or failing and for an address that no interface has yet, the process waits with
growing pauses (`patiently`), so that the peer goes on as soon as it can. If only another start helps, since another
process has the port or there is too little memory, the process ends with `EXIT_TEMPORARY`, and a service or
`supervisor.py` starts it again. Exit code 2 is for problems that need manual intervention.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

#: Seconds before something is tried again, doubled each time up to the second number: free space on a disk is noticed
#: soon, and neither disk nor log is kept busy until then.
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.1, 5.0
#: Errors of disks that may pass: full, over a quota, read-only, failing, out of reach.
_OF_DISKS = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EROFS", "EIO", "ESTALE", "ETIMEDOUT", "ENODEV", "ENXIO", "EMFILE", "ENFILE")
    if hasattr(errno, name)
}

T = TypeVar("T")


class PortInUseError(Exception):
    """Another process has the port; a later start may find it free. The message is a sentence with the way out."""


class NoAddressError(Exception):
    """No interface of this machine has the address, or its name cannot be resolved now. The message is a sentence."""


def disk_may_recover(problem: OSError) -> bool:
    """Return whether the same may succeed later without a change of permissions, names or settings."""
    return problem.errno in _OF_DISKS


def pauses(first: float = RETRY_SECONDS, most: float = RETRY_SECONDS_MAX) -> Iterator[float]:
    """Yield the seconds before the second try, the third, and so on without end."""
    while True:
        yield min(first, most)
        first = min(2 * first, most)


async def patiently(
    attempt: Callable[[], Awaitable[T]],
    passes: type[Exception],
    on_failure: Callable[[Exception], None],
    over: asyncio.Event,
) -> T | None:
    """Repeat the attempt while it raises `passes`, and return its result; None if `over` was set before.

    Args:
        on_failure: called with each failure, before the pause after it.
    """
    for pause in pauses():
        try:
            return await attempt()
        except passes as problem:
            on_failure(problem)
        try:
            async with asyncio.timeout(pause):
                await over.wait()
        except TimeoutError:
            continue
        return None
    raise AssertionError("pauses have no end")


def short_of_memory(error: BaseException) -> bool:
    """Return whether the error means too little memory: of Python, numpy, torch or the loader of libraries."""
    text = str(error).lower()
    match error:
        case MemoryError():
            return True
        case OSError():
            return error.errno == errno.ENOMEM or "cannot allocate memory" in text
        case ImportError():
            return "cannot allocate memory" in text or "failed to map segment" in text
        case RuntimeError():
            on_failure = ("can't allocate memory", "not enough memory", "out of memory", "can't start new thread")
            return any(words in text for words in on_failure)
    return False
