"""Turns at training for the peers that one `fedpeer start` runs: no more of them train at once than there are cores.

More at once would not be faster, and what a training needs besides the model, its activations above all, would be in
memory once for each peer instead of once for each core. The parent gives the turns (`TrainingTurns`); a peer waits for
its own in its trainer's thread, while its event loop goes on (`TrainingTurn`). A turn is over when the peer says so,
when its process ends, or when it has lasted longer than others usually do: a peer that stands still, or has far more to
train, does not hold up the others.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from statistics import median

from fedpeer.peer.runtime.freed_memory import give_back_freed_memory, resident_bytes

#: A turn that has lasted so many times as long as the median of so many before no longer counts; at least so many
#: seconds, and while none has ended, so many.
LONGER, MEMORY, SECONDS_LEAST, SECONDS_FIRST = 3.0, 64, 0.5, 60.0
#: Memory that a training may leave to the C library for the next one. Small networks leave less, and taking it anew
#: each time would slow them.
KEPT_BYTES_MAX = 16 << 20
#: What a peer says, and the parent's answer.
_ASKS, _ENDS, _GIVEN = b"asks", b"ends", b"given"


@dataclass
class _Seat:
    """One peer's place in the queue.

    since    when its turn began; None: it has none
    counts   whether its turn takes a place
    """

    connection: Connection
    since: float | None = None
    counts: bool = False


class TrainingTurns:
    """Gives turns in the order in which they were asked for.

    places   number of turns at once
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._seats: dict[Connection, _Seat] = {}
        self._queue: deque[_Seat] = deque()
        self._lasted: deque[float] = deque(maxlen=MEMORY)

    def seat(self) -> Connection:
        """Return the end of a new connection that a peer's process asks with; close it here once that has started."""
        ours, theirs = Pipe()
        self._seats[ours] = _Seat(ours)
        return theirs

    @property
    def connections(self) -> list[Connection]:
        """Connections on which peers ask."""
        return list(self._seats)

    def heed(self, connection: Connection, now: float) -> None:
        """Read what a peer says."""
        seat = self._seats[connection]
        try:
            asks = connection.recv_bytes(len(_ASKS)) == _ASKS
        except (EOFError, OSError):  # its process has ended
            del self._seats[connection]
            connection.close()
            return
        if asks:
            self._queue.append(seat)
        elif seat.since is not None:
            self._lasted.append(now - seat.since)
            seat.since = None

    def give(self, now: float) -> float | None:
        """Give the turns that are due; return the seconds after which to try again if nobody says anything."""
        limit = max(SECONDS_LEAST, LONGER * median(self._lasted)) if self._lasted else SECONDS_FIRST
        for seat in self._seats.values():
            seat.counts = seat.counts and seat.since is not None and now - seat.since < limit
        while self._queue and len(self._begun()) < self._places:
            seat = self._queue.popleft()
            seat.since, seat.counts = now, True
            with suppress(OSError):  # its process has ended, and it takes no place
                seat.connection.send_bytes(_GIVEN)
        return min(self._begun()) + limit - now if self._queue else None

    def _begun(self) -> list[float]:
        return [seat.since for seat in self._seats.values() if seat.since is not None and seat.counts]


class TrainingTurn(AbstractContextManager[None]):
    """A peer's turn: within it, this process trains. What a large training has freed goes back to the system after it.

    connection   the end that `TrainingTurns.seat` returned
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._kept = connection, 0

    def __enter__(self) -> None:
        self._kept = self._kept or resident_bytes()
        with suppress(EOFError, OSError):  # the parent has ended, and this process is about to
            self._connection.send_bytes(_ASKS)
            self._connection.recv_bytes(len(_GIVEN))

    def __exit__(self, *exception: object) -> None:
        if resident_bytes() - self._kept > KEPT_BYTES_MAX:
            give_back_freed_memory()
            self._kept = resident_bytes()
        with suppress(OSError):
            self._connection.send_bytes(_ENDS)
