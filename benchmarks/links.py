"""`python -m benchmarks.links [--quick]`: ways to carry frames in both directions over one connection of two peers.

There are three ways, all over mutual TLS on loopback, between this process and another: a WebSocket, and a streamed
request with a streamed answer, both by aiohttp; and asyncio's own streams, which are the floor. Each has two jobs:
short frames that are echoed (processor time of each side for one frame and its echo), and a slice that is sent in
pieces and read into a buffer that the receiver keeps (seconds until the receiver reports that it has the whole slice).
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from aiohttp import ClientResponse, ClientSession, ClientTimeout, ClientWebSocketResponse, StreamReader, WSMsgType, web

from benchmarks import carried
from benchmarks.measure import Lap, Spent, cpu_seconds, interleaved, times
from benchmarks.rows import Row, Section, compared, show
from benchmarks.transports import Keys, Receiver, identity_of
from fedpeer.peer.runtime.identity import client_context, server_context
from fedpeer.peer.runtime.limits import READ_AHEAD_BYTES
from fedpeer.peer.runtime.listener import bind_socket

#: Bytes of a short frame, as of an acknowledgement; of a piece of a slice; and of slices.
SHORT, PIECE = 140, 64 * 1024
SLICES = {"10 MB": 10_000_000, "100 MB": 100_000_000}
#: The longest slice; a receiver keeps a buffer for it.
KEPT = max(SLICES.values())
#: Head of a frame: its length. A frame of at most `SHORT` bytes is echoed, a longer one is answered when it is read.
HEAD = struct.Struct("<I")

Reading = Callable[[], Awaitable[bytes | memoryview]]
Writing = Callable[[Any], Awaitable[object]]


class Frames:
    """Frames in a stream of bytes, however the stream is cut into pieces."""

    def __init__(self, read: Reading) -> None:
        self._read, self._rest, self.kept = read, memoryview(b""), memoryview(bytearray(KEPT))

    async def next(self) -> memoryview:
        """Return the next frame: it lies in the kept buffer. Raises EOFError at the end of the stream."""
        head = bytearray(HEAD.size)
        await self._into(memoryview(head))
        frame = self.kept[: HEAD.unpack(head)[0]]
        await self._into(frame)
        return frame

    async def _into(self, view: memoryview) -> None:
        filled = 0
        while filled < len(view):
            if not len(self._rest):
                self._rest = memoryview(await self._read())
                if not len(self._rest):
                    raise EOFError
            count = min(len(self._rest), len(view) - filled)
            view[filled : filled + count] = self._rest[:count]
            filled, self._rest = filled + count, self._rest[count:]


async def send_frame(write: Writing, frame: memoryview) -> None:
    """Send one frame, in pieces if it is long."""
    if len(frame) <= PIECE:
        await write(HEAD.pack(len(frame)) + frame)
        return
    await write(HEAD.pack(len(frame)))
    for start in range(0, len(frame), PIECE):
        await write(frame[start : start + PIECE])


async def answer(read: Reading, write: Writing) -> None:
    """Echo short frames, and answer long frames, until the other side ends."""
    frames = Frames(read)
    with suppress(EOFError):
        while True:
            frame = await frames.next()
            await send_frame(write, frame[:SHORT])


# ------------------------------------------------------------------------------------------------------ the three ways


async def _websocket_served(request: web.BaseRequest) -> web.StreamResponse:
    socket = web.WebSocketResponse(compress=False, max_msg_size=2 * PIECE)
    await socket.prepare(request)

    async def read() -> bytes:
        message = await socket.receive()
        return message.data if message.type is WSMsgType.BINARY else b""

    await answer(read, lambda data: socket.send_bytes(data))
    return socket


async def _stream_served(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(HEAD.pack(0))  # headers are sent with the first piece of a body
    await request.content.readexactly(HEAD.size)
    await answer(request.content.readany, response.write)
    return response


def _serve_http(
    report: Callable[[int], None], folder: Path, served: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
) -> None:
    async def serve() -> None:
        server = web.Server(served, read_bufsize=READ_AHEAD_BYTES)
        listening = bind_socket("127.0.0.1", 0, plain=False)
        loop = asyncio.get_running_loop()
        await loop.create_server(server, sock=listening, ssl=server_context(identity_of(folder, "b")))
        report(listening.getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(serve())


def _serve_asyncio(report: Callable[[int], None], folder: Path) -> None:
    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(lambda: reader.read(PIECE), _drained(writer))
        writer.close()

    async def serve() -> None:
        listening = bind_socket("127.0.0.1", 0, plain=False)
        await asyncio.start_server(served, sock=listening, ssl=server_context(identity_of(folder, "b")))
        report(listening.getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(serve())


def _drained(writer: asyncio.StreamWriter) -> Writing:
    async def write(data: bytes | memoryview) -> None:
        writer.write(data)
        await writer.drain()

    return write


class Way(Protocol):
    """One way to connect, as this process opens it."""

    receiver: Receiver

    async def open(self) -> tuple[Reading, Writing]: ...

    async def close(self) -> None: ...


class WebSocket:
    """A WebSocket; this process masks what it sends."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.receiver = Receiver(_serve_http, keys.folder, _websocket_served)

    async def open(self) -> tuple[Reading, Writing]:
        self._session = ClientSession(timeout=ClientTimeout(total=None))
        tls = client_context(identity_of(self._keys.folder, "a"), self._keys.public["b"])
        url = f"https://127.0.0.1:{self.receiver.port}/"
        self._socket: ClientWebSocketResponse = await self._session.ws_connect(
            url, ssl=tls, compress=0, max_msg_size=2 * PIECE
        )
        return lambda: self._socket.receive_bytes(), lambda data: self._socket.send_bytes(data)

    async def close(self) -> None:
        await self._socket.close()
        await self._session.close()
        self.receiver.close()


