"""Every limit of the peer port and of the links to others, each with its reason, and how they are kept.

`Limits` are numbers alone; tests hand in smaller ones. `Allowance` keeps a rate, `pace` keeps a body from coming, or
going, slower than the floor. Sizes of messages are not here: they follow from the group table (`peer/wire/codec.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

#: Bytes of a body handled at a time. Measured: with less, calls cost more than copies; with more, a chunk leaves the
#: processor's cache before it is copied on, and TLS waits for the whole of it.
CHUNK_BYTES = 256 * 1024
#: Bytes that aiohttp reads ahead of us before it pauses a connection; more was not faster.
READ_AHEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What strangers and neighbours may take of us, and how long we wait for them. Seconds, bytes, counts."""

    #: Open connections in all. A roster of 60 with two each, of more `among`; each may hold 0.3 MB that was read ahead.
    #: Only members have any: where all are taken, whoever has most gives one to who has fewer.
    connections: int = 128
    #: Of one peer: six in use and two that a cut left behind; beyond that the oldest is closed.
    connections_per_peer: int = 8
    #: Connections whose TLS handshake is under way: from addresses of members, and from all others, which have places
    #: of their own, so that strangers fill theirs alone; and of one address. A stranger can fill 0.8 MB with each, and
    #: what was allocated for many at once is not all given back (measured: 61 MiB under the flood of the tests with 8,
    #: 122 with 16); an honest handshake is over after 8 ms, and sixteen peers of one machine have met after 12 s all
    #: the same. Where all places are taken, the oldest handshake of the address that has most gives way once it has
    #: lasted longer than an honest one does on a machine with too much to do.
    handshakes: int = 32
    handshakes_of_strangers: int = 16
    handshakes_per_address: int = 8
    handshake_kept_s: float = 2.0
    handshake_s: float = 10.0
    #: Handshakes that strangers may begin a second, all of them and from one address: each costs us some milliseconds.
    strangers_per_second: float = 32.0
    strangers_per_second_of_address: float = 8.0
    #: Who was put out and has not heard of it may say one thing, within so many seconds, to be told; so many at once,
    #: one of each.
    farewells_at_once: int = 4
    farewell_s: float = 5.0
    #: Until the other side says that it has heard that TLS ends here; who never does holds a file handle for so long.
    goodbye_s: float = 1.0
    #: A connection that says nothing is closed; neighbours speak every few ticks.
    idle_s: float = 75.0

    #: Requests of one peer at once: three small and three bulk, and one whose connection broke before we saw it.
    requests_at_once: int = 7
    #: Requests a second, of one peer and of all; an aiohttp server answers at most some 10,000 on one core.
    requests_per_second: float = 1_000.0
    requests_per_second_of_all: float = 5_000.0
    #: Rosters a second for those who are put out and do not know it; each may have 1 MB, and each is the last.
    farewells_per_second: float = 1.0
    #: Messages of one peer delivered and not yet dealt with, beside transfers, which have buffers of their own. Small
    #: ones: a burst of acknowledgements of 32 groups, and pings.
    small_waiting: int = 64
    #: Others with a long tail that is not kept (a roster, a contract, a value), of each kind or group.
    large_waiting: int = 1
    #: Ballots of one group with signatures: a coordinator says a lead and a commit in one go, and again a tick later.
    ballots_waiting: int = 4

    #: A body may not be slower than this, averaged since its beginning, nor stand still, for `floor_s` longer than it
    #: takes at this rate: 128 kbit/s, less than any link on which a model could be learned.
    floor_bytes_per_s: float = 16 * 1024
    floor_s: float = 10.0

    #: Connecting, with its handshake; a machine that is off answers nothing at all.
    connect_s: float = 5.0
    #: Until the other side answers a message that has left; it answers at once, before it saves.
    answer_s: float = 10.0
    #: Rest after a failure to connect, doubling up to the second: a killed peer is back within 200 ticks (5 s).
    backoff_s: float = 0.05
    backoff_max_s: float = 1.0
    #: Messages to one neighbour waiting to leave, small and bulk each; the oldest gives way, and the core repeats it.
    queue: int = 64
    #: Small messages that have waited for longer are news no more: a ping counts as unanswered long before.
    stale_s: float = 2.0
    #: Messages of one kind to one neighbour under way at once, on a connection each. Another one is used only where
    #: none has moved for `stalled_s`: an answer takes milliseconds, and a packet that was lost is sent again after 200.
    #: Where a third of all packets is lost, every other answer is late, and three connections seldom stand together.
    at_once: int = 3
    stalled_s: float = 0.1

    @classmethod
    def among(cls, peers: int) -> Limits:
        """In a roster of so many. Each of the others pings us, and is pinged, more often than an idle connection is
        closed, so each keeps one open; and has another for bulk as a neighbour, or for small ones while some are late.
        Who finds no room is suspected: strangers never get that far, so room for all of the roster costs nothing else.
        Two for each and some more: where all are taken somebody has three, and everybody gets two.
        """
        few = cls()
        return replace(few, connections=max(few.connections, 2 * peers + few.connections_per_peer))


class Allowance:
    """So many a second, with a burst of one second's worth; time comes in, in seconds."""

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second, self._left, self._seen = per_second, per_second, now

    def take(self, now: float) -> bool:
        """Whether one more is within the rate; if so it is counted."""
        self._left = min(self._per_second, self._left + (now - self._seen) * self._per_second)
        self._seen = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Allowances:
    """The same for each of many names, of which the latest are remembered; a name that was forgotten begins anew."""

    def __init__(self, per_second: float, most: int = 1024) -> None:
        self._per_second, self._most = per_second, most
        self._of: dict[str, Allowance] = {}

    def take(self, name: str, now: float) -> bool:
        """Whether this name may have one more."""
        allowance = self._of.pop(name, None) or Allowance(self._per_second, now)
        self._of[name] = allowance
        if len(self._of) > self._most:
            del self._of[next(iter(self._of))]
        return allowance.take(now)


@asynccontextmanager
async def pace(limits: Limits, slack_s: float = 0.0) -> AsyncIterator[Callable[[int], None]]:
    """A time limit that grows with what has moved: raises TimeoutError inside when the body falls below the floor.

    Gives a function to call with the number of bytes that moved. `slack_s`: so much longer altogether, where what
    has moved may still be on its way.
    """
    loop = asyncio.get_running_loop()
    began, moved, patience = loop.time(), 0, limits.floor_s + slack_s
    async with asyncio.timeout(patience) as limit:

        def note(count: int) -> None:
            nonlocal moved
            moved += count
            limit.reschedule(min(loop.time(), began + moved / limits.floor_bytes_per_s) + patience)

        yield note
