"""A connection that carries messages both ways between two peers: a WebSocket, whichever of them opened it.

A record is one binary message of the WebSocket, all numbers little-endian and unsigned:

    kind u8 | number u32 | length u64 (BEGIN only) | bytes

BEGIN starts a message of the sender, by its number and whole length; MORE has further bytes of it; ANSWER is the answer
to a message of the receiver: nothing if it was taken, else the frame of a rejection, in several records if it is long
(PART, and at the end ANSWER). Long messages leave in pieces of `PIECE_BYTES`, so that a ping waits for at most one
piece. Records of several messages may alternate. Records of further kinds belong to streams, which are connections of
third peers (`streams.py`).

`admission.py` decides who receives a message and what is answered.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from struct import Struct
from typing import Any, TypeAlias

from aiohttp import ClientWebSocketResponse, WSMsgType, web

from fedpeer.peer.runtime.limits import Allowance, Limits
from fedpeer.peer.runtime.streams import CARRIES_NOTHING, KINDS, LinkLostError, Stream, StreamPort, Streams
from fedpeer.peer.wire import codec

#: Waits for the next bytes of a message; nothing: the connection has ended.
Chunks: TypeAlias = Callable[[], Awaitable[bytes | memoryview]]
#: Takes a message, by its length and bytes, and returns what to answer.
Receive: TypeAlias = Callable[[int, Chunks], Awaitable[bytes]]
#: Takes a stream that the other side begins, whether it is to be carried, and the named peer; returns why it refuses.
_Begun: TypeAlias = Callable[["TwoWayLink", Stream, bool, str], str]
Socket: TypeAlias = web.WebSocketResponse | ClientWebSocketResponse

#: Bytes of a piece: some 10 ms on a link of 100 Mbit/s. With half as many each side needs a tenth more time.
PIECE_BYTES = 128 * 1024
#: Bytes that the kernel takes before the other side takes them; a ping has to wait for these bytes.
_UNSENT_BYTES = 128 * 1024
#: Seconds between two signs of life, less than the shortest time after which a NAT forgets an idle connection.
HEARTBEAT_S = 20.0

#: Family of the sockets of connections inside others, where the system has it.
_INSIDE = getattr(socket, "AF_UNIX", None)

#: Milliseconds without an acknowledgement by the other machine after which a connection counts as stalled.
_STALLED_MS = 100
#: The beginning of Linux's `struct tcp_info`: packets that are not acknowledged, packets that were sent again and are
#: not acknowledged, milliseconds since data left, and milliseconds since an acknowledgement came.
_TCP_INFO = Struct("<24xI8xI4xI8xI")

#: Most messages that are being read and answers that wait until the other side reads; more than a peer has under way.
_UNFINISHED_MAX = 256

_BEGIN, _MORE, _ANSWER, _PART = 1, 2, 3, 4
_HEAD, _LENGTH = Struct("<BI"), Struct("<Q")
#: Bytes from which on a record is too long.
RECORD_BYTES_MAX = _HEAD.size + _LENGTH.size + PIECE_BYTES + 1


def refuse_stream(link: TwoWayLink, stream: Stream, carry: bool, peer: str) -> str:
    """Refuse a stream."""
    return CARRIES_NOTHING


class TwoWayLink:
    """One open connection. `run` reads until it ends.

    opened    whether this peer opened it
    since     time at which it was opened
    receive   takes the other side's messages
    carried   whether it goes through another peer
    strange   receives why the connection is closed if the other side breaks the record format
    streams   connections of third peers inside this one
    """

    def __init__(
        self,
        socket: Socket,
        receive: Receive,
        strange: Callable[[str], None],
        limits: Limits,
        *,
        opened: bool,
        begun: _Begun = refuse_stream,
    ) -> None:
        self.opened = opened
        self._socket, self._receive, self._strange = socket, receive, strange
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._parts: dict[int, bytes] = {}
        self._arriving: dict[int, _Arriving] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._retired = False
        self.since = asyncio.get_running_loop().time()
        self._stray = Allowance(limits.requests_per_second, 0.0)
        port = StreamPort(write=self._write, spawn=self._begin, begun=partial(begun, self), stray=self._is_stray)
        self.streams = Streams(port, opened=opened)
        self._below = _below(socket)
        self.carried = self._below is not None and self._below.family == _INSIDE
        if self._below is not None and not self.carried:
            _keep_queue_short(self._below)

    @property
    def open(self) -> bool:
        """True if messages can be sent over it."""
        return not (self._retired or self._socket.closed)

    @property
    def stalled(self) -> bool:
        """True if packets are being lost, or if the kernel does not tell."""
        try:
            return self._below is None or has_stalled(self._below)
        except OSError:  # it has just ended
            return True

    async def send(self, head: bytes, tail: memoryview, moved: Callable[[int], None]) -> bytes:
        """Send one message; return the answer: nothing if it was taken, else the frame of a rejection.

        `moved` is called with the number of bytes that have left, again and again. Raises LinkLostError.
        """
        number, whole = next(self._numbers), len(head) + len(tail)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            first = tail[: max(0, PIECE_BYTES - len(head))]
            await self._write(_BEGIN, number, _LENGTH.pack(whole), head, first)
            for start in range(len(first), len(tail), PIECE_BYTES):
                if answer.done():  # the message was rejected before all of it had arrived
                    break
                piece = tail[start : start + PIECE_BYTES]
                await self._write(_MORE, number, piece)
                moved(len(piece))
            return await answer
        finally:
            if answer.done() and not answer.cancelled():
                answer.exception()  # retrieves the error, since nobody else may
            del self._answers[number]
            self._parts.pop(number, None)
            self._end_if_retired()

    async def run(self) -> None:
        """Take messages and answers until the connection ends."""
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.BINARY or not await self._record(memoryview(message.data)):
                    break
        except ConnectionResetError:
            pass  # it ended after a ping that was read only now, and that aiohttp answers
        finally:
            for arriving in self._arriving.values():
                arriving.cut()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(LinkLostError())
            self.streams.end()
            await self.close()

    def retire(self) -> None:
        """Send nothing more over this connection, and end it when nothing is under way; streams end now."""
        self._retired = True
        self.streams.end()
        self._end_if_retired()

    async def close(self) -> None:
        """End the connection at once."""
        self._retired = True
        with suppress(OSError, RuntimeError):
            await self._socket.close()

    def _end_if_retired(self) -> None:
        if self._retired and not (self._answers or self._arriving or self._socket.closed):
            self._begin(self.close())

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, kind: int, number: int, *parts: bytes | memoryview) -> None:
        try:
            await self._socket.send_bytes(b"".join((_HEAD.pack(kind, number), *parts)))
        except (OSError, RuntimeError) as error:
            raise LinkLostError from error

    async def _record(self, record: memoryview) -> bool:
        """Take one record; return whether the connection goes on."""
        if len(record) < _HEAD.size:
            return self._refused("a record without a head")
        if len(self._tasks) > _UNFINISHED_MAX:
            return self._refused("it takes no answers")
        kind, number = _HEAD.unpack_from(record)
        rest = record[_HEAD.size :]
        match kind:
            case _ if kind in (_ANSWER, _PART):
                return self._answered(number, bytes(rest), last=kind == _ANSWER)
            case _ if kind == _BEGIN and len(rest) >= _LENGTH.size and number not in self._arriving:
                await self._begun(number, _LENGTH.unpack_from(rest)[0], rest[_LENGTH.size :])
                return True
            case _ if kind == _MORE and number in self._arriving:
                await self._arriving[number].put(rest)
                return True
            case _ if kind == _MORE:  # the message was rejected, which the sender may not know yet
                return self._is_stray() or self._refused("bytes of no message")
            case _ if kind in KINDS:
                why = self.streams.record(kind, number, rest)
                return not why or self._refused(why)
        return self._refused(f"a record of kind {kind} that is none")

    def _is_stray(self) -> bool:
        """Count a record that comes too late; return whether so few come that this can be normal."""
        return self._stray.take(asyncio.get_running_loop().time())

    def _refused(self, why: str) -> bool:
        self._strange(why)
        return False

    def _answered(self, number: int, rest: bytes, *, last: bool) -> bool:
        answer = self._answers.get(number)
        if answer is None or answer.done():
            return True  # nobody waits for it any more
        whole = self._parts.pop(number, b"") + rest
        if len(whole) > codec.ANSWER_BYTES_MAX:
            return self._refused("an answer that is longer than any")
        if last:
            answer.set_result(whole)
        else:
            self._parts[number] = whole
        return True

    async def _begun(self, number: int, length: int, first: memoryview) -> None:
        """Take a message: at once if all of it has arrived, else in a task beside further records."""
        arriving = _Arriving(first)
        if length <= len(first):
            await self._take(number, length, arriving)
        else:
            self._arriving[number] = arriving
            self._begin(self._take(number, length, arriving))

    async def _take(self, number: int, length: int, arriving: _Arriving) -> None:
        answer = memoryview(await self._receive(length, arriving.next))
        self._arriving.pop(number, None)
        arriving.end()
        # In a task beside further reading: two peers that each waited for the other to read would wait forever.
        self._begin(self._answer(number, answer))

    async def _answer(self, number: int, answer: memoryview) -> None:
        with suppress(LinkLostError):
            while len(answer) > PIECE_BYTES:
                await self._write(_PART, number, answer[:PIECE_BYTES])
                answer = answer[PIECE_BYTES:]
            await self._write(_ANSWER, number, answer)
        self._end_if_retired()


class _Arriving:
    """The bytes of one message that have arrived and are not read yet: two pieces at the most."""

    def __init__(self, first: memoryview) -> None:
        self._pieces: asyncio.Queue[memoryview] = asyncio.Queue(maxsize=2)
        self._over = False
        if len(first):
            self._pieces.put_nowait(first)

    async def put(self, piece: memoryview) -> None:
        """Wait for room, and keep a piece; drop it if nobody reads any more."""
        if not self._over:
            await self._pieces.put(piece)

    async def next(self) -> memoryview:
        """Wait for the next piece; an empty one is the end of the connection."""
        return await self._pieces.get()

    def end(self) -> None:
        """Drop what is left: nobody reads any more."""
        self._over = True
        while not self._pieces.empty():
            self._pieces.get_nowait()

    def cut(self) -> None:
        """Let the reader know that the connection has ended."""
        self.end()
        self._pieces.put_nowait(memoryview(b""))


def has_stalled(connection: socket.socket) -> bool:
    """Return whether bytes left a while ago that the other machine has not acknowledged: packets are being lost.

    A machine acknowledges bytes even while its peer is busy, and bytes that have just left on an idle connection need
    some time. Also True if the kernel does not tell. False inside another connection, which is not worth avoiding.
    """
    if connection.family == _INSIDE:
        return False
    if not hasattr(socket, "TCP_INFO"):
        return True
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    unacknowledged, again, sent_ms, silent_ms = _TCP_INFO.unpack(info)
    return bool(unacknowledged and silent_ms >= _STALLED_MS and (again or sent_ms >= _STALLED_MS))


def _below(open_socket: Socket) -> socket.socket | None:
    """Return the socket of the network below; None if the connection has ended."""
    try:
        found: socket.socket | None = open_socket.get_extra_info("socket")
    except AttributeError:  # asyncio's TLS (up to 3.12) has forgotten it
        return None
    return found


def _keep_queue_short(connection: socket.socket) -> None:
    """Let the kernel take few bytes in advance: a ping has to wait for all that it has taken."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        with suppress(OSError):  # it has ended
            connection.setsockopt(socket.IPPROTO_TCP, option, _UNSENT_BYTES)
