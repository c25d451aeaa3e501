"""One `fedpeer start` as a subprocess: which of its peers have ended and how, and its last output.

It is started with `--attached`: its standard input is a pipe that closes when this process ends in any way, and then it
and all its peers pause. It has a session of its own, so that only this process receives Ctrl-C from a terminal.
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
from typing import Any

#: Last lines of output that are kept for an error message.
_LINES_KEPT = 40
#: Seconds within which a peer pauses when asked; a real one guarantees five.
_PAUSE_S = 15.0


class ProcessPool:
    """The peers that one `fedpeer start` runs."""

    def __init__(self, files: Mapping[str, Path], threads: int) -> None:
        """
        Args:
            files: each peer's own file, by id.
            threads: threads of torch in each peer's process.
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
        self._reader = threading.Thread(target=self._read, name="fedpeer-output", daemon=True)
        self._reader.start()

    @property
    def words(self) -> str:
        """The command's last lines of output, without those about the ends of its peers."""
        return "\n".join(self._lines)

    def ended(self) -> list[tuple[str, int]]:
        """Return the peers that have ended since the last call: id, and exit code or minus the number of the signal."""
        code = self._process.poll()
        if code is not None:
            self._reader.join(_PAUSE_S)
        found = []
        with suppress(Empty):
            while True:
                found.append(self._ended.get_nowait())
        self._left -= {peer for peer, _ in found}
        if code is not None:  # a single peer is this process itself; with several, this process was killed
            found += [(peer, code) for peer in sorted(self._left)]
            self._left.clear()
        return found

    def pause(self) -> None:
        """Ask the peers to pause; `wait` until they have."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until the command has ended; kill it if it takes too long."""
        assert self._process.stdin is not None, "it was asked for"
        try:
            self._process.wait(_PAUSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its peers notice that it has ended, and pause
            self._process.wait()
        self._process.stdin.close()
        self._reader.join(_PAUSE_S)

    def _read(self) -> None:
        assert self._process.stderr is not None, "it was asked for"
        with self._process.stderr as lines:
            for line in lines:
                if (end := _end(line)) is not None:
                    self._ended.put(end)
                elif _logged(line).get("level") != "warning":  # the peers' logs have these
                    self._lines.append(line.rstrip())


def _end(line: str) -> tuple[str, int] | None:
    """Return the peer and its exit code, if the line reports an end."""
    event = _logged(line)
    return (str(event["peer"]), int(event["fields"]["code"])) if event.get("what") == "ended" else None


def _logged(line: str) -> dict[str, Any]:
    """Return the line of a peer's log; empty: it is something else."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
