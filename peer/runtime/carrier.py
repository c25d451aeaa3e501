"""Connections of two peers that cannot connect to each other, carried by a third to which both are connected.

The two have an ordinary connection, with their own mutual TLS, whose bytes go through streams of their connections to
the carrier (`streams.py`):

    north -- socket pair -- stream -- carrier -- stream -- socket pair -- west

North's client and west's listener each have one end of a socket pair instead of a socket of the network; all else about
the connection is as usual: both check the other's key, and limits and reputation are those of the peer at the other
end. The carrier passes on bytes that it cannot read, counts them, and keeps to a rate.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from fedpeer.peer.runtime.limits import Allowances, Limits
from fedpeer.peer.runtime.streams import (
    CARRIED,
    CARRIES_NOTHING,
    CARRY,
    NO_CONNECTION,
    NO_MEMBER,
    TOO_MANY,
    TOO_OFTEN,
    LinkLostError,
    Stream,
)
from fedpeer.peer.runtime.two_way import PIECE_BYTES, TwoWayLink

#: Seconds' worth of the rate that may leave at once.
_BURST_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighborhood:
    """Functions that tell a carrier about the other peers.

    link     returns the open connection to a peer that can have streams in it; None: there is none
    member   returns whether a peer is a member whose messages are taken
    """

    link: Callable[[str], TwoWayLink | None]
    member: Callable[[str], bool]


class Carrier:
    """Carries other peers' connections, takes those that others carry to this peer, and lets others carry its own.

    me       this peer's id
    rate     bytes per second that it carries for others at most, both directions and all peers together; 0: nothing
    accept   takes an accepted connection, and the id of the peer that carries it
    """

    def __init__(
        self,
        me: str,
        known: Neighborhood,
        accept: Callable[[socket.socket, str], None],
        limits: Limits,
        *,
        rate: float,
    ) -> None:
        self._me, self._known, self._accept, self._limits, self._rate = me, known, accept, limits, rate
        self._begins = Allowances(limits.streams_per_second)
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._free_at = 0.0
        self.carried: Counter[tuple[str, str]] = Counter()
        self.under_way: Counter[tuple[str, str]] = Counter()

    def order(self, peer: str, among: Iterable[str]) -> list[str]:
        """Return the peers that may carry between this peer and `peer`, beginning with the one that both ask first."""
        ends = "\0".join(sorted((self._me, peer)))
        fit = [each for each in among if each not in (self._me, peer) and self._known.link(each) is not None]
        return sorted(fit, key=lambda each: hashlib.sha256(f"{ends}\0{each}".encode()).digest())

    async def connect(self, peer: str, through: str) -> tuple[socket.socket, Stream]:
        """Return a connected socket to a peer, through another one, and the stream behind it.

        If `through` refuses, the socket ends at once, and the stream has the reason.

        Raises LinkLostError if there is no connection to `through`.
        """
        link = self._known.link(through)
        if link is None:
            raise LinkLostError
        stream = await link.streams.begin(CARRY, peer)
        return self._local_end("", stream), stream

    def begun(self, sender: str, link: TwoWayLink, stream: Stream, carry: bool, peer: str) -> str:
        """Take a stream that a peer begins: from it to `peer`, to be carried, or from `peer` to this one.

        Returns why it is refused, or nothing.
        """
        now, limits = asyncio.get_running_loop().time(), self._limits
        if not self._known.member(peer) or peer in (self._me, sender):
            return NO_MEMBER
        others = [each for each in self._tasks.values() if each]
        if others.count(sender) >= limits.streams_per_peer or len(others) >= limits.streams:
            return TOO_MANY
        if not self._begins.take(sender, now):
            return TOO_OFTEN
        if not carry:
            self._accept(self._local_end(sender, stream), sender)
            return ""
        if not self._rate:
            return CARRIES_NOTHING
        onward = self._known.link(peer)
        if onward is None or onward is link:
            return NO_CONNECTION
        self._begin(sender, self._carry(sender, peer, stream, onward))
        return ""

    async def close(self) -> None:
        """End everything that is carried."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _local_end(self, sender: str, stream: Stream) -> socket.socket:
        """Return a connected socket to which the bytes of a stream go, and from which they come."""
        ours, other = socket.socketpair()
        for each in (ours, other):
            each.setblocking(False)
        task = self._begin(sender, _joined(stream, _LocalEnd(other)))
        task.add_done_callback(lambda done: other.close())
        return ours

    def _begin(self, sender: str, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run some work on behalf of a peer, or of this one (""), until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = sender
        task.add_done_callback(self._tasks.pop)
        return task

    async def _carry(self, sender: str, peer: str, stream: Stream, onward: TwoWayLink) -> None:
        """Pass the bytes of each of two streams on to the other."""
        pair = (min(sender, peer), max(sender, peer))
        self.under_way[pair] += 1
        try:
            beyond = await onward.streams.begin(CARRIED, sender)
            await _joined(stream, beyond, partial(self._paced, pair))
        except LinkLostError:
            await stream.end(NO_CONNECTION)
        finally:
            self.under_way -= Counter({pair: 1})

    async def _paced(self, pair: tuple[str, str], number: int) -> None:
        """Count bytes that are carried, and wait until the rate allows them."""
        self.carried[pair] += number
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - _BURST_S) + number / self._rate
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


class _End(Protocol):
    """One end of a connection."""

    async def read(self) -> bytes | memoryview:
        """Wait for bytes; none: it has ended."""

    async def write(self, piece: bytes | memoryview) -> None:
        """Send bytes."""

    async def end(self) -> None:
        """End the connection."""


@dataclass(frozen=True, slots=True)
class _LocalEnd:
    """The end of a socket pair whose other end is an ordinary connection of this peer."""

    socket: socket.socket

    async def read(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.socket, PIECE_BYTES)

    async def write(self, piece: bytes | memoryview) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, piece)

    async def end(self) -> None:
        self.socket.close()


async def _at_once(number: int) -> None:
    """Let bytes pass without a limit."""


async def _joined(one: _End, other: _End, paced: Callable[[int], Awaitable[None]] = _at_once) -> None:
    """Pass bytes on in both directions until one end has no more; `paced` waits until so many may leave."""
    both = {asyncio.create_task(_pass_on(*ends, paced)) for ends in ((one, other), (other, one))}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        await one.end()
        await other.end()


async def _pass_on(source: _End, sink: _End, paced: Callable[[int], Awaitable[None]]) -> None:
    with suppress(OSError, LinkLostError):
        while len(piece := await source.read()):
            await paced(len(piece))
            await sink.write(piece)
