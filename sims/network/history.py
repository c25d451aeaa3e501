"""The history of a simulated run: the format of its rows.

A history is a list of plain rows (tick, what, peer, ...). The simulator writes these:

    start                                           a process has started
    stop, code                                      a process has stopped by itself
    kill, count                                     a process was killed; so many saves under way survived
    pause, ticks | full, ticks                      a process is paused | a disk takes no saves
    asked, "entry" or "snapshot" or "say", fact     an effect, in the node's order, with its fact (see `Driver`)
    saved, count                                    the next so many saves asked for are durable
    said, kind, ...                                 the next of the other effects is carried out
    repeated, kind, receiver, size                  an earlier message is sent again, without waiting for saves
    heard, kind, sender                             a message was received
    lost, receiver                                  a message was lost
    refused, code, sender                           a message was rejected, or a save failed (no sender)
    note, what                                      a node's or a disk's note
"""

from __future__ import annotations

from typing import Any

#: (tick, what, peer, ...)
Row = tuple[Any, ...]

#: Most rows of one run: a hundred times what sixteen peers need for a hundred rounds; more means that it does not end.
ROWS_MAX = 20_000_000
