"""Retry timer for messages that may be large and may be lost: an update, a request for a model."""

from __future__ import annotations

#: Ticks before an update or a request for a model is repeated, doubled each time up to the second number. Both may be
#: large, and an answer takes two ways and the work between them.
AGAIN_MIN, AGAIN_MAX = 16, 400


class RetryTimer:
    """Timer of one message that is repeated until it is answered."""

    def __init__(self) -> None:
        self._key: object = None
        self._wait = self._at = 0
        self._done = False

    def due(self, key: object, now: int) -> bool:
        """Return whether to send the message of this key now: it is new, or its last repeat was some time ago."""
        if key != self._key:
            self._key, self._wait, self._at, self._done = key, AGAIN_MIN, now, False
        if self._done or now < self._at:
            return False
        self._at, self._wait = now + self._wait, min(2 * self._wait, AGAIN_MAX)
        return True

    def answered(self, key: object) -> None:
        """Stop repeating the message of this key."""
        self._done = self._done or key == self._key
