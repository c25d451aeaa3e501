"""Reputation of a neighbor: whether its messages are still taken after rejections. Pure, in ticks.

Harmless rejections cost nothing: faults cause them. Ten suspicious ones within a minute pause the edge for a minute,
and each further pause is twice as long, up to an hour. A message that no honest peer can send closes the edge at once;
only a restart of this process, or another key in the roster, opens it again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedpeer.peer.wire.rejections import REJECTIONS

#: Suspicious rejections within `_WINDOW_S` that pause an edge: a bug or a flipped bit causes one or two, an attack
#: many.
SUSPICIOUS_MAX = 10
#: Seconds over which suspicious rejections are counted, and seconds of the first pause.
_WINDOW_S = 60.0
#: Seconds of the longest pause: after it a repaired peer takes part again without help. A neighbor that behaved well
#: for as long begins with short pauses again.
_PAUSE_MAX_S = 3600.0


@dataclass(frozen=True, slots=True)
class Reputation:
    """One neighbor's reputation.

    recent         ticks of its suspicious rejections since the last pause, within the window; at most `SUSPICIOUS_MAX`
    pauses         number of pauses in a row; `paused_until`: tick at which the last one ends
    closed         True if its messages are never taken again
    """

    recent: tuple[int, ...] = ()
    pauses: int = 0
    paused_until: int = 0
    closed: bool = False

    def listens(self, now: int) -> bool:
        """Return whether messages of this neighbor are taken at tick `now`."""
        return not self.closed and now >= self.paused_until

    def after(self, code: str, now: int, tick_s: float) -> Reputation:
        """Return the reputation after a rejection of this code at tick `now`, with ticks of `tick_s` seconds."""
        kind = REJECTIONS[code].kind
        if kind == "x":
            return replace(self, closed=True)
        if kind != "s" or not self.listens(now):
            return self
        window = math.ceil(_WINDOW_S / tick_s)
        recent = (*(tick for tick in self.recent if tick > now - window), now)
        if len(recent) < SUSPICIOUS_MAX:
            return replace(self, recent=recent)
        longest = math.ceil(_PAUSE_MAX_S / tick_s)
        pauses = self.pauses if now < self.paused_until + longest else 0
        return Reputation(pauses=pauses + 1, paused_until=now + min(window << min(pauses, 32), longest))
