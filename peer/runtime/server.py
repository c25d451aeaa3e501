"""Server of the peer port: HTTP requests become messages, or rejections, which are answered and counted only.

Cheap checks come first: the sender (TLS), its rate, the request (route, length), then head and metadata, by the codec.
Only then a buffer is taken and the tensor read straight into it, in chunks. The whole body is never read at once: that
is several times slower, and would let the sender decide how much memory we use.

The server decides nothing about messages. It passes each valid one to its `Host`, with the lease of its buffer, and
answers 204; a rejection is answered with a `RejectMessage`, and the connection is closed if the body was not read.
aiohttp handles HTTP; compressed bodies are not decompressed (`auto_decompress=False`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from fedpeer.gossip.transfers import WINDOW
from fedpeer.peer.runtime.buffers import BufferPool, Lease
from fedpeer.peer.runtime.limits import READ_AHEAD_BYTES, Allowance, Limits, pace
from fedpeer.peer.runtime.listener import Listener
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_policy import MessagePolicy
from fedpeer.peer.wire.message_spec import Envelope, ParsedMetadata
from fedpeer.peer.wire.messages import Message, RejectMessage, RosterNews
from fedpeer.rejection import Rejection, RejectionError

ROUTE, CONTENT_TYPE = "/v1/message", "application/octet-stream"
#: Headers that would change the meaning of the body or the connection; rejected before the body is read.
_UNWANTED = ("Content-Encoding", "Expect", "Upgrade")
#: Most bytes of an update or a model that are hashed on the event loop, in some 2 ms; larger ones need a thread.
HASHED_AT_ONCE_BYTES = 1 << 20
#: Most characters of the request line and of a header, and most headers; ours has five short ones.
_LINE_MAX, _HEADERS_MAX = 1024, 32
#: Seconds that open requests get to finish when the server stops, and again to be cancelled; a peer has 5 in all.
_STOP_S = 1.0
#: Replaces aiohttp's log of what strangers do: the host counts rejections and logs them with limits.
_SILENT = logging.Logger("fedpeer.http", logging.CRITICAL)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Callbacks from the server to its peer. None of them may block or wait.

    identify    returns the peer with this certificate (DER); called for each request, so that revoking works at once
    listens     returns whether this peer's messages are accepted at all (see `reputation.py`)
    policy      returns the policy for messages of this peer; None, without TLS: of the sender that the envelope names
    deliver     takes a message and the lease that holds its tensors, to be released when they are no longer needed; or
                raises an AnsweredRejectionError, if an answer by another way might not reach the sender
    rejected    counts a rejection; its sender is "" for a stranger
    broken      logs a bug of ours met while a message of this sender is handled; the message is then rejected
    farewell    returns the roster that revoked the owner of this certificate; None if it never was a member
    expects     returns whether a member may come from this address
    """

    identify: Callable[[bytes | None], str | Rejection]
    listens: Callable[[str], bool]
    policy: Callable[[str | None], MessagePolicy]
    deliver: Callable[[str, Envelope, Message, Lease], None]
    rejected: Callable[[Rejection], None]
    broken: Callable[[Exception, str], None]
    farewell: Callable[[bytes | None], RosterNews | None] = lambda certificate: None
    expects: Callable[[str], bool] = lambda address: False


class AnsweredRejectionError(RejectionError):
    """A rejection with the message to answer instead of the usual `RejectMessage`."""

    def __init__(self, rejection: Rejection, answer: RejectMessage | RosterNews) -> None:
        super().__init__(rejection)
        self.answer = answer


_Good = TypeVar("_Good")


def _good(found: _Good | Rejection) -> _Good:
    if isinstance(found, Rejection):
        raise RejectionError(found)
    return found


def _rejected(code: str, text: str, group: str = "") -> RejectionError:
    return RejectionError(Rejection(code, text, group=group))


@dataclass(slots=True)
class _Visit:
    """One request, and what was read of it so far.

    sender        id of the peer; "": not known yet
    incarnation   of the sender
    version       of the wire
    entered       whether it counts among the sender's requests in progress
    """

    request: web.BaseRequest
    sender: str = ""
    incarnation: int = 0
    version: int = 0
    entered: bool = False


