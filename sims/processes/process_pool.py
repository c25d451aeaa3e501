"""One `fedpeer start` as a subprocess: which of its peers have ended, how, and what it said last.

It is started with `--attached`: its standard input is a pipe that ends when this process ends, however it ends, and
then it and all its peers pause. It has a session of its own, so that Ctrl-C on a terminal is heard here alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

#: Lines of what it said that are kept for an error's words.
_LINES_KEPT = 40
#: Seconds in which a peer that is told to pause is gone; a real one promises five.
_PAUSE_S = 15.0


class ProcessPool:
    """The peers that one command runs."""

    def __init__(self, files: Mapping[str, Path], threads: int) -> None:
        """
        Args:
            files: each peer's own file, by id.
            threads: of torch, in each of their processes.
        """
        self._left = set(files)
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._ended: SimpleQueue[tuple[str, int]] = SimpleQueue()
        configs = [word for file in files.values() for word in ("--config", str(file))]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedpeer", "start", *configs, "--quiet", "--attached"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="fedpeer-crew", daemon=True)
        self._reader.start()

    @property
    def words(self) -> str:
        """What it said last, but for the ends of its peers."""
        return "\n".join(self._lines)

    def ended(self) -> list[tuple[str, int]]:
        """Peers that have ended since the last call: id, and exit code or minus the number of the signal."""
        code = self._process.poll()
        if code is not None:
            self._reader.join(_PAUSE_S)
        found = []
        with suppress(Empty):
            while True:
                found.append(self._ended.get_nowait())
        self._left -= {peer for peer, _ in found}
        if code is not None:  # one alone is this process itself; of several this one was killed
            found += [(peer, code) for peer in sorted(self._left)]
            self._left.clear()
        return found

    def pause(self) -> None:
        """Tell it to pause; `wait` until it has."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Until it has ended, by force if need be."""
        assert self._process.stdin is not None, "it was asked for"
        try:
            self._process.wait(_PAUSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its peers notice that it is gone
            self._process.wait()
        self._process.stdin.close()
        self._reader.join(_PAUSE_S)

    def _read(self) -> None:
        assert self._process.stderr is not None, "it was asked for"
        with self._process.stderr as lines:
            for line in lines:
                if (end := _end(line)) is not None:
                    self._ended.put(end)
                else:
                    self._lines.append(line.rstrip())


def _end(line: str) -> tuple[str, int] | None:
    """Who has ended, if that is what the line says."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    if not isinstance(said, dict) or said.get("what") != "ended":
        return None
    return str(said["peer"]), int(said["fields"]["code"])
