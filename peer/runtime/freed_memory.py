"""Memory of this process, and what of it was freed and the C library still keeps."""

from __future__ import annotations

import ctypes
import os
import sys

#: Number of glibc's parameter for the most heaps (malloc.h).
_M_ARENA_MAX = -8


def give_back_freed_memory() -> None:
    """Give whole pages that were freed back to the system, where the C library can do so (glibc). Takes milliseconds.

    The making of a network and its first step leave some ten megabytes that are never needed again, which sixteen peers
    on one machine would keep sixteen times. Not after each training of a small network: the next one would take the
    pages anew, which makes its rounds a tenth slower.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def keep_one_heap() -> None:
    """Let all threads of this process take memory from one place (glibc); call it before they take any.

    In a place of its own the trainer's thread keeps some ten megabytes that other threads cannot use.
    """
    if sys.platform == "linux" and (choose := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        choose(_M_ARENA_MAX, 1)


def resident_bytes() -> int:
    """Return how much memory this process has, with what it shares; 0 where /proc does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0
