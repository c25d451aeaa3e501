"""A text stream that nobody waits for, such as the standard error of a peer.

A disk may be full behind it, its reader may have ended or stand still, a terminal may have been stopped or hung up.
None of this concerns the peer: text that the stream does not take at once is lost, and the writer learns it.
"""

from __future__ import annotations

import os
import select
import stat
from typing import TextIO

#: Milliseconds that a stream gets to take the next text, if it took the last one: less than a lag that matters.
_PATIENCE_MS = 50


class LossyStream:
    """Writes to a stream without its buffer, which would keep what failed and fail again when the process ends.

    `stream` is None in a process that was started without one.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._raw = getattr(getattr(stream, "buffer", None), "raw", None)  # a stream in memory has none
        self._patience_ms, self._torn = _PATIENCE_MS, False

    @property
    def is_terminal(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def write(self, text: str) -> bool:
        """Write whole lines, by one call where nobody may have to wait for it; return whether the stream took them.

        Others may share the stream.
        """
        try:
            taken = self._taken(text)
        except OSError:
            taken = False
        self._patience_ms = _PATIENCE_MS if taken else 0
        return taken

    def _taken(self, text: str) -> bool:
        if self._stream is None:
            return False
        if self._raw is None:
            self._stream.write(text)
            self._stream.flush()
            return True
        data = f"{chr(10) if self._torn else ''}{text}".encode(self._stream.encoding, "replace")
        count = 0
        while count < len(data) and _ready(self._raw.fileno(), self._patience_ms):
            piece = data[count : count + _piece_bytes(self._raw.fileno(), len(data))]
            taken = self._raw.write(piece) or 0  # None: it would have had to wait
            count += taken
            if taken < len(piece):  # the disk became full
                break
        if count:
            self._torn = count < len(data)  # the next line begins with its own
        return count == len(data)


def _piece_bytes(descriptor: int, whole: int) -> int:
    """Return how many of the bytes a stream that is ready takes by one call without waiting; a file takes all."""
    return whole if stat.S_ISREG(os.fstat(descriptor).st_mode) else getattr(select, "PIPE_BUF", whole)


def _ready(descriptor: int, patience_ms: int) -> bool:
    """Return whether a write would fail or succeed without waiting, now or a moment later."""
    if not hasattr(select, "poll"):  # Windows polls sockets only
        return True
    waiting = select.poll()
    waiting.register(descriptor, select.POLLOUT)
    return bool(waiting.poll(patience_ms))
