"""Listener of the peer port: accepts connections within limits and completes TLS before anything is read.

asyncio's own servers accept every connection and do not report failed handshakes. Here each connection is accepted by
hand, so that connections and handshakes are bounded and every failure is logged. Members always get through: their
handshakes, known by the address that they come from, have their own slots, and after the handshake only members stay.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from fedpeer.config.address import Endpoint, loopback, source_host
from fedpeer.peer.runtime.handshakes import Handshakes
from fedpeer.peer.runtime.identity import accept_tls
from fedpeer.peer.runtime.limits import Allowances, Limits
from fedpeer.peer.runtime.reasons import tls_reason, was_cut
from fedpeer.peer.runtime.transient import NoAddressError, PortInUseError
from fedpeer.rejection import Rejection

#: Connections that the kernel queues while we are busy.
BACKLOG = 128
#: Most addresses that are remembered: one for each peer of the largest roster.
_CAME_FROM_MAX = 4096
#: Seconds without accepting after the process ran out of file handles; connections end meanwhile.
_OUT_OF_HANDLES_S = 1.0
#: TCP options of Linux that Python has no names for, and their values: while little is in flight, a lost packet is sent
#: again after the same fifth of a second each time, and never later than after a second. By default each wait is twice
#: the one before, up to two minutes, which is soon reached if a third of all packets is lost.
_LOSS_OPTIONS = {16: 1, 44: 1000}  # TCP_THIN_LINEAR_TIMEOUTS, TCP_RTO_MAX_MS
_OUT_OF_HANDLES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class ListenError(Exception):
    """The user's mistake about an address to listen on; the message names the address and the way out."""


def bind_socket(host: str, port: int, *, plain: bool = False) -> socket.socket:
    """Return a listening socket; port 0 is any free one. Without TLS (`plain`) on loopback only.

    Raises:
        ListenError: the user has to change something.
        PortInUseError, NoAddressError: it may work later.
    """
    if plain and not loopback(host):  # anybody on the network could read and write
        raise ListenError(
            f"{host} is not this machine, and plain HTTP is allowed on 127.0.0.1 and [::1] only; "
            "use TLS with an https:// address"
        )
    try:
        listening = listening_socket(host, port)
    except OSError as error:
        raise (not_now(host, port, "listen", error) or ListenError(_unheard(host, port, "listen", error))) from None
    expect_loss(listening)  # accepted connections inherit it
    listening.setblocking(False)
    return listening


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; port 0 is any free one, `::` all interfaces, with IPv4 where possible.

    Raises OSError.
    """
    family, address = looked_up(host, port, socket.SOCK_STREAM, socket.AI_PASSIVE)
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)


def looked_up(host: str, port: int, kind: int, flags: int = 0) -> tuple[int, tuple[str, int]]:
    """Return family and address of the first socket address of a host. Raises OSError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=kind, flags=flags)[0]
    except UnicodeError:  # a part of the name is empty
        raise socket.gaierror(socket.EAI_NONAME, "no host can have this name") from None
    return family, (str(address[0]), int(address[1]))


def not_now(host: str, port: int, setting: str, error: OSError) -> Exception | None:
    """Return the exception for a failure that may pass by itself; None if the user has to change something."""
    text = _unheard(host, port, setting, error)
    if isinstance(error, socket.gaierror):
        return NoAddressError(text) if error.errno == socket.EAI_AGAIN else None
    match error.errno:
        case errno.EADDRINUSE:
            return PortInUseError(text)
        case errno.EADDRNOTAVAIL:
            return NoAddressError(text)
    return None


def _unheard(host: str, port: int, setting: str, error: OSError) -> str:
    unresolved = isinstance(error, socket.gaierror) or error.errno is None
    why = (error.strerror or str(error) if unresolved else os.strerror(error.errno or 0)).lower()
    way_out = f"change `{setting}`, or stop the process that has the port"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        way_out = f"bring up the interface that has it, or change `{setting}`"
    elif error.errno == errno.EADDRINUSE:
        why = "another process has the port"
    return f"cannot listen on {Endpoint(host, port)} ({why}); {way_out}"


