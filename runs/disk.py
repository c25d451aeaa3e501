"""Files that are never incomplete: strict JSON, atomic replacement, and a lock that ends with its process.

It does not depend on runs. A file is written under a temporary name, forced to the disk and renamed, so that a reader
finds either the old content or the new one, even after a crash at any moment.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

#: Seconds to wait for a lock. A listing of runs holds each lock for some microseconds to see if it is free; another
#: process that writes the same run holds it until it ends.
LOCK_PATIENCE = 0.5


class RunError(Exception):
    """The user's mistake about runs, or a damaged file of a run; the message has the place and the way out."""


def json_value(value: Any) -> Any:
    """Convert a value to JSON's types: arrays to lists, paths to text, and numbers that are not finite to null."""
    if isinstance(value, Mapping):
        return {str(key): json_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(inner) for inner in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return json_value(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def finite(value: float | np.floating[Any] | None) -> float | None:
    """Return a number, or None if it is infinite or NaN, for which JSON has no notation."""
    return float(value) if value is not None and math.isfinite(value) else None


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON text that strict parsers accept; it is one line unless `indent` is given."""
    return json.dumps(json_value(value), indent=indent, ensure_ascii=False, allow_nan=False)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path; the file written there replaces `path` at the end, unless there was an exception.

    There may be one writer at a time. A temporary file left by a killed process is overwritten by the next writer.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        flush_file(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    flush_folder(path.parent)


def flush_file(path: Path) -> None:
    """Make a file's content durable."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Make the names of the files in this folder durable: a rename is durable only after this."""
    if sys.platform != "win32":
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Replace the file by this text atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Replace the file by this value as indented JSON atomically."""
    write_text(path, dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Read the value in a JSON file.

    Raises:
        RunError: the file is missing or is not JSON; the message names it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing; the run's folder is not complete") from None
    except ValueError as problem:
        raise RunError(f"{path} is damaged ({problem}); restore it, or delete the run's folder") from None


def take_lock(path: Path, *, patience: float = LOCK_PATIENCE) -> int | None:
    """Return an open descriptor that holds the lock, or None if another one holds it longer than `patience` seconds.

    The system releases the lock when the descriptor is closed or its process ends in any way. On a file system without
    locks the descriptor is returned without a lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)  # never follow a link
    end = time.monotonic() + patience
    while _locked(descriptor) is False:
        if time.monotonic() >= end:
            os.close(descriptor)
            return None
        time.sleep(0.01)
    return descriptor


def is_locked(path: Path) -> bool:
    """Return whether any process holds the lock; True on a file system without locks.

    It asks for a shared lock, so that two processes that ask at once do not take each other for the holder. NFS gives
    an exclusive one only to a descriptor that can write.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return _locked(descriptor, shared=True) is not True
    finally:
        os.close(descriptor)


def _locked(descriptor: int, *, shared: bool = False) -> bool | None:
    """Try to lock: return True, False if another descriptor holds the lock, or None if the file system has no locks."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN on POSIX, EACCES on Windows
        return False
    except OSError:
        return None
    return True
