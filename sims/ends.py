"""Descriptions of how a process ended."""

from __future__ import annotations

import signal


def how_ended(code: int) -> str:
    """Describe an exit code; a negative one is minus the number of the signal that ended the process.

    >>> how_ended(1), how_ended(-9)
    ('exit code 1', 'signal 9 (SIGKILL)')
    """
    if code >= 0:
        return f"exit code {code}"
    known = {each.value: f" ({each.name})" for each in signal.Signals}
    return f"signal {-code}{known.get(-code, '')}"
