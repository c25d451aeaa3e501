"""Opening of connections that carry messages both ways: directly, or through a peer that carries them (`carrier.py`).

The way that worked last is tried first. Other peers are asked only about a peer that could not be reached directly
before: otherwise a peer that is just starting would be carried for good.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from aiohttp import (
    BaseConnector,
    ClientError,
    ClientSession,
    ClientWebSocketResponse,
    ClientWSTimeout,
    WSServerHandshakeError,
)
from aiohttp.client_proto import ResponseHandler

from fedpeer.peer.runtime.carrier import Carrier
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.server import LINK_ROUTE
from fedpeer.peer.runtime.streams import LinkLostError
from fedpeer.peer.runtime.two_way import HEARTBEAT_S, RECORD_BYTES_MAX

#: Peers that are asked at a time to carry a connection, and seconds until the next ones are asked.
_ASKED, _ASK_AGAIN_S = 3, 5.0
#: Seconds until another attempt after a refusal; seconds for the other side to confirm that a connection ends.
_REFUSED_S, CLOSE_S = 10.0, 1.0
#: Seconds until a direct connection is tried in place of a carried one, at first and at most; they double. After a cut
#: the other side may be reachable again a moment later, and carried messages take twice as long.
IMPROVE_S, IMPROVE_MAX_S = 2.0, 60.0
#: Errors that are raised if no connection can be opened.
NOT_OPENED = (TimeoutError, ClientError, OSError, ValueError, LinkLostError)


@dataclass(slots=True)
class Attempts:
    """Attempts to open a connection to one peer.

    address      URL of the peer; "": nobody can connect to it
    again        time from which the next attempt may begin
    failed       direct attempts that have failed since the last connection
    through      the peer that carries the connection, or carried the last one; "": nobody
    asked        peers that have been asked to carry one, and `ask_again`: time from which the next ones are asked
    improve_s    seconds until a direct connection is tried beside a carried one
    refusals     by peer, why it has not carried a connection, or carries it no longer
    """

    address: str = ""
    again: float = 0.0
    failed: int = 0
    through: str = ""
    asked: int = 0
    ask_again: float = 0.0
    improve_s: float = IMPROVE_S
    refusals: dict[str, str] = field(default_factory=dict)

    @property
    def no_way(self) -> str:
        """Why there is no connection to a peer to which nobody can connect."""
        refusals = "; ".join(f"{peer}: {why}" for peer, why in sorted(self.refusals.items()))
        no_way = "nobody can connect to it, and no other peer carries a connection to it"
        return f"{no_way} ({refusals})" if refusals else no_way

    def opened(self, through: str) -> None:
        """Note that there is a connection, through this peer or (if "") a direct one."""
        self.through, self.failed, self.ask_again = through, 0, 0.0
        self.refusals.clear()
        if not through:
            self.improve_s = IMPROVE_S

    def next_improvement(self) -> float:
        """Return the seconds until a direct connection is tried, and double those until the try after that."""
        wait = self.improve_s
        self.improve_s = min(2 * wait, IMPROVE_MAX_S)
        return wait


class LinkOpener:
    """Opens connections to other peers.

    session   opens direct connections
    made      takes each socket that is made for a carried connection
    """

    def __init__(
        self, session: ClientSession, limits: Limits, carrier: Carrier | None, made: Callable[[socket.socket], None]
    ) -> None:
        self._session, self._limits, self._carrier, self._made = session, limits, carrier, made

    async def open(
        self, peer: str, tls: ssl.SSLContext, attempts: Attempts, linked: Iterable[str], stack: AsyncExitStack
    ) -> ClientWebSocketResponse | None:
        """Return a connection that lasts as long as the stack; None: there is no way now.

        `linked` are the peers to which there are connections.
        """
        clock = asyncio.get_running_loop().time
        through = self._through(peer, attempts, linked, clock())
        direct = [""] if attempts.address else []
        for way in [*through, *direct] if attempts.through else [*direct, *through]:
            try:
                if way:
                    opened = await self._carried(peer, tls, attempts, way, stack)
                else:
                    opened = await self.directly(tls, attempts)
            except WSServerHandshakeError:  # it refuses
                attempts.again = clock() + _REFUSED_S
                return None
            except NOT_OPENED:
                attempts.failed += not way
            else:
                attempts.opened(way)
                return opened
        attempts.again = clock() + self._limits.backoff_max_s
        return None

    async def directly(self, tls: ssl.SSLContext, attempts: Attempts) -> ClientWebSocketResponse:
        """Return a direct connection; raise one of `NOT_OPENED` if there is none."""
        return await self._web_socket(self._session, attempts.address, tls)

    def _through(self, peer: str, attempts: Attempts, linked: Iterable[str], now: float) -> list[str]:
        """Return the peers to ask now to carry a connection: other peers each time, and not too often if none can."""
        unreachable = not attempts.address or attempts.failed or attempts.through
        if self._carrier is None or not unreachable or now < attempts.ask_again:
            return []
        order = self._carrier.order(peer, linked)
        if order:
            first = attempts.asked % len(order)
            attempts.ask_again, attempts.asked = now + _ASK_AGAIN_S, first + _ASKED
            order = [*order[first:], *order[:first]]
        return order[:_ASKED]

    async def _carried(
        self, peer: str, tls: ssl.SSLContext, attempts: Attempts, through: str, stack: AsyncExitStack
    ) -> ClientWebSocketResponse:
        assert self._carrier is not None, "else nobody is asked"
        connected, stream = await self._carrier.connect(peer, through)
        self._made(connected)
        stack.callback(lambda: attempts.refusals.update({through: stream.why} if stream.why else {}))
        session = await stack.enter_async_context(ClientSession(connector=_Connected(connected, tls)))
        return await self._web_socket(session, f"https://{peer}", tls)

    async def _web_socket(self, session: ClientSession, url: str, tls: ssl.SSLContext) -> ClientWebSocketResponse:
        async with asyncio.timeout(self._limits.connect_s + self._limits.answer_s):
            return await session.ws_connect(
                f"{url}{LINK_ROUTE}",
                ssl=tls,
                compress=0,
                max_msg_size=RECORD_BYTES_MAX,
                heartbeat=HEARTBEAT_S,
                timeout=ClientWSTimeout(ws_close=CLOSE_S),
            )


class _Connected(BaseConnector):
    """A connector with one connection, over a socket that is connected already."""

    def __init__(self, connected: socket.socket, tls: ssl.SSLContext) -> None:
        super().__init__(force_close=True)
        self._connected, self._tls = connected, tls

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> ResponseHandler:
        _, protocol = await asyncio.get_running_loop().create_connection(
            self._factory, sock=self._connected, ssl=self._tls, server_hostname=""
        )
        return protocol
