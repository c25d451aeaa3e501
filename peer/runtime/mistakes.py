"""Mistakes of our own while a message is handled, as lines of the log: where, and once a place how it got there.

What an exception says may be a stranger's words: like everything in the log they pass `printable`.
"""

from __future__ import annotations

import traceback

from fedpeer.peer.runtime.logs import printable
from fedpeer.peer.state.events import Note

#: Places whose way there is told: more than one program has mistakes; then no more are told, and none is kept.
_PLACES_MAX = 100
#: Lines of a way there, from where it failed, and letters of each.
LINES_MAX, LETTERS_MAX = 30, 200


class ReportedPlaces:
    """Remembers which places have been told."""

    def __init__(self) -> None:
        self._told: set[tuple[str, int]] = set()

    def of(self, error: Exception, sender: str) -> Note:
        """The line for an exception that a message of this sender met."""
        frames = traceback.extract_tb(error.__traceback__)
        file, line = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("?", 0)
        text = f"{type(error).__name__} in {'/'.join(file.split('/')[-3:])}, line {line}, on a message of {sender}"
        fields: dict[str, object] = {"peer": printable(sender)}
        if (file, line) not in self._told and len(self._told) < _PLACES_MAX:
            self._told.add((file, line))
            way = "".join(traceback.format_exception(error, limit=-LINES_MAX)).splitlines()
            fields["traceback"] = [printable(each, LETTERS_MAX) for each in way[-2 * LINES_MAX :]]
        return Note("error", "failed_on_message", f"{text}: {error}; please report it", fields)
