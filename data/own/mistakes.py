"""All mistakes of a user's file in one message, each with its place, the problem and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Hashable
from pathlib import Path

from fedpeer.data.dataset import DataError

#: Mistakes that are written out; more do not fit on one screen with their ways out.
SHOWN_MAX = 10


class FileMistakes:
    """Collects the mistakes of one file; of those that are alike (same `group`) the first is kept, others counted."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: dict[Hashable, tuple[str, str]] = {}
        self._alike: dict[Hashable, int] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, place: str, problem: str, group: Hashable = None) -> None:
        """Note a mistake at `place` ("row 3, column age"; empty: the file as a whole)."""
        key = (place, problem) if group is None else group
        self._found.setdefault(key, (place, problem))
        self._alike[key] = self._alike.get(key, 0) + 1

    def stop_if_any(self) -> None:
        """Raises: DataError: if anything was noted."""
        if not self._found:
            return
        lines = [
            ": ".join(filter(None, (place, problem)))
            + (f" (and {self._alike[key] - 1} more like it)" if self._alike[key] > 1 else "")
            for key, (place, problem) in self._found.items()
        ]
        if len(lines) == 1:
            raise DataError(f"{self.file}: {lines[0]}")
        more = [f"and {len(lines) - SHOWN_MAX} more"] if len(lines) > SHOWN_MAX else []
        listed = "\n  ".join(lines[:SHOWN_MAX] + more)
        raise DataError(f"{self.file} has {len(lines)} problems, so it was not read.\n\n  {listed}")

    def stop(self, place: str, problem: str) -> DataError:
        """The error of a mistake after which reading on makes no sense."""
        return DataError(f"{self.file}: " + ": ".join(filter(None, (place, problem))))


def check_there(path: str) -> None:
    """Raises: DataError: if there is no such file, with the nearest name beside it."""
    file = Path(path)
    if file.is_file():
        return
    if file.is_dir():
        raise DataError(f"{path} is a folder, not a file; for a folder of images write images:{path}")
    beside = [each.name for each in file.parent.iterdir()] if file.parent.is_dir() else []
    near = difflib.get_close_matches(file.name, beside, n=1)
    looked = "" if file.is_absolute() else f" (looked in {Path.cwd()})"
    raise DataError(f"there is no file {path}" + (f'; did you mean "{near[0]}"?' if near else looked))
