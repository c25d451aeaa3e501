"""A disk that takes only a part of the written bytes: this process may let no file grow further."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def file_bytes_at_most(most: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes inside the block."""
    if sys.platform == "win32":
        pytest.skip("this system has no such limit")
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
