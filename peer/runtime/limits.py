"""Limits of the peer port and of the links to other peers, each with its reason, and their enforcement.

`Limits` are numbers alone; tests pass smaller ones. `Allowance` enforces a rate, `pace` a minimum speed of a body that
is received or sent. Limits on the size of messages follow from the group table (`peer/wire/codec.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

#: Bytes of a body handled at once. Measured: with less, calls cost more than copies; with more, a chunk leaves the
#: processor's cache before it is copied on, and TLS waits for the whole of it.
CHUNK_BYTES = 256 * 1024
#: Bytes that aiohttp reads ahead of us before it pauses a connection; more was not faster.
READ_AHEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resources that members and strangers may use, and how long we wait for them: seconds, bytes, counts."""

    #: Open connections in all: two for each of a roster of 60; `among` allows more. Each may hold 0.3 MB that was read
    #: ahead. Only members have any: when all are in use, the member with most loses one to a member with fewer.
    connections: int = 128
    #: Connections of one peer: six in use and two that a cut left behind; beyond that the oldest is closed.
    connections_per_peer: int = 8
    #: TLS handshakes in progress: from members' addresses, from all others, and from one address. Others have their own
    #: slots, so that strangers can fill only these. A stranger can fill 0.8 MB with each; an honest handshake takes 8
    #: ms, and sixteen peers of one machine have met after 12 s with 16 for one address, too. When all slots are taken,
    #: the oldest handshake of the address that has most gives way once it has lasted longer (`handshake_kept_s`) than
    #: an honest one does on an overloaded machine.
    handshakes: int = 32
    handshakes_of_strangers: int = 16
    handshakes_per_address: int = 8
    handshake_kept_s: float = 2.0
    handshake_s: float = 10.0
    #: Handshakes that strangers may begin per second, in all and from one address: each costs us some milliseconds.
    strangers_per_second: float = 32.0
    strangers_per_second_of_address: float = 8.0
    #: A revoked peer that does not know it yet may send one request, within so many seconds, and is answered with the
    #: roster; so many of them at once, one connection each.
    farewells_at_once: int = 4
    farewell_s: float = 5.0
    #: Seconds to wait for the other side to confirm the end of TLS; one that never does occupies a handle for so long.
    goodbye_s: float = 1.0
    #: Seconds after which a silent connection is closed; neighbors send every few ticks.
    idle_s: float = 75.0

    #: Requests of one peer at once: three small, three bulk, and one whose broken connection we have not noticed yet.
    requests_at_once: int = 7
    #: Requests per second, of one peer and of all; an aiohttp server answers at most some 10,000 on one core.
    requests_per_second: float = 1_000.0
    requests_per_second_of_all: float = 5_000.0
    #: Rosters sent per second to revoked peers that do not know it yet; each may have 1 MB, and each peer gets one.
    farewells_per_second: float = 1.0
    #: Messages of one peer that are delivered and not processed yet, besides transfers, which have their own buffers.
    #: Small ones: a burst of acknowledgements of 32 groups, and pings.
    small_waiting: int = 64
    #: Messages with a long tail that is not kept (a roster, a contract, a value), of each kind or group.
    large_waiting: int = 1
    #: Consensus messages of one group with signatures: a coordinator sends a heartbeat and a commit at once, and again
    #: a tick later.
    signed_waiting: int = 4

    #: Connections that go through this peer, or through another one to it, of one peer and of all; a carrier may keep a
    #: megabyte for each, none of which has to be saved. Then the number of those that one peer may begin per second.
    streams_per_peer: int = 32
    streams: int = 64
    streams_per_second: float = 8.0

    #: Lowest rate of a body, averaged since its beginning; it may fall behind, or stand still, for `floor_s`. This is
    #: 128 kbit/s, less than any link on which a model could be learned.
    floor_bytes_per_s: float = 16 * 1024
    floor_s: float = 10.0

    #: Seconds to connect, with the handshake; a machine that is off does not answer at all.
    connect_s: float = 5.0
    #: Seconds until the other side answers a message that has left; it answers at once, before it saves.
    answer_s: float = 10.0
    #: Pause after a failure to connect, doubling up to the maximum: a killed peer is back within 200 ticks (5 s).
    backoff_s: float = 0.05
    backoff_max_s: float = 1.0
    #: Messages queued for one neighbor, small and bulk each; the oldest is dropped, and the node repeats it.
    queue: int = 64
    #: Seconds after which a queued small message is dropped as outdated: a ping counts as unanswered long before.
    stale_s: float = 2.0
    #: Messages of one kind sent to one neighbor at once, on a connection each. Another connection is used only if none
    #: has moved for `stalled_s`: an answer takes milliseconds, and a lost packet is sent again after 200. If a third of
    #: all packets is lost, every other answer is late, and three connections are seldom stuck together.
    at_once: int = 3
    stalled_s: float = 0.1

    @classmethod
    def among(cls, peers: int) -> Limits:
        """Return the limits in a roster of `peers`.

        Each peer pings us, and is pinged, more often than idle connections are closed, so each keeps one open. A
        neighbor has another one for bulk, or for small messages while answers are late. A peer that finds no room is
        suspected. Strangers never get that far, so room for the whole roster costs nothing else. There are two for each
        peer and some more, so when all are in use some peer has three and loses one; so every peer gets two.
        """
        few = cls()
        return replace(few, connections=max(few.connections, 2 * peers + few.connections_per_peer))


class Allowance:
    """A rate limit per second, with a burst of one second's worth; the caller passes the time, in seconds."""

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second, self._left, self._seen = per_second, per_second, now

    def take(self, now: float) -> bool:
        """Return whether one more is within the rate; if so, count it."""
        self._left = min(self._per_second, self._left + (now - self._seen) * self._per_second)
        self._seen = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Allowances:
    """A rate limit for each name; only the `most` recent names are remembered, and a forgotten one starts anew."""

    def __init__(self, per_second: float, most: int = 1024) -> None:
        self._per_second, self._most = per_second, most
        self._of: dict[str, Allowance] = {}

    def take(self, name: str, now: float) -> bool:
        """Return whether one more is within this name's rate; if so, count it."""
        allowance = self._of.pop(name, None) or Allowance(self._per_second, now)
        self._of[name] = allowance
        if len(self._of) > self._most:
            del self._of[next(iter(self._of))]
        return allowance.take(now)


@asynccontextmanager
async def pace(limits: Limits, slack_s: float = 0.0) -> AsyncIterator[Callable[[int], None]]:
    """Limit the time of a body by the bytes that have moved: raise TimeoutError inside when it is below the floor rate.

    Yields a function to call with the number of bytes that moved. `slack_s` are extra seconds, because bytes that have
    left may still be on their way. The error may come a tenth late, since moving the limit at each call would cost as
    much as a short body.
    """
    loop = asyncio.get_running_loop()
    began, moved, patience = loop.time(), 0, limits.floor_s + slack_s
    spare = patience / 10
    async with asyncio.timeout_at(began + patience + spare) as limit:

        def note(count: int) -> None:
            nonlocal moved
            moved += count
            due, until = min(loop.time(), began + moved / limits.floor_bytes_per_s) + patience, limit.when()
            if until is not None and due > until:
                limit.reschedule(due + spare)

        yield note
