"""Peers' states out of memory: the pages of their files are given back while nobody looks at them.

States lie in files that every process maps. What a process has touched counts as its own until the kernel wants it
back; with many peers that would soon be all of them. So where states are many each process gives their pages back
several times a second. Nothing is lost by it: the file has them, first in the kernel's cache and then on the disk,
and whoever looks again finds them there. A file system in memory (tmpfs) has no disk behind it, and helps nobody.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedpeer.sims.vector.workspace import Workspace

#: Bytes of states in all up to which everything may stay where it is.
RESIDENT_MAX = 2**30
#: Seconds between two times: a disk that gives 1 GB a second fills 100 MB of pages meanwhile.
EVERY_SECONDS = 0.1


@contextmanager
def given_back(workspace: Workspace) -> Iterator[None]:
    """Give this process's pages of large states back meanwhile; where the system cannot, or they are small, nothing."""
    size = sum(len(mapping) for mapping in workspace.mappings)
    if size <= RESIDENT_MAX or not hasattr(mmap, "MADV_DONTNEED"):
        yield
        return
    over = threading.Event()

    def give() -> None:
        while not over.wait(EVERY_SECONDS):
            for mapping in workspace.mappings:
                mapping.madvise(mmap.MADV_DONTNEED)  # shared mappings of files: the pages' content stays

    thread = threading.Thread(target=give, name="fedpeer-pages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
