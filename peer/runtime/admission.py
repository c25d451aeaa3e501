"""Admission of messages: bytes of a member become a message that is delivered, or a rejection with an answer.

Cheap checks come first: the sender (TLS), its rate, the length, then head and metadata, by the codec. Only then a
buffer is taken and the tensor read straight into it, in chunks. The whole message is never read at once: that is
several times slower, and would let the sender decide how much memory we use.

It does not matter how the bytes come: as the body of a request (`server.py`), or over a connection that carries
messages both ways (`two_way.py`). Nothing is decided about messages here. Each valid one is passed to the `Host`, with
the lease of its buffer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from fedpeer.gossip.transfers import WINDOW
from fedpeer.peer.runtime.buffers import BufferPool, Lease
from fedpeer.peer.runtime.limits import Allowance, Limits, pace
from fedpeer.peer.runtime.streams import Stream
from fedpeer.peer.runtime.two_way import Chunks, TwoWayLink, refuse_stream
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_policy import MessagePolicy
from fedpeer.peer.wire.message_spec import Envelope, ParsedMetadata
from fedpeer.peer.wire.messages import Message, RejectMessage, RosterNews
from fedpeer.rejection import Rejection, RejectionError

#: Most bytes of an update or a model that are hashed on the event loop, in some 2 ms; larger ones need a thread.
HASHED_AT_ONCE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Callbacks from the server to its peer. None of them may block or wait.

    identify    returns the peer with this certificate (DER); called for each request, so that revoking works at once
    listens     returns whether this peer's messages are accepted at all (see `reputation.py`)
    policy      returns the policy for messages of this peer; None, without TLS: of the sender that the envelope names
    deliver     takes a message and the lease that holds its tensors, to be released when they are no longer needed; or
                raises an AnsweredRejectionError, if an answer by another way might not reach the sender
    accepted    counts a message that was delivered, with its bytes
    rejected    counts a rejection; its sender is "" for a stranger
    broken      logs a bug of ours met while a message of this sender is handled; the message is then rejected
    linked      takes a connection that this peer opened to carry messages both ways
    begun       takes a stream that this peer begins in such a connection (`carrier.py`); returns why it is refused
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
    linked: Callable[[str, TwoWayLink], None] = lambda peer, link: None
    begun: Callable[[str, TwoWayLink, Stream, bool, str], str] = lambda sender, *stream: refuse_stream(*stream)
    accepted: Callable[[int, Message], None] = lambda size, message: None


class AnsweredRejectionError(RejectionError):
    """A rejection with the message to answer instead of the usual `RejectMessage`."""

    def __init__(self, rejection: Rejection, answer: RejectMessage | RosterNews) -> None:
        super().__init__(rejection)
        self.answer = answer


@dataclass(slots=True)
class Visit:
    """One message, and what was read of it so far.

    sender        id of the peer; "": not known yet
    incarnation   of the sender
    version       of the wire
    entered       whether it counts among the sender's messages in progress
    rejection     why it was rejected; None: it was not
    """

    sender: str = ""
    incarnation: int = 0
    version: int = 0
    entered: bool = False
    rejection: Rejection | None = None


class MessageAdmission:
    """Takes the messages of all members, within their rates and buffers.

    at_once   number of messages of each sender that are in progress
    rates     the rate of each sender
    """

    def __init__(self, host: Host, pool: BufferPool, limits: Limits) -> None:
        self.host, self.pool, self.limits = host, pool, limits
        self.at_once: Counter[str] = Counter()
        self.rates: dict[str, Allowance] = {}
        self._all = Allowance(limits.requests_per_second_of_all, 0.0)
        self._farewells = Allowance(limits.farewells_per_second, 0.0)

    async def take(
        self,
        visit: Visit,
        certificate: bytes | None,
        announced: Callable[[MessagePolicy], int],
        chunks: Chunks,
    ) -> bytes:
        """Read one message and deliver it; return what to answer: nothing, or the frame of a rejection.

        Args:
            certificate: of the sender (DER); None: there is no TLS, and the envelope names the sender.
            announced: returns the message's length, or raises RejectionError.
        """
        try:
            await self._take(visit, certificate, announced, chunks)
        except RejectionError as error:
            return self._refusal(visit, error)
        except Exception as error:
            self.host.broken(error, visit.sender)
            return self._refusal(visit, RejectionError(Rejection("internal_error")))
        finally:
            if visit.entered:
                self.at_once -= Counter({visit.sender: 1})
        return b""

    async def take_over(self, certificate: bytes, length: int, chunks: Chunks) -> bytes:
        """Take a message of this length from a connection with this certificate; return the answer as `take` does."""
        return await self.take(Visit(), certificate, partial(within_bound, length), chunks)

    def forget(self, peer: str) -> None:
        """Free the buffers that are kept for a removed peer."""
        self.pool.forget(peer)
        self.rates.pop(peer, None)

    def strange(self, peer: str, why: str) -> None:
        """Count that a connection was closed because the other side sends what no peer does."""
        self.host.rejected(Rejection("unknown_route", why, peer))

    async def _take(
        self,
        visit: Visit,
        certificate: bytes | None,
        announced: Callable[[MessagePolicy], int],
        chunks: Chunks,
    ) -> None:
        if not self._all.take(asyncio.get_running_loop().time()):
            raise rejected("too_many_requests", "more requests per second than one core can answer")
        if certificate is not None:
            self._enter(visit, self._identified(certificate))
        policy = self.host.policy(visit.sender or None)
        length = announced(policy)
        try:
            async with pace(self.limits) as moved:
                await self._read(visit, _Body(chunks, moved), length, policy)
        except TimeoutError:
            raise rejected("body_too_slow", f"{length} bytes announced") from None

    def _identified(self, certificate: bytes | None) -> str:
        """Return the peer with this certificate; a revoked one gets the roster that revoked it as its answer."""
        who = self.host.identify(certificate)
        if isinstance(who, str):
            return who
        allowed = self._farewells.take(asyncio.get_running_loop().time())
        news = self.host.farewell(certificate) if allowed else None
        raise RejectionError(who) if news is None else AnsweredRejectionError(who, news)

    def _enter(self, visit: Visit, sender: str) -> None:
        """Count a request of this sender; raise RejectionError if it may not have one more."""
        limits, now = self.limits, asyncio.get_running_loop().time()
        visit.sender = sender
        if not self.host.listens(sender):
            raise rejected("too_many_requests", "this edge is paused because of earlier messages")
        if self.at_once[sender] >= limits.requests_at_once:
            raise rejected("too_many_requests", f"more than {limits.requests_at_once} at once")
        if sender not in self.rates:
            self.rates[sender] = Allowance(limits.requests_per_second, now)
        if not self.rates[sender].take(now):
            raise rejected("too_many_requests", f"more than {limits.requests_per_second:.0f} per second")
        self.at_once[sender] += 1
        visit.entered = True

    async def _read(self, visit: Visit, body: _Body, length: int, policy: MessagePolicy) -> None:
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
            self.host.deliver(visit.sender, envelope, found, lease)
        except BaseException:
            lease.release()
            raise
        self.host.accepted(length, found)

    def _lease(self, sender: str, parsed: ParsedMetadata) -> Lease:
        """Return a buffer for the tail. Buffers of transfers are kept, since transfers come again with equal length."""
        limits, length = self.limits, parsed.tail_bytes
        if parsed.spec.buffers == "kept":
            lease = self.pool.lease(sender, parsed.group, length, most=WINDOW + 1, kept=True)
        elif length:
            channel = f"{parsed.kind.__name__} {parsed.group}"
            most = limits.signed_waiting if parsed.spec.buffers == "several" else limits.large_waiting
            lease = self.pool.lease(sender, channel, length, most=most, kept=False)
        else:
            lease = self.pool.lease(sender, "", 0, most=limits.small_waiting, kept=False)
        if lease is None:
            raise rejected("too_many_requests", "earlier messages are not processed yet", parsed.group)
        return lease

    def _refusal(self, visit: Visit, error: RejectionError) -> bytes:
        """Count the rejection and return the answer: a frame like any other."""
        why = visit.rejection = error.rejection
        answer = error.answer if isinstance(error, AnsweredRejectionError) else codec.rejection_message(why)
        self.host.rejected(replace(why, sender=visit.sender))
        policy = self.host.policy(visit.sender or None)
        envelope = Envelope(
            federation=policy.federation,
            sender=policy.me,
            recipient=visit.sender or "stranger",
            incarnation=policy.incarnation,
            to_incarnation=visit.incarnation,
            version=visit.version or policy.version,
        )
        head, tail = codec.encode(envelope, answer)
        return head + bytes(tail)


def within_bound(length: int, policy: MessagePolicy) -> int:
    """Return the length of a message if this sender may send so many bytes; raise RejectionError if not."""
    if length > codec.SHORT_BYTES_MAX and length > (most := codec.frame_bytes_max(policy)):
        raise rejected("body_too_large", f"{length} bytes; messages between these peers have at most {most}")
    return length


def rejected(code: str, text: str, group: str = "") -> RejectionError:
    """Return the exception that rejects a message."""
    return RejectionError(Rejection(code, text, group=group))


_Good = TypeVar("_Good")


def _good(found: _Good | Rejection) -> _Good:
    if isinstance(found, Rejection):
        raise RejectionError(found)
    return found


class _Body:
    """The unread part of a message; it holds at most one chunk besides the buffer that it fills."""

    def __init__(self, chunks: Chunks, moved: Callable[[int], None]) -> None:
        self._chunks, self._moved = chunks, moved
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
        chunk = await self._chunks()
        if not len(chunk):
            raise rejected("body_truncated", "the connection ended")
        self._moved(len(chunk))
        return memoryview(chunk)
