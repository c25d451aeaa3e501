"""The least time of a round: shares of a model between hosts, over TLS as peers use it, and nothing else around them.

    python tests/net/bare.py ME CERTIFICATE KEY AUTHORITY BYTES EXCHANGES WORK NAME=ADDRESS...

In each exchange each host sends so many bytes to each other one, and goes on when it has the bytes of all others and at
most two of its own shares to each of them are not answered. A share that is not answered in time is sent again on
another connection, of three at most, after the wait that a peer's timers have (RFC 6298); connections are kept. Before
each exchange the host works for WORK seconds (it rests, and receives what comes), as a peer trains: it does not wait
for late messages meanwhile. The program prints the seconds of each work and exchange on one line.

It is started once on each host, so it imports nothing of fedpeer.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
import time
from collections import defaultdict
from contextlib import suppress

PORT = 7600
#: Bytes of an answer: those of an acknowledgement with its envelope and the head of its HTTP request.
ANSWER = bytes(400)
#: Connections to one neighbor; seconds of the shortest and the longest wait for an answer; TCP as peers set it.
AT_ONCE, WAIT_MIN_S, WAIT_MAX_S = 3, 0.2, 5.0
THIN_LINEAR_TIMEOUTS, RTO_MAX_MS = 16, 44
HEAD = struct.Struct("<II")
#: Shares to one neighbor that may be open.
WINDOW = 2
#: Seconds to find the others.
PATIENCE_S = 60.0


class Neighbor:
    """A host to which this one sends shares: its idle connections, and how long answers took."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        self._address, self._context = address, context
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._mean, self._deviation = 0.2, 0.05

    async def give(self, me: int, exchange: int, share: bytes) -> None:
        """Send a share until it is answered."""
        began, wait, tries = time.monotonic(), self._wait, 0
        under_way: set[asyncio.Task[bool]] = set()
        answered = False
        while not answered:
            if len(under_way) < AT_ONCE:
                under_way.add(asyncio.create_task(self._say(me, exchange, share)))
                wait, tries = min(2 * wait, 4 * self._wait, WAIT_MAX_S) if tries else wait, tries + 1
            done, under_way = await asyncio.wait(under_way, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            answered = any(each.result() for each in done)
        if tries == 1:
            took = time.monotonic() - began
            self._deviation += (abs(took - self._mean) - self._deviation) / 4
            self._mean += (took - self._mean) / 8

    @property
    def _wait(self) -> float:
        return min(max(self._mean + 4 * self._deviation, WAIT_MIN_S), WAIT_MAX_S)

    async def _say(self, me: int, exchange: int, share: bytes) -> bool:
        """Send a share once; return whether it was answered, False where the connection broke."""
        try:
            reader, writer = self._idle.pop() if self._idle else await self._connect()
            writer.write(HEAD.pack(me, exchange) + share)
            await reader.readexactly(len(ANSWER))
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(WAIT_MIN_S)
            return False
        self._idle.append((reader, writer))
        return True

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        made = as_peers_do(socket.socket())
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, (self._address, PORT))
        return await asyncio.open_connection(sock=made, ssl=self._context, server_hostname="")


class Host:
    """This host: the shares that came, by exchange and sender, and the neighbors to which it sends."""

    def __init__(self, me: int, length: int, neighbors: dict[int, Neighbor]) -> None:
        self._me, self._length, self._neighbors = me, length, neighbors
        self._came: dict[int, set[int]] = defaultdict(set)
        self._news = asyncio.Event()
        self._open: dict[int, list[asyncio.Task[None]]] = {number: [] for number in neighbors}

    async def on_event(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                sender, exchange = HEAD.unpack(await reader.readexactly(HEAD.size))
                await reader.readexactly(self._length)
                self._came[exchange].add(sender)
                self._news.set()
                writer.write(ANSWER)

    async def exchange(self, number: int, work: float) -> float:
        """Work for so many seconds, then exchange with all; return the seconds that both took."""
        began, share = time.monotonic(), bytes(self._length)
        await asyncio.sleep(work)
        for peer, neighbor in self._neighbors.items():
            while len(self._open[peer]) >= WINDOW:
                await self._open[peer].pop(0)
            self._open[peer].append(asyncio.create_task(neighbor.give(self._me, number, share)))
        while self._came[number] < self._neighbors.keys():
            self._news.clear()
            await self._news.wait()
        return time.monotonic() - began


def as_peers_do(made: socket.socket) -> socket.socket:
    for option, value in ((THIN_LINEAR_TIMEOUTS, 1), (RTO_MAX_MS, 1000)):
        with suppress(OSError):  # an older kernel
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def contexts(certificate: str, key: str, authority: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts to listen and to connect."""
    found = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority)
        context.load_cert_chain(certificate, key)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        found.append(context)
    return found[0], found[1]


async def run(
    me: str, certificate: str, key: str, authority: str, length: int, exchanges: int, work: float, *hosts: str
) -> None:
    address = dict(each.split("=") for each in hosts)
    numbers = {name: number for number, name in enumerate(sorted(address))}
    server, client = contexts(certificate, key, authority)
    neighbors = {numbers[name]: Neighbor(where, client) for name, where in address.items() if name != me}
    host = Host(numbers[me], length, neighbors)
    listening = as_peers_do(socket.create_server((address[me], PORT)))
    await asyncio.start_server(host.on_event, sock=listening, ssl=server)
    async with asyncio.timeout(PATIENCE_S):
        await host.exchange(0, 0.0)  # all are there, and connected
    print(*[f"{await host.exchange(number, work):.4f}" for number in range(1, exchanges + 1)], flush=True)
    await asyncio.sleep(PATIENCE_S)  # other hosts may still wait for an answer; the caller ends this


if __name__ == "__main__":
    words = sys.argv[1:]
    asyncio.run(run(*words[:4], int(words[4]), int(words[5]), float(words[6]), *words[7:]))  # type: ignore[arg-type]
