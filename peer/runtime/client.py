"""Links to other peers: each frame is sent once; the node repeats what was lost.

Two peers share one connection, which carries messages both ways (`two_way.py`) and which either of them opens, if
need be through a third peer (`carrier.py`). Frames wait for the first such connection. To peers of earlier releases,
and while no connection can be opened, each frame is an HTTP post (`posts.py`): then a neighbor has one connection for
small messages and one for bulk. While packets are lost and answers are late, it has two more of each, for posts.

Each kind has a bounded queue. A frame that is queued or being sent is not queued again, unless it is stuck and another
connection may send it. A full queue drops its oldest frame. Everything has a time limit (`limits.py`), and after a
failure a neighbor is not tried again for a moment. `report` passes on what became of a frame: delivered, rejected, or
the link is down.

The TLS handshake checks the other side's identity (`identity.expecting`) before a byte of ours is sent. Plain HTTP
is for loopback only, and only if no TLS is configured.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any
from weakref import WeakSet

from aiohttp import (
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    DummyCookieJar,
    TCPConnector,
)

from fedpeer.config.address import PeerUrl, loopback
from fedpeer.peer.runtime.carrier import Carrier
from fedpeer.peer.runtime.limits import Limits, pace
from fedpeer.peer.runtime.listener import expect_loss
from fedpeer.peer.runtime.opener import CLOSE_S, NOT_OPENED, Attempts, LinkOpener
from fedpeer.peer.runtime.outcomes import DeliveryReceipt, LinkDown, Outcome
from fedpeer.peer.runtime.posts import Frame, Posts, slack_s
from fedpeer.peer.runtime.streams import LinkLostError
from fedpeer.peer.runtime.two_way import Chunks, TwoWayLink, refuse_stream
from fedpeer.peer.wire import codec

#: Bytes of tail above which a message is bulk: a little more than a slow link (1 Mbit/s) carries in a tick of 25 ms.
BULK_BYTES = 4096
#: Seconds that an unused connection stays open; less than the other side keeps it open.
_KEEP_S = 60.0
#: Seconds for which the peer with the larger id waits for the other's connection; seconds within which both may open
#: one because they do not know of the other's.
_OTHER_OPENS_S, _BOTH_OPEN_S = 1.5, 15.0
#: Seconds for the first connection, before posts open their own: a handshake on a machine where many peers begin.
_MEET_S = 2.0
#: Seconds in which a post connects, if it does.
_CONNECTS_S = 0.5
#: Headers that aiohttp would add and nobody reads.
_NEEDLESS = ("Accept", "Accept-Encoding", "User-Agent")


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
class _Timer:
    """A call that is due later; setting another one cancels it."""

    handle: asyncio.TimerHandle | None = None

    def set(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        self.cancel()
        self.handle = asyncio.get_running_loop().call_later(seconds, call, *arguments)

    def cancel(self) -> None:
        if self.handle is not None:
            self.handle.cancel()


@dataclass(slots=True)
class _Link:
    """One neighbor.

    tls          context of connections to it; None: none has been opened
    rest         seconds of the current pause after a failure; 0: none
    rest_until   time until which it is not tried
    woken        when a message from it last ended a pause
    failure      reason of the last failure
    two_way      the connection that carries messages both ways; None: there is none
    met          there has been such a connection, or the first attempt to open one has failed
    opening      task that opens such a connection; `improving`: task that opens a direct one to replace it
    attempts     attempts to open one, and their results so far
    wanted       time from which such a connection is opened; infinite: none is wanted
    posts        frames that are being posted
    turning, reopening, improvement
                 timers: posts turn to the connection for both directions, another one is opened, a direct one is tried
    """

    small: _Queue
    bulk: _Queue
    tls: ssl.SSLContext | None = None
    two_way: TwoWayLink | None = None
    met: asyncio.Event = field(default_factory=asyncio.Event)
    opening: asyncio.Task[None] | None = None
    improving: asyncio.Task[None] | None = None
    attempts: Attempts = field(default_factory=Attempts)
    posts: dict[asyncio.Task[Outcome], Frame] = field(default_factory=dict)
    wanted: float = math.inf
    rest: float = 0.0
    rest_until: float = 0.0
    woken: float = -math.inf
    failure: str = ""
    turning: _Timer = field(default_factory=_Timer)
    reopening: _Timer = field(default_factory=_Timer)
    improvement: _Timer = field(default_factory=_Timer)

    @property
    def meets(self) -> bool:
        """True while the first connection for both directions is still to come."""
        return self.wanted < math.inf and not self.met.is_set()

    def use(self, two_way: TwoWayLink) -> None:
        """Send over this connection from now on, soon also posts that still wait for connections of their own."""
        if self.two_way is not None:
            self.two_way.retire()
        self.two_way = two_way
        self.met.set()
        self.turning.set(_CONNECTS_S, self._turn_to, two_way)

    def _turn_to(self, two_way: TwoWayLink) -> None:
        for post, frame in self.posts.items():
            if two_way.open and not frame.leaves:
                post.cancel()


class PeerLinks:
    """All links of one peer. Create and close it on the running event loop.

    contexts   returns the TLS context for a peer, called before the first connection to it; None: plain HTTP, to
               loopback only
    report     receives what became of a frame to a peer; called on the loop, must not block
    me         this peer's id, and `receive` takes the messages that arrive over connections that it opens: by the
               other side's certificate (DER), length and bytes; None: it opens none that carry messages both ways
    strange    receives why a peer's connection is closed if that peer breaks the record format
    outbound   nobody can connect to this peer, so it opens all connections, at once
    carrier    asks others to carry connections to peers to which none can be opened
    carried    called when a peer is reached through another one
    """

    def __init__(
        self,
        contexts: Callable[[str], ssl.SSLContext] | None,
        report: Callable[[str, Outcome], None],
        limits: Limits | None = None,
        *,
        me: str = "",
        receive: Callable[[bytes, int, Chunks], Awaitable[bytes]] | None = None,
        strange: Callable[[str, str], None] = lambda peer, why: None,
        outbound: bool = False,
        carrier: Carrier | None = None,
        carried: Callable[[str, str], None] = lambda peer, through: None,
    ) -> None:
        self._contexts, self._report, self._limits = contexts, report, limits or Limits()
        self._me, self._receive, self._strange, self._outbound = me, receive, strange, outbound
        self._carrier, self._carried = carrier, carried
        self._links: dict[str, _Link] = {}
        self._forgotten: set[asyncio.Task[None]] = set()  # connections to peers that were forgotten
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._session = ClientSession(
            connector=TCPConnector(
                limit=0,  # the roster, which may grow, and the next line bound them
                limit_per_host=2 * self._limits.at_once,
                keepalive_timeout=_KEEP_S,
                socket_factory=self._socket,
            ),
            timeout=ClientTimeout(total=None, sock_connect=self._limits.connect_s),
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_NEEDLESS,
        )
        self._posts = Posts(self._session, self._limits)
        self._opener = LinkOpener(self._session, self._limits, carrier, self._sockets.add)

    def send(
        self,
        peer: str,
        address: str,
        head: bytes,
        tail: memoryview,
        *,
        urgent: bool = False,
        both_ways: bool = False,
    ) -> None:
        """Queue one frame (`codec.encode`) for the peer at this URL. The tail must not change until it is reported.

        `both_ways`: the peer can share a connection, or has not stated yet that it cannot.

        An `urgent` frame is sent before the small ones, however long its tail is: on an overloaded machine a
        coordinator whose heartbeats wait behind pings seems dead.
        """
        limits, now = self._limits, asyncio.get_running_loop().time()
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = self._new()
        try:
            url = _url(address, plain=self._contexts is None)
        except ValueError as error:
            self._report(peer, LinkDown(str(error)))
            return
        link.attempts.address = url
        if both_ways:
            self._want(peer, link, now)
        queue = link.bulk if len(tail) > BULK_BYTES and not urgent else link.small
        patience = _MEET_S if link.meets else limits.stalled_s
        stuck = bool(queue.tasks) and now - queue.moved > patience
        waiting = queue.urgent if urgent else queue.waiting
        if head in waiting or (head in queue.leaving and not stuck):
            return
        if len(waiting) >= limits.queue:
            del waiting[next(iter(waiting))]
            self._report(peer, LinkDown("it accepts messages more slowly than they are made; the oldest was dropped"))
        waiting[head] = url, tail, now
        if not queue.tasks or (stuck and len(queue.tasks) < limits.at_once):
            queue.moved = now
            queue.tasks.add(asyncio.create_task(self._drain(peer, link, queue, further=bool(queue.tasks))))

    def linked(self, peer: str, two_way: TwoWayLink) -> None:
        """Take a connection that `peer` opened. If both opened one at the same time, that of the smaller id stays."""
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = self._new()
        ours, now = link.two_way, asyncio.get_running_loop().time()
        both_opened = ours is not None and ours.open and ours.opened and now - ours.since < _BOTH_OPEN_S
        if both_opened and self._me < peer:
            return
        link.use(two_way)  # if ours is older, the other side has lost it
        link.rest_until = 0.0
        # The smaller id opens connections. If its attempts failed, the other side may not have listened yet: without
        # another attempt it would count as a peer to which nobody can connect.
        if self._me < peer and link.attempts.failed and (tls := self._tls(peer, link)) is not None:
            self._improve_soon(peer, link, tls)

    def link(self, peer: str, *, direct: bool = False) -> TwoWayLink | None:
        """Return the open connection to a peer that carries messages both ways; `direct`: if nobody carries it."""
        link = self._links.get(peer)
        found = link.two_way if link is not None else None
        return found if found is not None and found.open and not (direct and found.carried) else None

    def received(self, peer: str) -> None:
        """End the pause of a peer that has sent something: it was just started, or a link is back.

        At most once in the longest pause, since maybe only the direction from that peer works.
        """
        link, now = self._links.get(peer), asyncio.get_running_loop().time()
        if link is not None and now < link.rest_until and now - link.woken >= self._limits.backoff_max_s:
            link.rest_until, link.woken = now, now

    def forget(self, peer: str) -> None:
        """Drop a peer's queued frames and its TLS context: it left, or its key changed.

        A connection that we opened is still read for a moment: a revoked peer may not know it yet, and learns of it
        from the answer to its next message.
        """
        link = self._links.pop(peer, None)
        if link is None:
            return
        for timer in (link.turning, link.reopening, link.improvement):
            timer.cancel()
        for queue in (link.small, link.bulk):
            queue.waiting.clear()
            queue.urgent.clear()
            for task in queue.tasks:
                task.cancel()
        if link.two_way is not None:
            link.two_way.streams.end()
        reads = link.two_way is not None and link.two_way.open
        for opening in (link.opening, link.improving):
            if opening is not None:
                self._end(opening, self._limits.farewell_s if reads else 0.0)

    def _end(self, connection: asyncio.Task[None], seconds: float) -> None:
        """End a connection, or its opening, after so many seconds, or when all end."""
        self._forgotten.add(connection)
        connection.add_done_callback(self._forgotten.discard)
        timer = asyncio.get_running_loop().call_later(seconds, connection.cancel)
        connection.add_done_callback(lambda ended: timer.cancel())

    async def close(self) -> None:
        """End all connections; queued frames are dropped without a report."""
        links = self._links.values()
        tasks = [task for link in links for queue in (link.small, link.bulk) for task in queue.tasks]
        for peer in list(self._links):
            self.forget(peer)
        for connection in self._forgotten:
            connection.cancel()
        await asyncio.gather(*tasks, *self._forgotten, return_exceptions=True)
        await self._session.close()
        # TLS waits 30 s for a side that does not answer, and the loop ends before.
        for each in self._sockets:
            with suppress(OSError):  # it is closed
                each.shutdown(socket.SHUT_RDWR)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while any(each.fileno() >= 0 for each in self._sockets):
                    await asyncio.sleep(0)

    def _new(self) -> _Link:
        return _Link(_Queue(self._limits.stale_s), _Queue(math.inf))

    def _tls(self, peer: str, link: _Link) -> ssl.SSLContext | None:
        """Return the TLS context for a peer, made at first use: most peers of smaller ids need none. None: no TLS."""
        if link.tls is None and self._contexts is not None:
            link.tls = self._contexts(peer)
        return link.tls

    def _want(self, peer: str, link: _Link, now: float) -> None:
        """Open a connection for both directions, unless there is one.

        The peer with the larger id first waits a moment for the other's connection.
        """
        busy = self.link(peer) is not None or link.opening is not None or now < link.rest_until
        if busy or self._contexts is None or self._receive is None:
            return
        at_once = self._outbound or self._me < peer
        link.wanted = min(link.wanted, now if at_once else now + _OTHER_OPENS_S)
        if now < max(link.wanted, link.attempts.again):
            return
        tls = self._tls(peer, link)
        assert tls is not None, "there are contexts"
        link.opening = asyncio.create_task(self._open(peer, link, tls))

    async def _open(self, peer: str, link: _Link, tls: ssl.SSLContext) -> None:
        """Open a connection for both directions, and read from it until it ends.

        If none can be opened, posts report what is wrong with the link.
        """
        attempts, before = link.attempts, link.attempts.through
        try:
            async with AsyncExitStack() as stack:
                opened = await self._opener.open(peer, tls, attempts, self._links, stack)
                if opened is not None:
                    if attempts.through not in ("", before):
                        self._carried(peer, attempts.through)
                    if attempts.through and attempts.address:
                        self._improve_soon(peer, link, tls)
                    await self._run(peer, link, opened)
        finally:
            link.opening = None
            link.met.set()
            self._open_again(peer, link)

    def _open_again(self, peer: str, link: _Link) -> None:
        """Open another connection soon if the other side cannot."""

        if self._outbound and self._links.get(peer) is link:
            clock = asyncio.get_running_loop().time
            wait = max(link.attempts.again - clock(), self._limits.backoff_s)
            link.reopening.set(wait, lambda: self._want(peer, link, clock()))

    def _improve_soon(self, peer: str, link: _Link, tls: ssl.SSLContext) -> None:
        if self._links.get(peer) is link:
            link.improvement.set(link.attempts.next_improvement(), self._improve, peer, link, tls)

    def _improve(self, peer: str, link: _Link, tls: ssl.SSLContext) -> None:
        """Try to open a direct connection instead of one that is carried, or that only the other side could open."""
        attempts = link.attempts
        if attempts.address and (attempts.through or attempts.failed) and link.improving is None:
            link.improving = asyncio.create_task(self._open_directly(peer, link, tls))

    async def _open_directly(self, peer: str, link: _Link, tls: ssl.SSLContext) -> None:
        try:
            opened = await self._opener.directly(tls, link.attempts)
        except NOT_OPENED:
            self._improve_soon(peer, link, tls)
        else:
            link.attempts.opened("")
            await self._run(peer, link, opened, instead=True)
            self._open_again(peer, link)
        finally:
            link.improving = None

    async def _run(self, peer: str, link: _Link, web_socket: ClientWebSocketResponse, *, instead: bool = False) -> None:
        """Take a connection that was opened, unless the other side's counts, and read from it until it ends.

        `instead`: take it in any case, in place of the present one.
        """
        tls = web_socket.get_extra_info("ssl_object")
        certificate = (tls.getpeercert(binary_form=True) if tls is not None else None) or b""
        assert self._receive is not None, "else none is opened"
        two_way = TwoWayLink(
            web_socket,
            partial(self._receive, certificate),
            lambda why: self._strange(peer, why),
            self._limits,
            opened=True,
            begun=partial(self._carrier.begun, peer) if self._carrier is not None else refuse_stream,
        )
        if self.link(peer) is not None and self._me > peer and not instead:
            two_way.retire()
        else:
            link.use(two_way)
        await two_way.run()

    async def _meet(self, peer: str, link: _Link) -> None:
        """Wait until the first connection for both directions is open or has failed, so that posts open none before."""
        if link.opening is None:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(link.wanted):
                    await link.met.wait()
            self._want(peer, link, asyncio.get_running_loop().time())
        if link.opening is not None:
            await link.met.wait()

    async def _drain(self, peer: str, link: _Link, queue: _Queue, *, further: bool) -> None:
        """Send the queued frames one after another until the queue is empty.

        `further`: earlier frames take longer than usual, so use posts if the shared connection has stalled.
        """
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "it runs as one"
        try:
            if link.meets and not further:
                await self._meet(peer, link)
            while waiting := queue.urgent or queue.waiting:
                head = next(iter(waiting))
                address, tail, since = waiting.pop(head)
                if loop.time() - since <= queue.stale_s:
                    self._report(peer, await self._sent(peer, link, queue, address, head, tail, further=further))
        finally:
            queue.tasks.discard(task)  # at once: a frame that is queued from now on needs another task

    async def _sent(
        self, peer: str, link: _Link, queue: _Queue, address: str, head: bytes, tail: memoryview, *, further: bool
    ) -> Outcome:
        """Send one frame unless the link rests, and return what became of it."""
        loop = asyncio.get_running_loop()
        if loop.time() < link.rest_until:
            return LinkDown(link.failure)
        queue.leaving[head] += 1
        queue.moved, two_way = loop.time(), link.two_way
        try:
            if two_way is not None and two_way.open and not (further and two_way.stalled):
                outcome = await self._carry(queue, two_way, head, tail)
            elif not address:
                outcome = LinkDown(link.attempts.no_way)
            else:
                outcome = await self._posted(peer, queue, link, address, Frame(head, tail))
        finally:
            queue.moved = loop.time()
            queue.leaving -= Counter({head: 1})
        # A failed post does not count if the other side has opened a connection meanwhile.
        if not isinstance(outcome, LinkDown) or link.two_way is None or not link.two_way.open:
            self._judge(link, outcome, loop.time())
        return outcome

    def _judge(self, link: _Link, outcome: Outcome, now: float) -> None:
        """Pause the link after a failure, twice as long after each further one."""
        limits = self._limits
        if isinstance(outcome, LinkDown):
            link.rest = min(2 * link.rest or limits.backoff_s, limits.backoff_max_s)
            link.failure = outcome.reason
        else:
            link.rest = 0.0
        link.rest_until = now + link.rest

    async def _carry(self, queue: _Queue, two_way: TwoWayLink, head: bytes, tail: memoryview) -> Outcome:
        loop = asyncio.get_running_loop()
        began, size = loop.time(), len(head) + len(tail)
        slack = slack_s(self._limits, size)
        try:
            async with pace(self._limits, slack) as noted:

                def moved(count: int) -> None:
                    queue.moved = loop.time()
                    noted(count)

                answer = await two_way.send(head, tail, moved)
        except TimeoutError:
            two_way.retire()
            await two_way.close()
            return LinkDown("it did not answer in time")
        except LinkLostError:
            return LinkDown("the connection ended before it answered")
        if not answer:
            return DeliveryReceipt(size, loop.time() - began)
        return codec.decode_answer(answer) or LinkDown("it answered what no peer does")

    async def _posted(self, peer: str, queue: _Queue, link: _Link, address: str, frame: Frame) -> Outcome:
        """Post a frame, or, if a connection for both directions comes before the post has one, send it over that."""
        post = asyncio.create_task(self._posts.post(self._tls(peer, link), address, frame))
        link.posts[post] = frame
        task = asyncio.current_task()
        assert task is not None, "it runs as one"
        try:
            return await post
        except asyncio.CancelledError:
            if task.cancelling() or link.two_way is None:
                raise
        finally:
            del link.posts[post]
        return await self._carry(queue, link.two_way, frame.head, frame.tail)

    def _socket(self, info: Any) -> socket.socket:
        """Return a socket on which the kernel, where it can, detects a dead connection."""
        family, kind, protocol, _, _ = info
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._limits.answer_s * 1000))
        expect_loss(made)
        return made


@lru_cache(maxsize=4096)
def _url(address: str, *, plain: bool) -> str:
    """Return the URL of a peer, "" for one to which nobody can connect.

    Addresses come from claims, which must not lead elsewhere, end this peer or switch TLS off. Raises ValueError.
    """
    try:
        url = PeerUrl.read(address)
    except ValueError as error:
        raise ValueError(f"it has no valid address: {error}") from None
    if plain:
        if url.scheme != "http" or not loopback(url.host):
            raise ValueError(f"its address is {address}, and this peer uses plain HTTP on this machine only")
    elif url.scheme != "https":
        raise ValueError(f"its address is {address}, and this peer uses TLS only")
    return str(url) if url.reachable else ""