class PeerServer:
    """Receives messages on one listening socket from `start` to `stop`."""

    def __init__(self, host: Host, pool: BufferPool, limits: Limits | None = None) -> None:
        self._host, self._pool, self._limits = host, pool, limits or Limits()
        self._at_once: Counter[str] = Counter()
        self._rates: dict[str, Allowance] = {}

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Begin to accept. Without `tls` the socket has to be on loopback (`bind_socket(..., plain=True)`)."""
        loop = asyncio.get_running_loop()
        self._all = Allowance(self._limits.requests_per_second_of_all, loop.time())
        self._farewells = Allowance(self._limits.farewells_per_second, loop.time())
        self._web = web.Server(self._answer)

        def speak() -> web.RequestHandler:
            return _Speaker(self._web, self._host, self._limits)

        self._listener = Listener(
            speak,
            self._owner,
            self._host.rejected,
            tls,
            self._limits,
            departs=lambda transport: self._host.farewell(_certificate(transport)) is not None,
            expects=self._host.expects,
        )
        self._listening = listening
        self._accepting = asyncio.create_task(self._listener.run(listening))

    def review(self) -> None:
        """Apply a new roster: end the connections of peers that are no longer in it."""
        self._listener.review()

    async def stop(self) -> None:
        """Stop accepting, let open requests finish, and close all connections."""
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._listening.close()
        self._web.pre_shutdown()
        await self._web.shutdown(_STOP_S)

    def _owner(self, transport: asyncio.BaseTransport) -> str | Rejection:
        """Return the peer at the other end; "" without TLS."""
        if transport.get_extra_info("ssl_object") is None:
            return ""
        return self._host.identify(_certificate(transport))

    # --------------------------------------------------------------------------------------------------- one request

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if self._listener.sent_away(request.transport):
            return web.Response(status=403)
        visit = _Visit(request)
        try:
            await self._take(visit)
        except RejectionError as error:
            return self._refusal(visit, error)
        except Exception as error:
            self._host.broken(error, visit.sender)
            return self._refusal(visit, RejectionError(Rejection("internal_error")))
        finally:
            if visit.entered:
                self._at_once -= Counter({visit.sender: 1})
        return web.Response(status=204)

    async def _take(self, visit: _Visit) -> None:
        request, host = visit.request, self._host
        if not self._all.take(asyncio.get_running_loop().time()):
            raise _rejected("too_many_requests", "more requests per second than one core can answer")
        if request.transport is not None and request.get_extra_info("ssl_object") is not None:
            self._enter(visit, self._identified(_certificate(request.transport)))
        policy = host.policy(visit.sender or None)
        length = _checked(request, policy)
        try:
            async with pace(self._limits) as moved:
                await self._read(visit, _Body(request.content, moved), length, policy)
        except TimeoutError:
            raise _rejected("body_too_slow", f"{length} bytes announced") from None

    def _identified(self, certificate: bytes | None) -> str:
        """Return the peer with this certificate; a revoked one gets the roster that revoked it as its answer."""
        who = self._host.identify(certificate)
        if isinstance(who, str):
            return who
        allowed = self._farewells.take(asyncio.get_running_loop().time())
        news = self._host.farewell(certificate) if allowed else None
        raise RejectionError(who) if news is None else AnsweredRejectionError(who, news)

    def _enter(self, visit: _Visit, sender: str) -> None:
        """Count a request of this sender; raise RejectionError if it may not have one more."""
        limits, now = self._limits, asyncio.get_running_loop().time()
        visit.sender = sender
        if not self._host.listens(sender):
            raise _rejected("too_many_requests", "this edge is paused because of earlier messages")
        if self._at_once[sender] >= limits.requests_at_once:
            raise _rejected("too_many_requests", f"more than {limits.requests_at_once} at once")
        if sender not in self._rates:
            self._rates[sender] = Allowance(limits.requests_per_second, now)
        if not self._rates[sender].take(now):
            raise _rejected("too_many_requests", f"more than {limits.requests_per_second:.0f} per second")
        self._at_once[sender] += 1
        visit.entered = True

    async def _read(self, visit: _Visit, body: _Body, length: int, policy: MessagePolicy) -> None:
        head = _good(codec.parse_head(await body.exactly(min(codec.HEAD_BYTES, length)), length))
        visit.version = head.version
        parsed = _good(codec.parse_metadata(head, await body.exactly(head.metadata_bytes), policy))
        envelope = parsed.envelope
        visit.incarnation = envelope.incarnation
        if not visit.sender:
            self._enter(visit, envelope.sender)
        lease = self._lease(visit.sender, parsed)
        try:
            await body.into(lease.view)
            if parsed.spec.tail.hashed and length > HASHED_AT_ONCE_BYTES:
                found = await asyncio.to_thread(codec.finish, parsed, lease.view)
            else:
                found = codec.finish(parsed, lease.view)
            if isinstance(found, Rejection):
                raise RejectionError(found)
            self._host.deliver(visit.sender, envelope, found, lease)
        except BaseException:
            lease.release()
            raise

    def _lease(self, sender: str, parsed: ParsedMetadata) -> Lease:
        """Return a buffer for the tail. Those of transfers are kept: they come again and again with the same length."""
        limits, length = self._limits, parsed.tail_bytes
        if parsed.spec.buffers == "kept":
            lease = self._pool.lease(sender, parsed.group, length, most=WINDOW + 1, kept=True)
        elif length:
            channel = f"{parsed.kind.__name__} {parsed.group}"
            most = limits.ballots_waiting if parsed.spec.buffers == "several" else limits.large_waiting
            lease = self._pool.lease(sender, channel, length, most=most, kept=False)
        else:
            lease = self._pool.lease(sender, "", 0, most=limits.small_waiting, kept=False)
        if lease is None:
            raise _rejected("too_many_requests", "earlier messages are not processed yet", parsed.group)
        return lease

    def _refusal(self, visit: _Visit, error: RejectionError) -> web.Response:
        """Count the rejection and return the response: a frame like any other."""
        why = error.rejection
        answer = error.answer if isinstance(error, AnsweredRejectionError) else codec.rejection_message(why)
        self._host.rejected(replace(why, sender=visit.sender))
        policy = self._host.policy(visit.sender or None)
        envelope = Envelope(
            federation=policy.federation,
            sender=policy.me,
            recipient=visit.sender or "stranger",
            incarnation=policy.incarnation,
            to_incarnation=visit.incarnation,
            version=visit.version or policy.version,
        )
        head, tail = codec.encode(envelope, answer)
        response = web.Response(status=_STATUS.get(why.code, 400), body=head + bytes(tail), content_type=CONTENT_TYPE)
        if why.code == "unknown_peer":
            response.force_close()
        return response


def _certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """Return the other side's certificate (DER); None without TLS."""
    tls = transport.get_extra_info("ssl_object")
    return None if tls is None else tls.getpeercert(binary_form=True)


