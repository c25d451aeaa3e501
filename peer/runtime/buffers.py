"""Receive buffers, kept for each neighbour and group: a new one would cost more in page faults than the copy into it.

A `Lease` is a buffer of exactly the length asked for, and nobody else's until it is released: after the message in it
was dealt with and made durable. What a `BufferPool` has lent is bounded, so leases are also the bound on messages that
wait; one that cannot be had is answered with too_many_requests. One thread only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


class Lease:
    """`view` is writable, (length,) bytes. Whoever keeps what is in it beyond `release` has to copy it."""

    __slots__ = ("_give_back", "view")

    def __init__(self, view: memoryview, give_back: Callable[[], None]) -> None:
        self.view = view
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        """Give the buffer back, once."""
        assert self._give_back is not None, "a buffer is given back once; by now it may be somebody else's"
        give_back, self._give_back = self._give_back, None
        self.view = memoryview(b"")
        give_back()


@dataclass(slots=True)
class _Channel:
    """What one channel has lent, and its buffers at rest, the one used last at the end: it is the warmest."""

    lent: int = 0
    resting: list[memoryview] = field(default_factory=list)


class BufferPool:
    """Buffers by (peer, channel); a channel is a group, or a kind of messages that belong to none."""

    def __init__(self) -> None:
        self._peers: defaultdict[str, defaultdict[str, _Channel]] = defaultdict(lambda: defaultdict(_Channel))

    def lease(self, peer: str, channel: str, length: int, *, most: int, kept: bool) -> Lease | None:
        """A buffer of `length` bytes; None while `most` of this channel are lent. `kept`: for the next one of the
        channel.
        """
        place = self._peers[peer][channel]
        if place.lent >= most:
            return None
        place.lent += 1
        buffer = place.resting.pop() if place.resting else memoryview(b"")
        if len(buffer) < length:  # the first of this channel, or a reduction that came out longer than before
            buffer = np.empty(length, dtype=np.uint8).data

        def give_back() -> None:
            place.lent -= 1
            if kept:
                place.resting.append(buffer)

        return Lease(buffer[:length], give_back)

    def forget(self, peer: str) -> None:
        """Drop the buffers of a peer that is gone; what is lent stays good until its release."""
        self._peers.pop(peer, None)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the buffers at rest."""
        channels = (channel for peer in self._peers.values() for channel in peer.values())
        return sum(len(buffer) for channel in channels for buffer in channel.resting)
