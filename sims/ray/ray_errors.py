"""What Ray's errors say, in words for a user."""

from __future__ import annotations

import re

from ray.exceptions import OutOfMemoryError

#: Seconds after which somebody who waits for processes of a cluster wants to know what for.
PATIENCE_SECONDS = 15.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def error_text(error: Exception) -> str:
    return _COLOURS.sub("", str(error)).strip()


def error_reason(error: Exception) -> str:
    """Why a process of the cluster died, as short as it can be said."""
    text = " ".join(error_text(error).split())
    if isinstance(error, OutOfMemoryError):
        return "its machine had no memory left"
    if "creation task" in text:
        return text[:500]
    return "its machine is lost" if "node has died" in text or "node is dead" in text else "its process ended"
