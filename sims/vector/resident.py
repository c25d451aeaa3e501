"""Release of the memory of large states: processes return pages of the states' files to the kernel.

States are in files that every process maps. Pages that a process has touched count as its memory until the kernel
reclaims them; with many peers those would soon be all pages. So with large states each process releases them several
times a second. Nothing is lost: the file keeps them, first in the kernel's cache and then on the disk, and the next
access reads them again. On a file system in memory (tmpfs), which has no disk behind it, this has no benefit.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedpeer.sims.vector.workspace import Workspace

#: Total bytes of states up to which all of them may stay in memory. Releasing those of 1,024 peers of 266,610 weights
#: would take as long as training them: each page that is written next is a fault.
RESIDENT_MAX = 2**32
#: Seconds between two releases: a disk that reads 1 GB a second fills 100 MB of pages in this time.
EVERY_SECONDS = 0.1


@contextmanager
def given_back(workspace: Workspace) -> Iterator[None]:
    """Release this process's pages of large states while the context is open.

    Does nothing if the states are small, or the system has no `madvise`.
    """
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
