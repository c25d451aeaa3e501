"""Streams inside a connection of two peers: the bytes of a connection between one of them and a third peer.

Either side begins a stream, and its bytes go both ways in records of the connection (`two_way.py`):

    CARRY    | peer    the receiver is asked to carry this stream to a peer
    CARRIED  | peer    the receiver gets a stream that comes from a peer
    BYTES    | bytes   the next bytes
    ROOM     | u32     records of this cost have been passed on, so that as many more may follow
    END      | u8      no more bytes in either direction, and why: a place in `ENDINGS`

Records of at most `WINDOW_BYTES` are on their way in each direction, so a slow reader holds up only its own stream, and
the bytes that others have to keep for it are bounded. Numbers are even for streams begun by the side that opened the
connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from struct import Struct
from typing import Any

#: Cost of the records of a stream that have been sent and not passed on: a hop of 100 ms carries 40 Mbit/s with it.
WINDOW_BYTES = 512 * 1024
#: Cost of a record besides its bytes, since it takes memory, however short it is.
_RECORD_BYTES = 512
#: Cost of records passed on after which a ROOM record is sent.
_ROOM_BYTES = WINDOW_BYTES // 2
#: Bytes of a peer's id that are read.
_PEER_BYTES_MAX = 256
#: Reasons for an end, worded for the side that receives them. Later releases may add some.
NO_MEMBER, CARRIES_NOTHING, NO_CONNECTION = "it knows no such peer", "it carries nothing", "it has no connection to it"
TOO_MANY, TOO_OFTEN = "it carries too many connections", "it was asked too often"
ENDINGS = ("", NO_MEMBER, CARRIES_NOTHING, NO_CONNECTION, TOO_MANY, TOO_OFTEN)

CARRY, CARRIED, BYTES, ROOM, END = KINDS = range(5, 10)
_COUNT = Struct("<I")


class LinkLostError(Exception):
    """The connection ended before the answer came; it is not known whether the message arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPort:
    """Functions of a connection that its streams call.

    write   writes a record: kind, number, bytes; raises LinkLostError
    spawn   runs something beside the connection, as one of a bounded number
    begun   takes a stream that the other side begins: whether it is to be carried, and the peer named; returns why it
            is refused, or nothing
    stray   counts a record of a stream that has ended here, which the other side may not know yet; returns whether so
            few come that this can be normal
    """

    write: Callable[[int, int, bytes | memoryview], Awaitable[None]]
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    begun: Callable[[Stream, bool, str], str]
    stray: Callable[[], bool]


class Stream:
    """One stream, with one reader and one writer. `why` is the other side's reason for its end."""

    def __init__(self, number: int, port: StreamPort, forget: Callable[[int], None]) -> None:
        self.number, self.why = number, ""
        self._port, self._forget = port, forget
        self._arrived: deque[memoryview] = deque()
        self._held = self._owed = 0
        self._room = WINDOW_BYTES
        self._over = False
        self._readable, self._writable = asyncio.Event(), asyncio.Event()

    async def read(self) -> memoryview:
        """Wait for the next bytes; none: the stream has ended. What was read before counts as passed on."""
        if self._owed >= _ROOM_BYTES and not self._over:
            owed, self._owed = self._owed, 0
            self._held -= owed
            await self._port.write(ROOM, self.number, _COUNT.pack(owed))
        while not self._arrived and not self._over:
            self._readable.clear()
            await self._readable.wait()
        if not self._arrived:
            return memoryview(b"")
        piece = self._arrived.popleft()
        self._owed += _cost(piece)
        return piece

    async def write(self, piece: bytes | memoryview) -> None:
        """Send some bytes, at most a piece, as soon as there is room; they are dropped if the stream has ended."""
        while self._room < _cost(piece) and not self._over:
            self._writable.clear()
            await self._writable.wait()
        if not self._over:
            self._room -= _cost(piece)
            await self._port.write(BYTES, self.number, piece)

    async def end(self, why: str = "") -> None:
        """End the stream for one of the `ENDINGS`, unless it has ended."""
        if not self._over:
            self.over()
            self._forget(self.number)
            with suppress(LinkLostError):
                await self._port.write(END, self.number, bytes([ENDINGS.index(why)]))

    def over(self, why: str = "") -> None:
        """Let reader and writer know that the stream has ended; what has arrived can still be read."""
        self._over, self.why = True, why
        self._readable.set()
        self._writable.set()

    def take(self, kind: int, rest: memoryview) -> str:
        """Take BYTES or ROOM; return why the other side may not send it, or nothing."""
        if kind == BYTES:
            self._held += _cost(rest)
            self._arrived.append(rest)
            self._readable.set()
            return "more bytes than there was room for" if self._held > WINDOW_BYTES else ""
        self._room += _COUNT.unpack(rest)[0] if len(rest) == _COUNT.size else WINDOW_BYTES
        self._writable.set()
        return "room for more bytes than were sent" if self._room > WINDOW_BYTES else ""


class Streams:
    """All streams of one connection, which this side has `opened` or not."""

    def __init__(self, port: StreamPort, *, opened: bool) -> None:
        self._port, self._parity = port, 0 if opened else 1
        self._numbers = count(self._parity, 2)
        self._open: dict[int, Stream] = {}

    async def begin(self, kind: int, peer: str) -> Stream:
        """Begin a stream to (`CARRY`) or from (`CARRIED`) a peer. Raises LinkLostError."""
        stream = self._new(next(self._numbers))
        await self._port.write(kind, stream.number, peer.encode())
        return stream

    def record(self, kind: int, number: int, rest: memoryview) -> str:
        """Take a record; return why the connection cannot go on, or nothing."""
        if kind in (CARRY, CARRIED):
            if number % 2 == self._parity or number in self._open or len(rest) > _PEER_BYTES_MAX:
                return "a stream that it cannot begin"
            stream = self._new(number)
            if why := self._port.begun(stream, kind == CARRY, bytes(rest).decode(errors="replace")):
                self._port.spawn(stream.end(why))
            return ""
        if number not in self._open:
            return "" if self._port.stray() else "bytes of no stream"
        if kind != END:
            return self._open[number].take(kind, rest)
        place = rest[0] if len(rest) else 0
        self._open.pop(number).over(ENDINGS[place] if place < len(ENDINGS) else "it has a reason of its own")
        return ""

    def end(self) -> None:
        """End all streams, since the connection ends."""
        for stream in self._open.values():
            stream.over()
        self._open.clear()

    def _new(self, number: int) -> Stream:
        stream = self._open[number] = Stream(number, self._port, self._forget)
        return stream

    def _forget(self, number: int) -> None:
        self._open.pop(number, None)


def _cost(piece: bytes | memoryview) -> int:
    return len(piece) + _RECORD_BYTES
