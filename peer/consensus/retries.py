"""When to ask again for what may be large and may be lost: an update that is offered, a model that is wanted."""

from __future__ import annotations

#: Ticks before an update or a request for a model is said again, doubled each time up to the second number. Both may
#: be large, and an answer takes two ways and what lies between.
AGAIN_MIN, AGAIN_MAX = 16, 400


class RetryTimer:
    """Something that is said again until it is answered."""

    def __init__(self) -> None:
        self._key: object = None
        self._wait = self._at = 0
        self._done = False

    def due(self, key: object, now: int) -> bool:
        """Whether to say it now: it is new, or was said some time ago."""
        if key != self._key:
            self._key, self._wait, self._at, self._done = key, AGAIN_MIN, now, False
        if self._done or now < self._at:
            return False
        self._at, self._wait = now + self._wait, min(2 * self._wait, AGAIN_MAX)
        return True

    def answered(self, key: object) -> None:
        self._done = self._done or key == self._key
