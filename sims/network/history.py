"""What happened in a simulated run: the format of its rows.

A history is a list of plain rows (tick, what, peer, ...). Rows that the simulator writes:

    start, life | stop, code | kill, saves that are durable all the same | pause, ticks | full, ticks
    asked, "entry" or "snapshot" or "say", fact     an effect, in the node's order, with what it states (see `Craft`)
    saved, count                                    the next so many of the saves asked for are durable
    said, kind, ...                                 the next of the other effects is carried out
    repeated, kind, receiver                        what was said before is said again, whatever is being saved
    heard, kind, sender | lost, kind, receiver | refused, code, sender | note, what
"""

from __future__ import annotations

from typing import Any

#: (tick, what, peer, ...)
Row = tuple[Any, ...]

#: Rows of one run: a hundred times what sixteen peers need for a hundred rounds; more means that a run does not end.
ROWS_MAX = 20_000_000
