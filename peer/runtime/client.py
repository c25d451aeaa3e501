"""Links to other peers: each frame is sent once as an HTTP post; the node repeats what was lost.

A neighbor has one connection for small messages and one for bulk, so that a ping does not wait behind a model, and two
more of each while packets are lost and answers are late. Each kind has a bounded queue. A frame that is queued or being
sent is not queued again; one that is stuck is, for another connection. A full queue drops its oldest frame. Everything
has a time limit (`limits.py`), and after a failure a neighbor is not tried again for a moment. `report` passes on what
became of a frame: delivered, rejected, or the link is down.

The TLS handshake checks the other side's identity (`identity.client_context`) before a byte of ours is sent. Plain HTTP
is for loopback only, and only if no TLS is configured.
"""

from __future__ import annotations

import asyncio
import errno
import math
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import (
    ClientError,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    Payload,
    ServerDisconnectedError,
    StreamReader,
    TCPConnector,
)
from aiohttp.abc import AbstractStreamWriter

from fedpeer.config.address import PeerUrl
from fedpeer.peer.runtime.limits import CHUNK_BYTES, Limits, pace
from fedpeer.peer.runtime.listener import expect_loss, require_loopback
from fedpeer.peer.runtime.reasons import link_reason
from fedpeer.peer.runtime.server import CONTENT_TYPE, ROUTE
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.messages import RejectMessage, RosterNews

#: Bytes of tail above which a message is bulk: a little more than a slow link (1 Mbit/s) carries in a tick of 25 ms.
BULK_BYTES = 4096
#: Bytes that the kernel may still buffer when a body seems to have left: as much as it allows on a slow link.
_KERNEL_BYTES = 1 << 20
#: Seconds that an unused connection stays open; less than the other side keeps it open.
_KEEP_S = 60.0
#: Headers that aiohttp would add and nobody reads.
_NEEDLESS = ("Accept", "Accept-Encoding", "User-Agent")


@dataclass(frozen=True, slots=True)
class DeliveryReceipt:
    """The other side has the message: its bytes on the wire, and seconds until the answer."""

    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LinkDown:
    """It is not known whether the message arrived. `reason` is a sentence; `refused`: nobody listens there."""

    reason: str
    refused: bool = False


#: A peer that was revoked gets as its answer the roster that revoked it.
Outcome = DeliveryReceipt | RejectMessage | RosterNews | LinkDown


@dataclass(slots=True)
class _Queue:
    """Frames of one kind, by their heads: two frames with the same head are the same message.

    stale_s   seconds after which a waiting frame is not worth sending
    waiting   address, tail, and time of queueing
    urgent    the same, of frames that go before all others
    leaving   frames being sent, and on how many connections
    tasks     one for each connection in use
    moved     time when a frame last began or ended sending, or a connection was added
    """

    stale_s: float
    waiting: dict[bytes, tuple[str, memoryview, float]] = field(default_factory=dict)
    urgent: dict[bytes, tuple[str, memoryview, float]] = field(default_factory=dict)
    leaving: Counter[bytes] = field(default_factory=Counter)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    moved: float = 0.0


@dataclass(slots=True)
class _Link:
    """One neighbor.

    rest         seconds of the current pause after a failure; 0: none
    rest_until   time until which it is not tried
    woken        when a message from it last ended a pause
    failure      reason of the last failure
    """

    tls: ssl.SSLContext | None
    small: _Queue
    bulk: _Queue
    rest: float = 0.0
    rest_until: float = 0.0
    woken: float = -math.inf
    failure: str = ""


