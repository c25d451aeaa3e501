"""Connections of people and of who is not known yet: to a dashboard, to an invitation, to the page of a demonstration.

They are bounded as those of peers are (`listener.py`), by the address from which they come: where all places are taken
the address that has most gives up its oldest connection on which nothing is asked. So whoever holds connections keeps
nobody out. One that says nothing, or says it too slowly, aiohttp ends after its time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.listener import BACKLOG, Listener

#: A person opens a few windows, and a browser six connections for each.
VISITORS = Limits(connections=64, connections_per_peer=64)


class Visitors:
    """One listener for an application of aiohttp."""

    def __init__(self, limits: Limits = VISITORS) -> None:
        self._limits = limits
        self._busy: set[asyncio.BaseTransport | None] = set()
        self._accepting: asyncio.Task[None] | None = None

    @web.middleware
    async def _attend(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """While something is asked on a connection it does not give way."""
        transport = request.transport
        self._busy.add(transport)
        try:
            return await handler(request)
        finally:
            self._busy.discard(transport)

    async def start(
        self, app: web.Application, listening: socket.socket, tls: ssl.SSLContext | None, **settings: Any
    ) -> None:
        """Take connections from this socket until `stop`; `settings` are of aiohttp's runner."""
        app.middlewares.insert(0, self._attend)
        self._runner = web.AppRunner(
            app, handle_signals=False, access_log=None, auto_decompress=False, lingering_time=0, **settings
        )
        await self._runner.setup()
        speak = self._runner.server
        assert speak is not None, "it is set up"
        listener = Listener(
            speak,
            _address,
            lambda rejection: None,  # nobody is told: it is no peer, and nothing is asked of it
            tls,
            self._limits,
            expects=lambda address: True,
            idle=lambda transport: transport not in self._busy,
        )
        listening.setblocking(False)
        self._listening, self._accepting = listening, asyncio.create_task(listener.run(listening))

    async def stop(self) -> None:
        """Accept no more, and end all connections."""
        if self._accepting is None:
            return  # it never began
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._listening.close()
        await self._runner.cleanup()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 is any free one. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family, backlog=BACKLOG)


def _address(transport: asyncio.BaseTransport) -> str:
    """From which it comes."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else "gone"
