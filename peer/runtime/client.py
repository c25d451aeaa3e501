"""Links to other peers: frames go out as HTTP posts, each once; who repeats what was lost is the core.

A neighbour has a connection for small messages and one for bulk, so that a ping does not wait behind a model, and two
more of each while packets are lost and every other answer is late. Each kind has a bounded queue. What stands in it or
is just leaving is not queued again; what is stuck on its way is, for another connection. When a queue is full the
oldest gives way. Everything has a time limit (`limits.py`), and a neighbour that cannot be reached rests for a moment.
What became of a frame is told by `report`: taken, refused by name, or the link is down.

That the other side is who it should be is checked in the TLS handshake (`identity.client_context`), before a byte of
ours is sent. Plain HTTP goes to loopback only, and only where no TLS is asked for at all.
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
from urllib.parse import urlsplit

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

from fedpeer.peer.runtime.limits import CHUNK_BYTES, Limits, pace
from fedpeer.peer.runtime.listener import expect_loss, require_loopback
from fedpeer.peer.runtime.reasons import link_reason
from fedpeer.peer.runtime.server import CONTENT_TYPE, ROUTE
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.messages import RejectMessage, RosterNews

#: Bytes of tail from which a message is bulk: what a slow link (1 Mbit/s) carries in one tick of 25 ms, and some.
BULK_BYTES = 4096
#: Bytes that a kernel may hold of ours when a body seems to have left: as much as it gives a slow link.
_KERNEL_BYTES = 1 << 20
#: Seconds that an unused connection stays open; less than the other side keeps it.
_KEEP_S = 60.0
#: Headers that aiohttp would add and nobody reads.
_NEEDLESS = ("Accept", "Accept-Encoding", "User-Agent")


@dataclass(frozen=True, slots=True)
class DeliveryReceipt:
    """The other side has the message: its bytes on the wire, and seconds until it said so."""

    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LinkDown:
    """Nobody knows whether it arrived: why, as a sentence; `refused`: since nobody listens there."""

    reason: str
    refused: bool = False


#: A roster is the answer to who was put out by it.
Outcome = DeliveryReceipt | RejectMessage | RosterNews | LinkDown


@dataclass(slots=True)
class _Queue:
    """Frames of one kind, by their heads: two frames with one head are one message.

    stale_s   seconds after which one that waits is not worth sending
    waiting   address, tail, and since when; `urgent`: the same of those that go before all others
    moved     when one last began to leave, or left, or a connection more was taken
    """

    stale_s: float
    waiting: dict[bytes, tuple[str, memoryview, float]] = field(default_factory=dict)
    urgent: dict[bytes, tuple[str, memoryview, float]] = field(default_factory=dict)
    leaving: Counter[bytes] = field(default_factory=Counter)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    moved: float = 0.0


@dataclass(slots=True)
class _Link:
    """One neighbour. After a failure, for the reason `failure`, it rests until `rest_until`, and `rest` is how long;
    `woken` is when it was last heard while it rested, and tried at once for that."""

    tls: ssl.SSLContext | None
    small: _Queue
    bulk: _Queue
    rest: float = 0.0
    rest_until: float = 0.0
    woken: float = -math.inf
    failure: str = ""


class PeerLinks:
    """All links of one peer. To be made on the running loop, and closed there.

    contexts   TLS to this peer, made once for each; None: plain HTTP, to loopback only
    report     what became of a frame to a peer; called on the loop, must not block
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

        One that is `urgent` goes with the small ones, however long its tail is, and before them: on a machine that has
        no time for all of its messages a heartbeat that waits behind pings is a coordinator that seems dead.

        Raises ListenError where this is plain HTTP beyond loopback.
        """
        limits, now = self._limits, asyncio.get_running_loop().time()
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _Link(self._contexts(peer), _Queue(limits.stale_s), _Queue(math.inf))
        if link.tls is None:
            require_loopback(urlsplit(address).hostname or "")
        elif not address.startswith("https://"):  # an address comes from a claim; it cannot talk us out of TLS
            self._report(peer, LinkDown(f"its address is {address}, and we speak TLS only"))
            return
        queue = link.bulk if len(tail) > BULK_BYTES and not urgent else link.small
        stuck = bool(queue.tasks) and now - queue.moved > limits.stalled_s
        waiting = queue.urgent if urgent else queue.waiting
        if head in waiting or (head in queue.leaving and not stuck):
            return
        if len(waiting) >= limits.queue:
            del waiting[next(iter(waiting))]
            self._report(peer, LinkDown("it takes messages slower than they are made; the oldest was dropped"))
        waiting[head] = address, tail, now
        if not queue.tasks or (stuck and len(queue.tasks) < limits.at_once):
            queue.moved = now
            queue.tasks.add(asyncio.create_task(self._drain(peer, link, queue)))

    def received(self, peer: str) -> None:
        """End the rest of a peer from which something came: it has just been started, or a link is back.

        Once in the longest rest, since it may be that only the way from it works.
        """
        link, now = self._links.get(peer), asyncio.get_running_loop().time()
        if link is not None and now < link.rest_until and now - link.woken >= self._limits.backoff_max_s:
            link.rest_until, link.woken = now, now

    def forget(self, peer: str) -> None:
        """Drop what waits for a peer, and its TLS context: it left, or its key changed."""
        link = self._links.pop(peer, None)
        for queue in (link.small, link.bulk) if link else ():
            queue.waiting.clear()
            queue.urgent.clear()
            for task in queue.tasks:
                task.cancel()

    async def close(self) -> None:
        """End all connections; what waits is dropped without a report."""
        tasks = [task for link in self._links.values() for queue in (link.small, link.bulk) for task in queue.tasks]
        for peer in list(self._links):
            self.forget(peer)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()

    async def _drain(self, peer: str, link: _Link, queue: _Queue) -> None:
        """Send what waits, one after another, until nothing does."""
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
        queue.tasks.discard(task)  # at once: what is queued from now on needs another

    def _judge(self, link: _Link, outcome: Outcome, now: float) -> None:
        """Rest after a failure, twice as long after each further one."""
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
                said = codec.decode_answer(await _at_most(answer.content, codec.ANSWER_BYTES_MAX))
                return said or LinkDown(f"it answered {answer.status}, not as a peer does")
        except TimeoutError:
            return LinkDown("it did not answer, or too slowly")
        except ServerDisconnectedError:
            return LinkDown("it ended the connection without an answer; its roster may not have this peer (yet)")
        except (ClientError, OSError, ValueError) as error:
            return LinkDown(link_reason(error), refused=getattr(error, "errno", None) == errno.ECONNREFUSED)


class _Frame(Payload):
    """A frame as aiohttp takes a body: written piece by piece, without a copy of the whole."""

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
    """The body of an answer, or as much of it as an answer can have."""
    body = b""
    while len(body) < most and (chunk := await content.read(most - len(body))):
        body += chunk
    return body


def _socket(info: Any, limits: Limits) -> socket.socket:
    """A socket on which the kernel itself notices, where it can, that nothing arrives any more."""
    family, kind, protocol, _, _ = info
    made = socket.socket(family, kind, protocol)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.answer_s * 1000))
    expect_loss(made)
    return made
