"""Server of the peer port: HTTP requests become messages, or rejections, which are answered and counted only.

A request has one message as its body, which `admission.py` takes: the answer is 204, or a rejection, and then the
connection is closed if the body was not read. Or it asks for a connection that carries messages both ways
(`two_way.py`). aiohttp handles HTTP; compressed bodies are not decompressed (`auto_decompress=False`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import weakref
from collections.abc import Iterable
from functools import partial

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from fedpeer.peer.runtime.admission import Host, MessageAdmission, Visit, rejected, within_bound
from fedpeer.peer.runtime.buffers import BufferPool
from fedpeer.peer.runtime.http_connection import SILENT, HttpConnection
from fedpeer.peer.runtime.limits import READ_AHEAD_BYTES, Limits
from fedpeer.peer.runtime.listener import Listener
from fedpeer.peer.runtime.two_way import HEARTBEAT_S, RECORD_BYTES_MAX, TwoWayLink
from fedpeer.peer.wire.message_policy import MessagePolicy
from fedpeer.rejection import Rejection

ROUTE, CONTENT_TYPE = "/v1/message", "application/octet-stream"
#: Path at which a connection for both directions begins.
LINK_ROUTE = "/v2/link"
#: Headers that would change the meaning of the body or the connection; rejected before the body is read.
_UNWANTED = ("Content-Encoding", "Expect", "Upgrade")
#: Most characters of the request line and of a header, and most headers; ours has five short ones.
_LINE_MAX, _HEADERS_MAX = 1024, 32
#: Seconds that open requests get to finish when the server stops, and again to be cancelled; a peer has 5 in all.
_STOP_S = 1.0
#: HTTP status of a rejection by its code, if there is a better one than 400.
_STATUS = {
    "unknown_peer": 403,
    "sender_mismatch": 403,
    "unknown_route": 404,
    "body_too_slow": 408,
    "body_too_large": 413,
    "too_many_requests": 429,
    "internal_error": 500,
}


class PeerServer:
    """Receives messages from `start` to `stop`, on a listening socket if it has one, and on connections it is given."""

    def __init__(self, host: Host, pool: BufferPool, limits: Limits | None = None) -> None:
        self.admission = MessageAdmission(host, pool, limits or Limits())
        self._started = False
        self._accepting: asyncio.Task[None] | None = None
        self._links = weakref.WeakSet[TwoWayLink]()

    async def start(self, listening: socket.socket | None, tls: ssl.SSLContext | None) -> None:
        """Begin to accept. Without `tls` the socket has to be on loopback (`bind_socket(..., plain=True)`)."""
        self._started, self._encrypted = True, tls is not None
        self._web = web.Server(self._answer)

        def speak() -> HttpConnection:
            return _Speaker(self._web, self.admission.host, self.admission.limits)

        self._listener = Listener(
            speak,
            self._owner,
            self.admission.host.rejected,
            tls,
            self.admission.limits,
            departs=lambda transport: self.admission.host.farewell(_certificate(transport)) is not None,
            expects=self.admission.host.expects,
        )
        self._listening = listening
        if listening is not None:
            self._accepting = asyncio.create_task(self._listener.run(listening))

    @property
    def reached(self) -> str | None:
        """The first member that has connected to it, "" without TLS; None: nobody has."""
        return self._listener.reached if self._started else None

    def take(self, connection: socket.socket, carrier: str) -> None:
        """Take a connection that another peer carries to this one."""
        self._listener.take_carried(connection, carrier)

    def review(self, gone: Iterable[str], limits: Limits) -> None:
        """Apply a new roster and its limits: end the connections of the peers that are gone, and free their buffers."""
        for peer in gone:
            self.admission.forget(peer)
        if self._started:
            self._listener.review(limits)

    async def stop(self) -> None:
        """Stop accepting, let open requests finish, and close all connections."""
        if not self._started:
            return
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        await self._listener.end()
        if self._listening is not None:
            self._listening.close()
        await asyncio.gather(*(link.close() for link in self._links))
        self._web.pre_shutdown()
        await self._web.shutdown(_STOP_S)

    def _owner(self, transport: asyncio.BaseTransport) -> str | Rejection:
        """Return the peer at the other end; "" without TLS."""
        return self.admission.host.identify(_certificate(transport)) if self._encrypted else ""

    # --------------------------------------------------------------------------------------------------- one request

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._listener.sent_away(request.transport):
            return web.Response(status=403)
        if self._encrypted and (request.method, request.raw_path) == ("GET", LINK_ROUTE):
            return await self._linked(request)
        certificate = _certificate(request.transport) if self._encrypted else None
        visit = Visit()
        answer = await self.admission.take(
            visit, certificate, partial(_announced, request), partial(_chunk, request.content)
        )
        if visit.rejection is None:
            return web.Response(status=204)
        code = visit.rejection.code
        response = web.Response(status=_STATUS.get(code, 400), body=answer, content_type=CONTENT_TYPE)
        if code == "unknown_peer":
            response.force_close()
        return response

    async def _linked(self, request: web.BaseRequest) -> web.StreamResponse:
        """Run a connection for both directions until it ends; refuse it without TLS, since the client is not known."""
        host, certificate = self.admission.host, _certificate(request.transport)
        who = host.identify(certificate)
        if isinstance(who, Rejection) or not host.listens(who):
            host.rejected(who if isinstance(who, Rejection) else Rejection("too_many_requests", "a paused edge", who))
            return web.Response(status=403)
        opened = web.WebSocketResponse(
            compress=False, max_msg_size=RECORD_BYTES_MAX, heartbeat=HEARTBEAT_S, timeout=_STOP_S
        )
        try:
            await opened.prepare(request)
        except (web.HTTPException, OSError, RuntimeError) as error:
            host.rejected(Rejection("unknown_route", f"no WebSocket: {error}", who))
            return web.Response(status=400)
        link = TwoWayLink(
            opened,
            partial(self.admission.take_over, certificate),
            partial(self.admission.strange, who),
            self.admission.limits,
            opened=False,
            begun=partial(host.begun, who),
        )
        self._links.add(link)
        host.linked(who, link)
        await link.run()
        return opened


def _certificate(transport: asyncio.BaseTransport | None) -> bytes:
    """Return the other side's certificate (DER); nothing if the connection has ended, which is nobody's."""
    tls = transport.get_extra_info("ssl_object") if transport is not None else None
    return (tls.getpeercert(binary_form=True) if tls is not None else None) or b""


def _announced(request: web.BaseRequest, policy: MessagePolicy) -> int:
    """Return the length of the body; raise RejectionError unless method, path and headers are those of peers."""
    head = request.method, request.raw_path, request.headers.get("Content-Type")
    if head != ("POST", ROUTE, CONTENT_TYPE):
        raise rejected("unknown_route", " ".join(map(str, head)))
    for name in _UNWANTED:
        if name in request.headers:
            raise rejected("unknown_route", f"{name}: {request.headers[name]}")
    if request.content_length is None:
        raise rejected("body_too_large", "a body without Content-Length could have any length")
    return within_bound(request.content_length, policy)


async def _chunk(content: StreamReader) -> bytes:
    """Return the next bytes of a request's body."""
    try:
        return await content.readany()
    except (OSError, RuntimeError, web.RequestPayloadError) as error:  # RuntimeError: closed before we asked
        raise rejected("body_truncated", str(error)) from None


class _Speaker(HttpConnection):
    """aiohttp's handler of one connection, with our limits; requests that are not HTTP are counted as well."""

    __slots__ = ("_host",)

    def __init__(self, server: web.Server, host: Host, limits: Limits) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.idle_s,
            access_log=SILENT,
            logger=SILENT,
            max_line_size=_LINE_MAX,
            max_field_size=_LINE_MAX,
            max_headers=_HEADERS_MAX,
            lingering_time=0,
            read_bufsize=READ_AHEAD_BYTES,
            auto_decompress=False,
        )
        self._host = host

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if isinstance(exc, HttpProcessingError):
            self._host.rejected(Rejection("unknown_route", f"not an HTTP request: {message}"))
        elif exc is not None:  # a bug of ours: the owner of the loop decides whether the process goes on
            self._loop.call_exception_handler({"message": "a request could not be handled", "exception": exc})
        answer = web.Response(status=status)
        answer.force_close()
        return answer
