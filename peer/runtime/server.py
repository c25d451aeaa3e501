"""The peer port: HTTP requests become messages, or refusals that are answered, counted and change nothing.

Cheap before dear, outside before inside: who (TLS), how often, what (route, length), then head and metadata, which
the codec judges; only then a buffer is taken and the tensor read straight into it, in chunks. The whole body is never
asked for at once: that is several times slower, and leaves it to the sender how much memory we spend.

The server decides nothing about messages. It hands each good one to its `Host`, with the lease of the buffer that it
lies in, and answers 204; a refusal is answered with a `RejectMessage`, and the connection ends where its body was not
read. aiohttp speaks the HTTP; compressed bodies are not opened (`auto_decompress=False`).
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
#: Headers that would make the body something else than it says, or the connection: refused before reading.
_UNWANTED = ("Content-Encoding", "Expect", "Upgrade")
#: Bytes of an update or a model that are hashed on the loop, in some 2 ms; what is larger is hashed in a thread.
HASHED_AT_ONCE_BYTES = 1 << 20
#: Letters of a request's line and of one header, and the number of headers: ours has five short ones.
_LINE_MAX, _HEADERS_MAX = 1024, 32
#: Seconds that requests under way get to end when the server stops, and then to be cancelled; a peer has 5 in all.
_STOP_S = 1.0
#: aiohttp would log what strangers do; ours is counted, and logged with limits, by the host.
_SILENT = logging.Logger("fedpeer.http", logging.CRITICAL)
#: Status for a refusal, where HTTP has a better one than 400.
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
    """What the server asks the peer it belongs to, and tells it. None of these may block or wait.

    identify    which peer showed this certificate (DER); asked for each request, so that who is put out is out
    listens     whether this peer's messages are taken at all (see `reputation.py`)
    policy        what may come from this peer; None, without TLS: from whoever the envelope names
    deliver     take a message; its tensors lie in the lease, which is to be released when they are no longer needed;
                or raise an AnsweredRejectionError, since an answer by another way might not reach who sent it
    rejected    count a rejection; its sender is "" for a stranger
    broken      told of a mistake of our own while a message of this sender is handled, which is then refused
    farewell    the roster by which whoever showed this certificate was put out; None: it never belonged
    expects     whether a member may come from this address
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
    """A rejection with the message that the sender gets instead of the usual `RejectMessage`."""

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
    """One request: who it turned out to be from, and the incarnation and the version of the wire in which it spoke, as
    far as that was read."""

    request: web.BaseRequest
    sender: str = ""
    incarnation: int = 0
    version: int = 0
    entered: bool = False


class PeerServer:
    """Takes messages on one listening socket from `start` to `stop`."""

    def __init__(self, host: Host, pool: BufferPool, limits: Limits | None = None) -> None:
        self._host, self._pool, self._limits = host, pool, limits or Limits()
        self._at_once: Counter[str] = Counter()
        self._rates: dict[str, Allowance] = {}

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Begin to accept. Without `tls` the socket has to be on loopback (`bind(..., plain=True)`)."""
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
        """The roster is another one: end the connections of who is not in it any more."""
        self._listener.review()

    async def stop(self) -> None:
        """Accept no more, let what is under way end, close all connections."""
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._listening.close()
        self._web.pre_shutdown()
        await self._web.shutdown(_STOP_S)

    def _owner(self, transport: asyncio.BaseTransport) -> str | Rejection:
        """The peer at the other end; "" where there is no TLS to say."""
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
            raise _rejected("too_many_requests", "more a second than one core answers")
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
        """Who it is. Who was put out while nobody could tell it is told now, by the roster itself."""
        who = self._host.identify(certificate)
        if isinstance(who, str):
            return who
        told = self._farewells.take(asyncio.get_running_loop().time())
        news = self._host.farewell(certificate) if told else None
        raise RejectionError(who) if news is None else AnsweredRejectionError(who, news)

    def _enter(self, visit: _Visit, sender: str) -> None:
        """Count a request to a peer, if it may have one more."""
        limits, now = self._limits, asyncio.get_running_loop().time()
        visit.sender = sender
        if not self._host.listens(sender):
            raise _rejected("too_many_requests", "this edge rests after what it sent before")
        if self._at_once[sender] >= limits.requests_at_once:
            raise _rejected("too_many_requests", f"{limits.requests_at_once} at once")
        if sender not in self._rates:
            self._rates[sender] = Allowance(limits.requests_per_second, now)
        if not self._rates[sender].take(now):
            raise _rejected("too_many_requests", f"{limits.requests_per_second:.0f} a second")
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
        """A buffer for the tail. Those of transfers are kept: they come again and again, all of one length."""
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
            raise _rejected("too_many_requests", "earlier ones are not dealt with yet", parsed.group)
        return lease

    def _refusal(self, visit: _Visit, error: RejectionError) -> web.Response:
        """Count, and answer with a frame that the other side can read as it reads any other."""
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
    """(DER) what the other side of a TLS connection showed."""
    tls = transport.get_extra_info("ssl_object")
    return None if tls is None else tls.getpeercert(binary_form=True)


def _checked(request: web.BaseRequest, policy: MessagePolicy) -> int:
    """The length of the body, from a request that is what peers send."""
    options = request.method, request.raw_path, request.headers.get("Content-Type")
    if options != ("POST", ROUTE, CONTENT_TYPE):
        raise _rejected("unknown_route", " ".join(map(str, options)))
    for name in _UNWANTED:
        if name in request.headers:
            raise _rejected("unknown_route", f"{name}: {request.headers[name]}")
    length, most = request.content_length, codec.frame_bytes_max(policy)
    if length is None:
        raise _rejected("body_too_large", "a body without Content-Length may be of any length")
    if length > most:
        raise _rejected("body_too_large", f"{length} bytes, and nothing we share has more than {most}")
    return length


class _Body:
    """What is left of a request's body; holds at most one chunk beside the buffer that it fills."""

    def __init__(self, content: StreamReader, moved: Callable[[int], None]) -> None:
        self._content, self._moved = content, moved
        self._rest = memoryview(b"")

    async def exactly(self, count: int) -> bytes:
        """The next few bytes."""
        taken = bytearray(count)
        await self.into(memoryview(taken))
        return bytes(taken)

    async def into(self, view: memoryview) -> None:
        """Fill the view with what comes next."""
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
    """aiohttp's side of one connection, with our limits; what is not HTTP is counted as well."""

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
        elif exc is not None:  # a mistake of ours: whoever runs the loop decides what becomes of the process
            self._loop.call_exception_handler({"message": "a request could not be handled", "exception": exc})
        answer = web.Response(status=status)
        answer.force_close()
        return answer
