"""Accepting connections on the peer port: how many, from where, and that TLS is done before anything is read.

asyncio's own servers accept whatever comes and keep silent about handshakes that fail. Here each connection is taken
by hand, so that both are bounded and every failure is told. What speaks on a connection is the protocol that `speak`
makes; whose it is, `owner` says once the handshake is done.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from fedpeer.peer.shell.identity import accept_tls
from fedpeer.peer.shell.limits import Limits
from fedpeer.peer.shell.reasons import tls_reason

#: Connections that the kernel keeps for us while we are busy.
BACKLOG = 128
#: Seconds without accepting after the process ran out of file handles: connections are ended meanwhile.
OUT_OF_HANDLES_S = 1.0
#: Options of Linux that Python has no names for, and their values: as long as little is under way, what is lost is said
#: again after the same fifth of a second each time; and never later than after a second. By default each wait is twice
#: the one before, up to two minutes, and where a third of all packets is lost that is soon reached.
_LOSS_OPTIONS = {16: 1, 44: 1000}  # TCP_THIN_LINEAR_TIMEOUTS, TCP_RTO_MAX_MS
_OUT_OF_HANDLES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

#: The code of a refusal, whom it concerns ("": a stranger), and what exactly was wrong.
Refused = Callable[[str, str, str], None]


class ListenError(Exception):
    """The user's mistake about an address to listen on or to reach; the message has the address and the way out."""


def bind(host: str, port: int, *, plain: bool = False) -> socket.socket:
    """A listening socket; port 0 is any free one. Without TLS (`plain`) on loopback only. Raises ListenError."""
    if plain:
        require_loopback(host)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ListenError(
            f"{host}:{port} cannot be listened on ({why}); change `listen`, or stop what has the port"
        ) from None
    expect_loss(listening)  # what is accepted inherits it
    listening.setblocking(False)
    return listening


def expect_loss(connection: socket.socket) -> None:
    """Where the kernel can: do not give up on a link that loses a third of its packets."""
    if sys.platform == "linux":
        for option, value in _LOSS_OPTIONS.items():
            with suppress(OSError):  # an older kernel
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


def require_loopback(host: str) -> None:
    """Raises ListenError unless `host` is this machine itself: without TLS anybody on the way reads and writes."""
    if host != "localhost" and not _is_loopback(host):
        raise ListenError(
            f"{host} is not this machine, and plain HTTP goes no further than 127.0.0.1; write https:// and use TLS"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Listener:
    """Accepts until its task is cancelled; then all connections are its caller's to end."""

    def __init__(
        self,
        speak: Callable[[], asyncio.Protocol],
        owner: Callable[[asyncio.BaseTransport], str],
        refused: Refused,
        tls: ssl.SSLContext | None,
        limits: Limits,
    ) -> None:
        self._speak, self._owner, self._refused, self._tls, self._limits = speak, owner, refused, tls, limits
        self._greeting: Counter[str] = Counter()  # handshakes under way, by address
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: dict[asyncio.Transport, str] = {}  # in the order in which they came

    async def run(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(listening)
                except OSError as error:
                    if error.errno in _OUT_OF_HANDLES:
                        self._refused("out_of_handles", "", str(error))
                        await asyncio.sleep(OUT_OF_HANDLES_S)
                    continue  # else one connection ended while it was accepted
                self._take(connection, str(address[0]))
        finally:
            greeting = list(self._tasks)
            for task in greeting:
                task.cancel()
            await asyncio.gather(*greeting, return_exceptions=True)

    def _take(self, connection: socket.socket, address: str) -> None:
        limits = self._limits
        self._forget_closed()
        if self._greeting.total() >= limits.handshakes or self._greeting[address] >= limits.handshakes_per_address:
            self._turn_away(connection, f"handshakes under way from {address}")
        elif len(self._open) + self._greeting.total() >= limits.connections:
            self._turn_away(connection, f"{len(self._open)} open connections")
        else:
            self._greeting[address] += 1
            task = asyncio.create_task(self._greet(connection, address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda done: connection.close() if done.cancelled() else None)

    def _turn_away(self, connection: socket.socket, why: str) -> None:
        connection.close()
        self._refused("too_many_requests", "", why)

    async def _greet(self, connection: socket.socket, address: str) -> None:
        """The handshake, after which aiohttp has the connection; one that fails is told, with the reason."""
        try:
            if self._tls is None:
                transport, _ = await asyncio.get_running_loop().connect_accepted_socket(self._speak, connection)
            else:
                transport = await accept_tls(connection, self._speak, self._tls, self._limits.handshake_s)
        except OSError as error:  # all that ssl raises, too
            if error.errno in _OUT_OF_HANDLES:
                self._refused("out_of_handles", "", str(error))
                return
            why = tls_reason(error) or str(error) or "the connection ended in the middle of the handshake"
            self._refused("tls_refused", "", f"{address}: {why}")
            return
        finally:
            self._greeting -= Counter({address: 1})  # in-place, so that addresses with none left are forgotten
        self._admit(transport)

    def _admit(self, transport: asyncio.Transport) -> None:
        """A peer that reconnects replaces its oldest connection: after a cut we may not know yet that it is dead."""
        owner = self._owner(transport)
        self._forget_closed()
        theirs = [each for each, whose in self._open.items() if whose == owner]
        if owner and len(theirs) >= self._limits.connections_per_peer:
            theirs[0].abort()
            del self._open[theirs[0]]
        self._open[transport] = owner

    def _forget_closed(self) -> None:
        self._open = {transport: whose for transport, whose in self._open.items() if not transport.is_closing()}
