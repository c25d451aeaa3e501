"""Lag of the event loop, measured all the time: a peer's own responsiveness.

A timer is set again and again; how much later than due it is called is the lag of the loop. Training and large sums
belong in threads; if they, or anything else, block the loop, it shows here.
"""

from __future__ import annotations

import asyncio
from collections import deque

#: Seconds between two measurements: callbacks half as long as the lag that matters (100 ms) are seldom missed.
_PERIOD_S = 0.05
#: Measurements kept: a minute of them, enough for a 99th percentile.
_KEPT = 1200


class LoopLag:
    """Measures the lag from `start` to `stop`, on the running event loop."""

    def __init__(self) -> None:
        self._late_s: deque[float] = deque(maxlen=_KEPT)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_PERIOD_S, self._measure, loop, loop.time() + _PERIOD_S)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def p99(self) -> float:
        """Return the 99th percentile of the last minute's lags, in seconds; 0 before the first measurement."""
        return sorted(self._late_s)[int(0.99 * len(self._late_s))] if self._late_s else 0.0

    def _measure(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._late_s.append(max(0.0, loop.time() - due))
        self._timer = loop.call_later(_PERIOD_S, self._measure, loop, loop.time() + _PERIOD_S)
