"""A file of lines that a peer appends to while it runs, such as its log: none of them is spoiled by a line cut short.

A full disk takes a part of a line, and a crash may leave one. The first is removed at once; the second is ended before
the next line, and readers of the file skip it.
"""

from __future__ import annotations

import io
import os
from contextlib import suppress
from pathlib import Path


class LineFile:
    """Appends lines, each by one write; opened when the first one comes.

    bytes_max   beyond it the file gets the further ending `.1` and a new one begins; None: it has no bound
    """

    def __init__(self, path: Path, bytes_max: int | None = None) -> None:
        self.path, self.bytes_max = path, bytes_max
        self._file: io.FileIO | None = None

    def append(self, line: bytes) -> bool:
        """Append this line, or several; return whether the file has them now, which a full disk prevents."""
        try:
            return self._append(line)
        except OSError:
            self.close()
            return False

    def close(self) -> None:
        """Close the file, until another line comes."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # what a disk reports this late concerns lines that are lost anyway
                file.close()

    def _append(self, line: bytes) -> bool:
        file = self._opened()
        if self.bytes_max is not None and file.tell() + len(line) > self.bytes_max:
            self.close()
            os.replace(self.path, self.path.with_name(f"{self.path.name}.1"))
            file = self._opened()
        end = file.tell()
        written = file.write(line)
        if written < len(line):
            file.truncate(end)
            file.seek(end)
        return written == len(line)

    def _opened(self) -> io.FileIO:
        if self._file is None:
            self._file = io.FileIO(self.path, "a+")
            if self._is_torn(self._file):
                self._file.write(b"\n")
        return self._file

    def _is_torn(self, file: io.FileIO) -> bool:
        if not file.tell():
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
