"""Messages for the user from Ray's errors."""

from __future__ import annotations

import re

from ray.exceptions import OutOfMemoryError

#: Seconds of waiting for processes of a cluster after which the user is told the reason.
PATIENCE_SECONDS = 15.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def error_text(error: Exception) -> str:
    return _COLOURS.sub("", str(error)).strip()


def error_reason(error: Exception) -> str:
    """Return in few words why a process of the cluster died."""
    text = " ".join(error_text(error).split())
    if isinstance(error, OutOfMemoryError):
        return "its machine had no memory left"
    if "creation task" in text:
        return text[:500]
    return "its machine is lost" if "node has died" in text or "node is dead" in text else "its process ended"