def _checked(request: web.BaseRequest, policy: MessagePolicy) -> int:
    """Return the length of the body; raise RejectionError unless method, path and headers are those of peers."""
    options = request.method, request.raw_path, request.headers.get("Content-Type")
    if options != ("POST", ROUTE, CONTENT_TYPE):
        raise _rejected("unknown_route", " ".join(map(str, options)))
    for name in _UNWANTED:
        if name in request.headers:
            raise _rejected("unknown_route", f"{name}: {request.headers[name]}")
    length, most = request.content_length, codec.frame_bytes_max(policy)
    if length is None:
        raise _rejected("body_too_large", "a body without Content-Length could have any length")
    if length > most:
        raise _rejected("body_too_large", f"{length} bytes; messages between these peers have at most {most}")
    return length


class _Body:
    """The unread part of a request's body; it holds at most one chunk besides the buffer that it fills."""

    def __init__(self, content: StreamReader, moved: Callable[[int], None]) -> None:
        self._content, self._moved = content, moved
        self._rest = memoryview(b"")

    async def exactly(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        taken = bytearray(count)
        await self.into(memoryview(taken))
        return bytes(taken)

    async def into(self, view: memoryview) -> None:
        """Fill the view with the next bytes."""
        filled = 0
        while filled < len(view):
            chunk = self._rest if len(self._rest) else await self._chunk()
            count = min(len(chunk), len(view) - filled)
            view[filled : filled + count] = chunk[:count]
            filled += count
            self._rest = chunk[count:]

    async def _chunk(self) -> memoryview:
        try:
            chunk = await self._content.readany()
        except (OSError, RuntimeError, web.RequestPayloadError) as error:  # RuntimeError: closed before we asked
            raise _rejected("body_truncated", str(error)) from None
        if not chunk:
            raise _rejected("body_truncated", "the connection ended")
        self._moved(len(chunk))
        return memoryview(chunk)


class _Speaker(web.RequestHandler):
    """aiohttp's handler of one connection, with our limits; requests that are not HTTP are counted as well."""

    __slots__ = ("_host",)

    def __init__(self, server: web.Server, host: Host, limits: Limits) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.idle_s,
            access_log=_SILENT,  # not enabled for any level it uses
            logger=_SILENT,
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
