"""Files that are never half there: strict JSON, replacement in one step, and a lock that dies with its owner.

Knows nothing of runs. A file is written beside its final name, forced to the disk and renamed over it, so that a
reader, or a crash at any instant, finds either the old content or the new one.
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

#: Seconds to wait for a lock. Whoever lists runs holds each lock for some microseconds to see if it is free; a second
#: program that writes the same run holds it until it ends.
LOCK_PATIENCE = 0.5


class RunError(Exception):
    """The user's mistake about runs, or a damaged file of one. The message names the place and the way out."""


def json_value(value: Any) -> Any:
    """The same in JSON's own types: arrays as lists, paths as text, and null for a number that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): json_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(inner) for inner in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return json_value(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def dumps(value: Any, *, indent: int | None = None) -> str:
    """JSON text that strict readers take too; its lines hold no line break unless `indent` is given."""
    return json.dumps(json_value(value), indent=indent, ensure_ascii=False, allow_nan=False)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; what was written there replaces `path` at the end, or not at all.

    One writer at a time. A temporary file that a killed process left behind is overwritten by the next writer.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    flush_folder(path.parent)


def flush_folder(path: Path) -> None:
    """Make durable which files are in this folder, and under which names: a rename is durable once the folder is."""
    if sys.platform != "win32":
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Replace the file by this text, in one step."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Replace the file by this value as readable JSON, in one step."""
    write_text(path, dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """The value in the file.

    Raises:
        RunError: if there is no such file or it holds no JSON; the message names the file.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing; the run's folder is not complete") from None
    except ValueError as problem:
        raise RunError(f"{path} is damaged ({problem}); restore it, or delete the run's folder") from None


def take_lock(path: Path, *, patience: float = LOCK_PATIENCE) -> int | None:
    """An open descriptor that holds the lock, or None if another one holds it for longer than `patience` seconds.

    The system lets go of the lock when the descriptor is closed or its process ends, however it ends. Where the file
    system knows no locks the descriptor is given all the same.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)  # a link is no lock
    end = time.monotonic() + patience
    while _locked(descriptor) is False:
        if time.monotonic() >= end:
            os.close(descriptor)
            return None
        time.sleep(0.01)
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether some descriptor, here or in another process, holds the lock; True where the file system cannot tell."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return _locked(descriptor) is not True
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool | None:
    """Lock it now: True, or False if another holds it, or None where the file system knows no locks."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN here, EACCES on Windows
        return False
    except OSError:
        return None
    return True
