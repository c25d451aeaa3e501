"""Server of a peer's dashboard: page, status, live events and metrics, for clients with the token.

It is separate from the peer port and shares no limit, key or connection with it. It is read-only: no request changes
anything but the visitor's own cookie. The checks, in their order:

- **Host.** Without TLS only the names of this machine's loopback are answered, so that no foreign page can get access
  by pointing its own name here (DNS rebinding). With TLS the browser has checked the name against the certificate.
- **Limits.** Connections, requests and live streams are bounded; idle connections are closed first.
- **Token.** `Authorization: Bearer`, or once `/?token=...`, which sets a cookie and redirects to `/`. The cookie is not
  the token but derived from it: browsers send cookies to every port of a host, and a restarted peer recognises it.

The live stream (server-sent events) sends the whole status once a second, changed or not, so silence means that the
connection is lost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

from aiohttp import web

from fedpeer.config.address import Endpoint
from fedpeer.peer.runtime.dashboard.access import DashboardError, DashboardListener, cookie_of, same
from fedpeer.peer.runtime.dashboard.pages import Handler, from_loopback, hardened, text_file
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.listener import listening_socket, not_now
from fedpeer.peer.runtime.visitors import VISITORS, Visitors

#: Most live streams: a person opens a few windows; each costs a status document per second.
STREAMS_MAX = 16
#: Most requests at once, including streams; a page loads four files.
REQUESTS_MAX = 64
#: Most bytes of a request's body; no request needs one.
_BODY_BYTES_MAX = 1024
#: Seconds between two events: a person can follow that, and serializing a large federation's status stays cheap.
EVERY_S = 1.0
#: Seconds that a client may take to read an event before it is disconnected, so that no events pile up in memory.
PATIENCE_S = 10.0
#: Seconds after which streams, which have no end, are closed when the peer stops; and seconds that an idle connection
#: stays open.
SHUTDOWN_S, IDLE_S = 0.1, 15.0

_PAGES = {"/page.css": "text/css", "/page.js": "text/javascript", "/draw.js": "text/javascript"}
#: Served without a token, since the page that asks for the token needs it.
_OPEN = "/page.css"


class Dashboard:
    """A dashboard that listens.

    Args:
        listener: its address, token and certificate; port 0 takes a free one, which `listener.port` then names.
        status: returns the status document, as `Status.as_json` does.
        metrics: returns the status in Prometheus' format and its content type; None: not served.
        every_s: seconds between two events of a live stream.
        limits: limits of connections.
    """

    def __init__(
        self,
        listener: DashboardListener,
        status: Callable[[], Mapping[str, Any]],
        metrics: Callable[[], tuple[bytes, str]] | None,
        every_s: float = EVERY_S,
        limits: Limits = VISITORS,
    ) -> None:
        self.listener, self._status, self._metrics, self._every_s = listener, status, metrics, every_s
        self._cookie = cookie_of(listener.token)
        self._requests = self.streams = 0
        self._event, self._event_until = b"", -1.0
        folder = files(__package__)
        self._texts = {name: (folder / name).read_text("utf-8") for name in ("page.html", "login.html")}
        self._visitors = Visitors(limits)
        app = web.Application(client_max_size=_BODY_BYTES_MAX, middlewares=[self._guard])
        app.on_response_prepare.append(hardened)
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/status.json", self._document),
                web.get("/events", self._live),
                web.get("/metrics", self._prometheus),
            ]
        )
        for path, kind in _PAGES.items():
            app.add_routes([web.get(path, text_file(kind, (folder / path[1:]).read_text("utf-8")))])
        self._app = app

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            DashboardError: the port is not allowed, or the certificate is unusable.
            PortInUseError, NoAddressError: it may work later.
        """
        context = self.listener.context()
        try:
            listening = listening_socket(self.listener.host, self.listener.port)
        except OSError as error:
            if later := not_now(self.listener.host, self.listener.port, "dashboard.listen", error):
                raise later from None
            where, why = Endpoint(self.listener.host, self.listener.port), error.strerror or error
            raise DashboardError(
                f"dashboard.listen: cannot listen on {where} ({why}); choose another port, or stop the process that "
                "has it."
            ) from None
        self.listener = replace(self.listener, port=listening.getsockname()[1])
        await self._visitors.start(self._app, listening, context, keepalive_timeout=IDLE_S, shutdown_timeout=SHUTDOWN_S)

    async def stop(self) -> None:
        """End all streams and close the listener."""
        await self._visitors.stop()

    @property
    def _cookie_name(self) -> str:
        return f"fedpeer-{self.listener.port}"

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Run the checks in their order, then the handler."""
        if self.listener.certificate is None and not from_loopback(request.headers.get("Host", "")):
            raise web.HTTPMisdirectedRequest(text="This dashboard answers to localhost, 127.0.0.1 and [::1] only.\n")
        if self._requests >= REQUESTS_MAX:
            raise web.HTTPServiceUnavailable(text="Too many requests at once.\n", headers={"Retry-After": "1"})
        self._requests += 1
        try:
            return await (handler(request) if request.path == _OPEN or self._knows(request) else self._login(request))
        finally:
            self._requests -= 1

    def _knows(self, request: web.Request) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and same(given.strip(), self.listener.token):
            return "token" not in request.query or request.path != "/"
        if request.path == "/" and "token" in request.query:
            return False
        return same(request.cookies.get(self._cookie_name, ""), self._cookie)

    async def _login(self, request: web.Request) -> web.StreamResponse:
        """Accept the token in the address of `/` and set the cookie; ask for the token otherwise."""
        given = request.query.get("token")
        if request.path == "/" and given is not None and same(given, self.listener.token):
            answer = web.HTTPSeeOther("/")
            answer.set_cookie(
                self._cookie_name,
                self._cookie,
                httponly=True,
                samesite="Strict",
                secure=self.listener.certificate is not None,
            )
            raise answer
        unauthorized = {"WWW-Authenticate": "Bearer"}
        if request.path == "/":
            return web.Response(
                text=self._texts["login.html"], status=401, content_type="text/html", headers=unauthorized
            )
        raise web.HTTPUnauthorized(text="This needs the dashboard's token.\n", headers=unauthorized)

    async def _page(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._texts["page.html"], content_type="text/html")

    async def _document(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._text(), content_type="application/json")

    async def _prometheus(self, _request: web.Request) -> web.StreamResponse:
        if self._metrics is None:
            raise web.HTTPNotFound(text="dashboard.metrics is false in this peer's file.\n")
        body, kind = self._metrics()
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """Stream the status, now and once a second, until the visitor leaves or the peer stops."""
        if self.streams >= STREAMS_MAX:
            raise web.HTTPServiceUnavailable(
                text="Too many windows show this dashboard.\n", headers={"Retry-After": "5"}
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        self.streams += 1
        try:
            await response.prepare(request)
            while True:
                async with asyncio.timeout(PATIENCE_S):
                    await response.write(self._next_event())
                await asyncio.sleep(self._every_s)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()  # drop what a slow reader has not read
        finally:
            self.streams -= 1
        return response

    def _text(self) -> str:
        return json.dumps(self._status(), allow_nan=False, separators=(",", ":"))

    def _next_event(self) -> bytes:
        """Return the status as an event; streams that ask within half a period share one."""
        now = asyncio.get_running_loop().time()
        if now >= self._event_until:
            self._event = f"retry: 1000\ndata: {self._text()}\n\n".encode()
            self._event_until = now + self._every_s / 2
        return self._event