def expect_loss(connection: socket.socket) -> None:
    """Set TCP options, where the kernel has them, for a link that may lose a third of its packets."""
    if sys.platform == "linux":
        for option, value in _LOSS_OPTIONS.items():
            with suppress(OSError):  # an older kernel
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Listener:
    """Accepts connections until its task is cancelled; the caller then ends all connections.

    speak      makes the protocol of a connection
    owner      returns the member behind a connection after its handshake: "" without TLS, a rejection if it is not a
               member; its connection is then closed at once
    rejected   receives every rejection
    tls        context of the port; None: plain
    limits     bounds of connections and handshakes
    departs    returns whether a non-member may stay for one request, since it was revoked and may not know it
    expects    returns whether a member may come from this address
    reached    the first member that has connected by itself, "" without TLS; None: nobody has
    idle       returns whether no request is in progress on a connection: idle ones are closed before others
    """

    def __init__(
        self,
        speak: Callable[[], asyncio.Protocol],
        owner: Callable[[asyncio.BaseTransport], str | Rejection],
        rejected: Callable[[Rejection], None],
        tls: ssl.SSLContext | None,
        limits: Limits,
        *,
        departs: Callable[[asyncio.BaseTransport], bool] = lambda transport: False,
        expects: Callable[[str], bool] = lambda address: False,
        idle: Callable[[asyncio.BaseTransport], bool] = lambda transport: True,
    ) -> None:
        self._speak, self._owner, self._rejected, self._tls, self._limits = speak, owner, rejected, tls, limits
        self._departs, self._expects, self._idle = departs, expects, idle
        per_address, kept_s = limits.handshakes_per_address, limits.handshake_kept_s
        self._members = Handshakes(limits.handshakes, per_address, kept_s)
        self._strangers = Handshakes(limits.handshakes_of_strangers, per_address, kept_s)
        self._rate = Allowances(limits.strangers_per_second)
        self._rate_of = Allowances(limits.strangers_per_second_of_address)
        self._open: dict[asyncio.Transport, str] = {}  # in the order of arrival
        self._departing: dict[asyncio.Transport, bytes | None] = {}  # with its certificate
        self._sent_away = weakref.WeakSet[asyncio.BaseTransport]()
        self._over = False
        self.reached: str | None = None
        self._came_from: dict[str, str] = {}  # the address of each member that has connected

    async def run(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(listening)
                except OSError as error:
                    if error.errno in _OUT_OF_HANDLES:
                        self._rejected(Rejection("out_of_handles", str(error)))
                        await asyncio.sleep(_OUT_OF_HANDLES_S)
                    continue  # otherwise one connection ended while it was accepted
                self._take(connection, source_host(str(address[0])))
                await asyncio.sleep(0)  # queued connections are accepted without waiting, so let other tasks run
        finally:
            await self.end()

    async def end(self) -> None:
        """End the handshakes that are in progress."""
        self._over = True
        greeting = [*self._members.tasks(), *self._strangers.tasks()]
        for task in greeting:
            task.cancel()
        await asyncio.gather(*greeting, return_exceptions=True)

    def take_carried(self, connection: socket.socket, carrier: str) -> None:
        """Take a connection that comes through another peer; its handshakes in progress are limited by the carrier."""
        self._begin(self._members, connection, carrier, carried=True)

    def review(self, limits: Limits) -> None:
        """Apply a new roster and its limits of connections.

        A revoked peer learns it with its next request, or its connection is closed soon.
        """
        self._limits = limits
        self._forget_closed()
        gone = [each for each, whose in self._open.items() if whose and isinstance(self._owner(each), Rejection)]
        loop = asyncio.get_running_loop()
        for transport in gone:
            self._came_from.pop(self._open.pop(transport), None)
            self._departing[transport] = None
            loop.call_later(self._limits.farewell_s, transport.abort)

    def sent_away(self, transport: asyncio.BaseTransport | None) -> bool:
        """Return whether we closed this connection right after its handshake; requests on it are not answered."""
        return transport in self._sent_away

    def _take(self, connection: socket.socket, address: str) -> None:
        now = asyncio.get_running_loop().time()
        known = self._tls is None or address in self._came_from.values() or self._expects(address)
        handshakes = self._members if known else self._strangers
        if not known and not (self._rate_of.take(address, now) and self._rate.take("", now)):
            self._turn_away(connection, f"more handshakes per second than strangers may begin, from {address}")
        else:
            self._begin(handshakes, connection, address)

    def _begin(self, handshakes: Handshakes, connection: socket.socket, address: str, *, carried: bool = False) -> None:
        now = asyncio.get_running_loop().time()
        if not handshakes.has_room(address, now):
            self._turn_away(connection, f"too many handshakes in progress from {address}")
            return
        handshake = handshakes.begin(self._greet(connection, address, carried=carried), address, now)
        handshake.add_done_callback(lambda done: self._given_up(connection, address) if done.cancelled() else None)

    def _given_up(self, connection: socket.socket, address: str) -> None:
        connection.close()
        if not self._over:
            why = f"a slow handshake from {address} gave way to another one"
            self._rejected(Rejection("too_many_requests", why))

    def _turn_away(self, connection: socket.socket, why: str) -> None:
        connection.close()
        self._rejected(Rejection("too_many_requests", why))

    async def _greet(self, connection: socket.socket, address: str, *, carried: bool) -> None:
        """Run the handshake and pass the connection to aiohttp; report a failure with its reason."""
        limits = self._limits
        try:
            if self._tls is None:
                transport, _ = await asyncio.get_running_loop().connect_accepted_socket(self._speak, connection)
            else:
                transport = await accept_tls(connection, self._speak, self._tls, limits.handshake_s, limits.goodbye_s)
        except OSError as error:  # includes all errors of ssl
            if error.errno in _OUT_OF_HANDLES:
                self._rejected(Rejection("out_of_handles", str(error)))
                return
            why = tls_reason(error) or str(error) or "the connection ended during the handshake"
            self._rejected(Rejection("handshake_cut" if was_cut(error) else "tls_refused", f"{address}: {why}"))
            return
        self._admit(transport, address, carried=carried)

    def _admit(self, transport: asyncio.Transport, address: str, *, carried: bool) -> None:
        """Keep a connection after its handshake if its owner is a member and there is room.

        A peer with too many connections replaces its own oldest: after a cut we may not know yet that this one is dead.
        """
        owner = self._owner(transport)
        self._forget_closed()
        if isinstance(owner, Rejection):
            self._show_out(transport, owner, address)
            return
        if owner and not carried:
            self._came_from[owner] = address
            if len(self._came_from) > _CAME_FROM_MAX:
                del self._came_from[next(iter(self._came_from))]
        counts = Counter(self._open.values())
        if owner and counts[owner] >= self._limits.connections_per_peer:
            self._end_oldest_of(owner)
        elif len(self._open) >= self._limits.connections:
            most, count = counts.most_common(1)[0]
            if count <= counts[owner]:
                transport.abort()
                self._rejected(Rejection("too_many_requests", f"{len(self._open)} open connections", owner))
                return
            self._end_oldest_of(most)
        self._open[transport] = owner
        if self.reached is None and not carried:
            self.reached = owner

    def _show_out(self, transport: asyncio.Transport, why: Rejection, address: str) -> None:
        """Close a non-member's connection; a revoked peer may first send one request, to learn that it was revoked."""
        tls = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        room = len(self._departing) < self._limits.farewells_at_once and certificate not in self._departing.values()
        if room and self._departs(transport):
            self._departing[transport] = certificate
            asyncio.get_running_loop().call_later(self._limits.farewell_s, transport.abort)
        else:
            self._sent_away.add(transport)
            transport.abort()
            self._rejected(replace(why, text=f"{address}: {why.text}"))

    def _end_oldest_of(self, owner: str) -> None:
        theirs = [each for each, whose in self._open.items() if whose == owner]
        oldest = next(filter(self._idle, theirs), theirs[0])
        oldest.abort()
        del self._open[oldest]

    def _forget_closed(self) -> None:
        self._open = {transport: whose for transport, whose in self._open.items() if not transport.is_closing()}
        self._departing = {each: whose for each, whose in self._departing.items() if not each.is_closing()}
