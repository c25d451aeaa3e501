"""Collection of all mistakes in a user's file into one message, each with its place, the problem and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpeer.data.dataset import DataError

#: Most mistakes in one message; more do not fit on one screen, with their ways out.
SHOWN_MAX = 10


class FileMistakes:
    """The mistakes in one file; the first of similar mistakes (same `group`) is kept, and the others are counted."""

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
        """Stop reading if there are mistakes.

        Raises:
            DataError: all mistakes so far.
        """
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
        """Return the error for a mistake after which the file cannot be read any further."""
        return DataError(f"{self.file}: " + ": ".join(filter(None, (place, problem))))


def check_there(path: str) -> None:
    """Check that a file exists and can be read.

    Raises:
        DataError: it does not exist, or cannot be read; the message has the nearest name in the same folder.
    """
    file = Path(path)
    with opening(path):
        if file.is_file():
            with file.open("rb"):  # so every reader reports a file without permission the same way
                return
        if file.is_dir():
            raise DataError(f"{path} is a folder, not a file; for a folder of images write images:{path}")
        beside = [each.name for each in file.parent.iterdir()] if file.parent.is_dir() else []
    near = nearest_of(file.name, beside)
    looked = "" if file.is_absolute() else f" (looked in {Path.cwd()})"
    raise DataError(f"there is no file {path}" + (f'; did you mean "{near}"?' if near else looked))


@contextmanager
def opening(path: str) -> Iterator[None]:
    """Turn the error of a file or folder that cannot be opened into a DataError that names it."""
    try:
        yield
    except OSError as problem:
        raise DataError(f"{path}: it cannot be opened ({problem.strerror or problem})") from None


def nearest_of(name: str, known: Iterable[str]) -> str:
    """Return the known name with almost the same spelling, or ""."""
    alike = {each.casefold(): each for each in known}
    near = difflib.get_close_matches(name.casefold(), alike, n=1)
    return alike[near[0]] if near else ""


def check_chosen_names(classes: tuple[str, ...], mistakes: FileMistakes) -> None:
    """Note the mistakes in a user's class names; no names are no mistake."""
    if len(classes) == 1:
        mistakes.add(f"classes={classes[0]}", "there must be two classes or more; name all of them: classes=a+b+...")
    for name in dict.fromkeys(each for each in classes if classes.count(each) > 1):
        mistakes.add(f"classes={'+'.join(classes)}", f'"{name}" is named twice; name each class once')