class Streamed:
    """A request whose body never ends, and an answer whose body never ends, both in chunks of HTTP/1.1."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.receiver = Receiver(_serve_http, keys.folder, _stream_served)

    async def open(self) -> tuple[Reading, Writing]:
        self._session = ClientSession(timeout=ClientTimeout(total=None), read_bufsize=READ_AHEAD_BYTES)
        tls = client_context(identity_of(self._keys.folder, "a"), self._keys.public["b"])
        self._leaving: asyncio.Queue[bytes | memoryview] = asyncio.Queue(maxsize=4)
        self._answer: ClientResponse = await self._session.post(
            f"https://127.0.0.1:{self.receiver.port}/", data=self._body(), ssl=tls
        )
        content: StreamReader = self._answer.content
        await content.readexactly(HEAD.size)
        return content.readany, self._leaving.put

    async def _body(self) -> AsyncIterator[bytes | memoryview]:
        yield HEAD.pack(0)
        while piece := await self._leaving.get():
            yield piece

    async def close(self) -> None:
        await self._leaving.put(b"")
        self._answer.close()
        await self._session.close()
        self.receiver.close()


class Asyncio:
    """asyncio's own streams: the floor."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.receiver = Receiver(_serve_asyncio, keys.folder)

    async def open(self) -> tuple[Reading, Writing]:
        tls = client_context(identity_of(self._keys.folder, "a"), self._keys.public["b"])
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self.receiver.port, ssl=tls)
        return lambda: reader.read(PIECE), _drained(self._writer)

    async def close(self) -> None:
        self._writer.close()
        self.receiver.close()


# ----------------------------------------------------------------------------------------------------------- the clock


class _Opened:
    """An open connection of one way, on the common event loop."""

    def __init__(self, way: Way, loop: asyncio.AbstractEventLoop) -> None:
        self.way, self._loop = way, loop
        read, self._write = loop.run_until_complete(way.open())
        self._frames = Frames(read)

    def echoed(self, count: int) -> Lap:
        """Send short frames one after the other; return the processor time of each side."""
        ours, both = cpu_seconds([]), cpu_seconds([self.way.receiver.pid])
        self._loop.run_until_complete(self._echo(memoryview(os.urandom(SHORT)), count))
        ours, both = cpu_seconds([]) - ours, cpu_seconds([self.way.receiver.pid]) - both
        return {"opener": Spent(ours / count, 0), "other": Spent((both - ours) / count, 0)}

    def sent(self, slice: memoryview) -> Lap:
        began = self._loop.time()
        self._loop.run_until_complete(self._echo(slice, 1))
        return {"sent": Spent(0, self._loop.time() - began)}

    async def _echo(self, frame: memoryview, count: int) -> None:
        for _ in range(count):
            await send_frame(self._write, frame)
            await self._frames.next()

    def close(self) -> None:
        self._loop.run_until_complete(self.way.close())


def measure(quick: bool) -> Section:
    """Measure 2,000 short frames and messages, and slices of two sizes, in 11 pairs each; quick: 200 and 3."""
    keys, loop = Keys(), asyncio.new_event_loop()
    count, pairs = (200, 3) if quick else (2_000, 11)
    floor, rows = _Opened(Asyncio(keys), loop), list[Row]()
    for name, make in (("WebSocket", WebSocket), ("streamed", Streamed)):
        ours = _Opened(make(keys), loop)
        a, b = _pairs(ours, floor, lambda way: way.echoed(count), pairs)
        for side in ("opener", "other"):
            row = f"{name}: a short frame there and back, {side}"
            rows.append(compared(row, "ms", times(a, side, per=1e-3), times(b, side, per=1e-3)))
        for size, length in SLICES.items():
            slice = memoryview(os.urandom(length))
            a, b = _pairs(ours, floor, partial(_Opened.sent, slice=slice), pairs)
            wall = (times(laps, "sent", clock="wall", per=1e-3) for laps in (a, b))
            rows.append(compared(f"{name}: {size}", "ms", next(wall), next(wall)))
        if make is WebSocket:
            rows += _acknowledgements(carried.Way(keys, 1, carried=False), ours, count, pairs)
        ours.close()
    floor.close()
    keys.close()
    loop.close()
    return Section(
        "One connection for both directions",
        "By the processor for short frames of 140 bytes, by the clock for slices, which leave in pieces of 64 KiB and "
        "are read into a kept buffer. The floor is asyncio's own streams with the same frames, and for an "
        "acknowledgement the bare WebSocket. What the opener of a WebSocket sends is masked.",
        rows,
    )


def _acknowledgements(peers: carried.Way, echo: _Opened, count: int, pairs: int) -> list[Row]:
    """Return rows of a peer's short messages, compared with an echo over a connection of the same kind."""
    peers.acknowledged(count)
    a, b = interleaved(lambda: peers.acknowledged(count), lambda: echo.echoed(count), pairs)
    peers.close()
    medians = (
        (side, median(times(a, side, per=1e-3)), median(times(b, side, per=1e-3))) for side in ("opener", "other")
    )
    return [
        Row(name=f"fedpeer: an acknowledgement and its answer, {side}", unit="ms", ours=ours, floor=floor, target=0.3)
        for side, ours, floor in medians
    ]


def _pairs(ours: _Opened, floor: _Opened, work: Callable[[_Opened], Lap], pairs: int) -> tuple[list[Lap], list[Lap]]:
    work(ours)  # touches memory for the first time
    work(floor)
    return interleaved(lambda: work(ours), lambda: work(floor), pairs)


if __name__ == "__main__":
    show("links", __doc__, measure)
