"""Listener for connections of people and of unknown machines: to a dashboard, an invitation, a demonstration's page.

They are bounded like those of peers (`listener.py`), by the address that they come from: when all slots are taken, the
address with most connections loses its oldest idle one. So an address that occupies connections keeps nobody out.
aiohttp closes a connection that is silent, or too slow, for too long.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial

from aiohttp import web
from aiohttp.typedefs import Handler

from fedpeer.peer.runtime.http_connection import SILENT, HttpConnection
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.listener import Listener

#: Room for a few windows, each with a browser's six connections.
VISITORS = Limits(connections=64, connections_per_peer=64)


class Visitors:
    """One bounded listener for an aiohttp application."""

    def __init__(self, limits: Limits = VISITORS) -> None:
        self._limits = limits
        self._busy: set[asyncio.BaseTransport | None] = set()
        self._accepting: asyncio.Task[None] | None = None

    @web.middleware
    async def _attend(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Mark the connection of a request as busy, so that it is not closed for another one."""
        transport = request.transport
        self._busy.add(transport)
        try:
            return await handler(request)
        finally:
            self._busy.discard(transport)

    async def start(
        self,
        app: web.Application,
        listening: socket.socket,
        tls: ssl.SSLContext | None,
        *,
        keepalive_timeout: float,
        shutdown_timeout: float,
    ) -> None:
        """Accept connections from this socket until `stop`.

        Args:
            keepalive_timeout: seconds after which a silent connection is closed.
            shutdown_timeout: seconds that open requests get to finish at the end.
        """
        app.middlewares.insert(0, self._attend)
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=shutdown_timeout)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None, "it is set up"
        listener = Listener(
            partial(
                HttpConnection,
                server,
                loop=asyncio.get_running_loop(),
                keepalive_timeout=keepalive_timeout,
                access_log=SILENT,
                auto_decompress=False,
                lingering_time=0,
            ),
            _address,
            lambda rejection: None,  # not reported: these are not peers
            tls,
            self._limits,
            expects=lambda address: True,
            idle=lambda transport: transport not in self._busy,
        )
        listening.setblocking(False)
        self._listening, self._accepting = listening, asyncio.create_task(listener.run(listening))

    async def stop(self) -> None:
        """Stop accepting and end all connections."""
        if self._accepting is None:
            return  # it never began
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._listening.close()
        await self._runner.cleanup()


def _address(transport: asyncio.BaseTransport) -> str:
    """Return the address that a connection comes from."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else "gone"
