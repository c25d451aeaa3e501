"""Log lines for bugs of ours that end nothing: the place, and once per place its traceback.

The text of an exception may contain a stranger's words; like everything in the log it passes `printable`.
"""

from __future__ import annotations

import traceback

from fedpeer.peer.runtime.logs import printable
from fedpeer.peer.state.events import Note

#: Most places whose traceback is logged: more than a program has bugs. After that none is logged or remembered.
_PLACES_MAX = 100
#: Most lines of a traceback, from where it failed, and most characters of each.
LINES_MAX, LETTERS_MAX = 30, 200


class ReportedPlaces:
    """The places in the code whose traceback was logged."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, int]] = set()

    def of(self, error: Exception, sender: str) -> Note:
        """Return the note for an exception while a message of this sender was handled."""
        return self._note("failed_on_message", error, f", on a message from {sender}", {"peer": printable(sender)})

    def beside(self, error: Exception) -> Note:
        """Return the note for an exception in a task or callback of the event loop for which nobody waits."""
        return self._note("failed_beside", error, "", {})

    def _note(self, what: str, error: Exception, when: str, fields: dict[str, object]) -> Note:
        frames = traceback.extract_tb(error.__traceback__)
        file, line = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("?", 0)
        if (file, line) not in self._logged and len(self._logged) < _PLACES_MAX:
            self._logged.add((file, line))
            way = "".join(traceback.format_exception(error, limit=-LINES_MAX)).splitlines()
            fields["traceback"] = [printable(each, LETTERS_MAX) for each in way[-2 * LINES_MAX :]]
        place = f"{type(error).__name__} in {'/'.join(file.split('/')[-3:])}, line {line}{when}"
        return Note("error", what, f"{place}: {error}; please report it", fields)