class PeerLinks:
    """All links of one peer. Create and close it on the running event loop.

    contexts   returns the TLS context for a peer, called once for each; None: plain HTTP, to loopback only
    report     receives what became of a frame to a peer; called on the loop, must not block
    """

    def __init__(
        self,
        contexts: Callable[[str], ssl.SSLContext | None],
        report: Callable[[str, Outcome], None],
        limits: Limits | None = None,
    ) -> None:
        self._contexts, self._report, self._limits = contexts, report, limits or Limits()
        self._links: dict[str, _Link] = {}
        self._session = ClientSession(
            connector=TCPConnector(
                limit=self._limits.connections,
                limit_per_host=2 * self._limits.at_once,
                keepalive_timeout=_KEEP_S,
                socket_factory=lambda info: _socket(info, self._limits),
            ),
            timeout=ClientTimeout(total=None, sock_connect=self._limits.connect_s),
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_NEEDLESS,
        )

    def send(self, peer: str, address: str, head: bytes, tail: memoryview, *, urgent: bool = False) -> None:
        """Queue one frame (`codec.encode`) for the peer at this URL. The tail must not change until it is reported.

        An `urgent` frame is sent before the small ones, however long its tail is: on an overloaded machine a
        coordinator whose heartbeats wait behind pings seems dead.

        Raises ListenError if this is plain HTTP beyond loopback.
        """
        limits, now = self._limits, asyncio.get_running_loop().time()
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _Link(self._contexts(peer), _Queue(limits.stale_s), _Queue(math.inf))
        try:
            url = PeerUrl.read(address)  # addresses come from claims, which must not lead elsewhere or switch TLS off
        except ValueError as error:
            self._report(peer, LinkDown(f"it has no valid address: {error}"))
            return
        if link.tls is None:
            require_loopback(url.host)
        elif url.scheme != "https":
            self._report(peer, LinkDown(f"its address is {address}, and this peer uses TLS only"))
            return
        queue = link.bulk if len(tail) > BULK_BYTES and not urgent else link.small
        stuck = bool(queue.tasks) and now - queue.moved > limits.stalled_s
        waiting = queue.urgent if urgent else queue.waiting
        if head in waiting or (head in queue.leaving and not stuck):
            return
        if len(waiting) >= limits.queue:
            del waiting[next(iter(waiting))]
            self._report(peer, LinkDown("it accepts messages more slowly than they are made; the oldest was dropped"))
        waiting[head] = str(url), tail, now
        if not queue.tasks or (stuck and len(queue.tasks) < limits.at_once):
            queue.moved = now
            queue.tasks.add(asyncio.create_task(self._drain(peer, link, queue)))

    def received(self, peer: str) -> None:
        """End the pause of a peer that has sent something: it was just started, or a link is back.

        At most once in the longest pause, since it may be that only the direction from it works.
        """
        link, now = self._links.get(peer), asyncio.get_running_loop().time()
        if link is not None and now < link.rest_until and now - link.woken >= self._limits.backoff_max_s:
            link.rest_until, link.woken = now, now

    def forget(self, peer: str) -> None:
        """Drop a peer's queued frames and its TLS context: it left, or its key changed."""
        link = self._links.pop(peer, None)
        for queue in (link.small, link.bulk) if link else ():
            queue.waiting.clear()
            queue.urgent.clear()
            for task in queue.tasks:
                task.cancel()

    async def close(self) -> None:
        """End all connections; queued frames are dropped without a report."""
        tasks = [task for link in self._links.values() for queue in (link.small, link.bulk) for task in queue.tasks]
        for peer in list(self._links):
            self.forget(peer)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()

    async def _drain(self, peer: str, link: _Link, queue: _Queue) -> None:
        """Send the queued frames one after another until the queue is empty."""
        loop = asyncio.get_running_loop()
        while waiting := queue.urgent or queue.waiting:
            head = next(iter(waiting))
            address, tail, since = waiting.pop(head)
            if loop.time() - since > queue.stale_s:
                continue
            outcome: Outcome = LinkDown(link.failure)
            if loop.time() >= link.rest_until:
                queue.leaving[head] += 1
                queue.moved = loop.time()
                outcome = await self._post(link.tls, address, _Frame(head, tail))
                queue.moved = loop.time()
                queue.leaving -= Counter({head: 1})
                self._judge(link, outcome, loop.time())
            self._report(peer, outcome)
        task = asyncio.current_task()
        assert task is not None, "it runs as one"
        queue.tasks.discard(task)  # at once: a frame that is queued from now on needs another task

    def _judge(self, link: _Link, outcome: Outcome, now: float) -> None:
        """Pause the link after a failure, twice as long after each further one."""
        limits = self._limits
        if isinstance(outcome, LinkDown):
            link.rest = min(2 * link.rest or limits.backoff_s, limits.backoff_max_s)
            link.failure = outcome.reason
        else:
            link.rest = 0.0
        link.rest_until = now + link.rest

    async def _post(self, tls: ssl.SSLContext | None, address: str, frame: _Frame) -> Outcome:
        loop = asyncio.get_running_loop()
        began = loop.time()
        slack = self._limits.answer_s + min(frame.size, _KERNEL_BYTES) / self._limits.floor_bytes_per_s
        try:
            async with (
                pace(self._limits, slack) as frame.moved,
                self._session.post(f"{address}{ROUTE}", data=frame, ssl=tls or True, allow_redirects=False) as answer,
            ):
                if answer.status == 204:
                    return DeliveryReceipt(frame.size, loop.time() - began)
                answered = codec.decode_answer(await _at_most(answer.content, codec.ANSWER_BYTES_MAX))
                return answered or LinkDown(f"it answered {answer.status}, which no peer does")
        except TimeoutError:
            return LinkDown("it did not answer in time")
        except ServerDisconnectedError:
            return LinkDown("it closed the connection without an answer; its roster may not have this peer yet")
        except (ClientError, OSError, ValueError) as error:
            return LinkDown(link_reason(error), refused=getattr(error, "errno", None) == errno.ECONNREFUSED)


class _Frame(Payload):
    """A frame as an aiohttp request body: written in chunks, without a copy of the whole."""

    def __init__(self, head: bytes, tail: memoryview) -> None:
        super().__init__(head, content_type=CONTENT_TYPE)
        self._tail = tail
        self.moved: Callable[[int], None] = lambda count: None

    @property
    def size(self) -> int:
        return len(self._value) + len(self._tail)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise TypeError("a frame is not text")

    async def write(self, writer: AbstractStreamWriter) -> None:
        await writer.write(self._value)
        for start in range(0, len(self._tail), CHUNK_BYTES):
            chunk = self._tail[start : start + CHUNK_BYTES]
            await writer.write(chunk)
            self.moved(len(chunk))


async def _at_most(content: StreamReader, most: int) -> bytes:
    """Return the body of an answer, up to `most` bytes of it."""
    body = b""
    while len(body) < most and (chunk := await content.read(most - len(body))):
        body += chunk
    return body


def _socket(info: Any, limits: Limits) -> socket.socket:
    """Return a socket on which the kernel, where it can, detects a dead connection."""
    family, kind, protocol, _, _ = info
    made = socket.socket(family, kind, protocol)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.answer_s * 1000))
    expect_loss(made)
    return made
