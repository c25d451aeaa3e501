"""What a peer needs of its machine and cannot have now, though it may come by itself.

A disk that is full, read-only or failing and an address that no interface has yet are waited for in the process, with
growing pauses (`patiently`), so that the peer goes on as soon as they are there. Where only another start helps, since
another process has the port or there is too little memory, the process ends with `EXIT_TEMPORARY`, upon which a
service, or whoever watches over it (`supervisor.py`), starts it again. Exit code 2 is for what a person must mend.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

#: EX_TEMPFAIL of sysexits.h: try again later.
EXIT_TEMPORARY = 75
#: Seconds before something is tried again, doubled each time up to the second number: that there is room on a disk
#: again is noticed soon, and neither disk nor log is kept busy until then.
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.1, 5.0
#: What may pass when a disk is asked: full, over a quota, read-only, failing, out of reach.
_OF_DISKS = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EROFS", "EIO", "ESTALE", "ETIMEDOUT", "ENODEV", "ENXIO", "EMFILE", "ENFILE")
    if hasattr(errno, name)
}

T = TypeVar("T")


class PortInUseError(Exception):
    """Another process has the port. The message is a sentence with the way out; another start may find it free."""


class NoAddressError(Exception):
    """No interface of this machine has the address, or nobody resolves its name now. The message is a sentence."""


def disk_may_recover(problem: OSError) -> bool:
    """Whether the same may succeed later without anybody changing permissions, names or settings."""
    return problem.errno in _OF_DISKS


def pauses(first: float = RETRY_SECONDS, most: float = RETRY_SECONDS_MAX) -> Iterator[float]:
    """Seconds before the second try, the third, ..., without end."""
    while True:
        yield min(first, most)
        first = min(2 * first, most)


async def patiently(
    attempt: Callable[[], Awaitable[T]],
    passes: type[Exception],
    said: Callable[[Exception], None],
    over: asyncio.Event,
) -> T | None:
    """What the attempt gives, which is made again as long as it raises `passes`; None if `over` was set meanwhile.

    Args:
        said: hears each failure, before the pause behind it.
    """
    for pause in pauses():
        try:
            return await attempt()
        except passes as problem:
            said(problem)
        try:
            async with asyncio.timeout(pause):
                await over.wait()
        except TimeoutError:
            continue
        return None
    raise AssertionError("pauses have no end")


def short_of_memory(error: BaseException) -> bool:
    """Whether this is the machine's want of memory, however Python, numpy, torch and the loader of libraries say it."""
    text = str(error).lower()
    match error:
        case MemoryError():
            return True
        case OSError():
            return error.errno == errno.ENOMEM or "cannot allocate memory" in text
        case ImportError():
            return "cannot allocate memory" in text or "failed to map segment" in text
        case RuntimeError():
            said = ("can't allocate memory", "not enough memory", "out of memory", "can't start new thread")
            return any(words in text for words in said)
    return False
