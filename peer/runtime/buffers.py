"""Receive buffers, kept for each neighbor and group: page faults in a new buffer would cost more than the copy into it.

A `Lease` is a buffer of exactly the requested length, owned by its holder until it is released: after its message was
processed and made durable. A `BufferPool` lends a bounded number of buffers, which also bounds the messages that wait;
when none is left, the sender gets too_many_requests. For one thread only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


class Lease:
    """A lent buffer: `view` is writable, (length,) bytes. Content that is needed after `release` has to be copied."""

    __slots__ = ("_give_back", "view")

    def __init__(self, view: memoryview, give_back: Callable[[], None]) -> None:
        self.view = view
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        """Return the buffer to its pool; to be called once."""
        assert self._give_back is not None, "a buffer is given back once; by now it may be somebody else's"
        give_back, self._give_back = self._give_back, None
        self.view = memoryview(b"")
        give_back()


@dataclass(slots=True)
class _Channel:
    """One channel's number of lent buffers, and its free ones: the last used is the last, since it is still cached."""

    lent: int = 0
    resting: list[memoryview] = field(default_factory=list)


class BufferPool:
    """Buffers by (peer, channel); a channel is a group, or a kind of messages that belong to no group."""

    def __init__(self) -> None:
        self._peers: defaultdict[str, defaultdict[str, _Channel]] = defaultdict(lambda: defaultdict(_Channel))

    def lease(self, peer: str, channel: str, length: int, *, most: int, kept: bool) -> Lease | None:
        """Return a buffer of `length` bytes; None while `most` of this channel are lent.

        `kept`: after its release the buffer stays for the channel's next lease.
        """
        place = self._peers[peer][channel]
        if place.lent >= most:
            return None
        place.lent += 1
        buffer = place.resting.pop() if place.resting else memoryview(b"")
        if len(buffer) < length:  # the channel's first, or a compressed transfer that is longer than before
            buffer = np.empty(length, dtype=np.uint8).data

        def give_back() -> None:
            place.lent -= 1
            if kept:
                place.resting.append(buffer)

        return Lease(buffer[:length], give_back)

    def forget(self, peer: str) -> None:
        """Drop the buffers of a removed peer; lent ones stay valid until their release."""
        self._peers.pop(peer, None)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the free buffers."""
        channels = (channel for peer in self._peers.values() for channel in peer.values())
        return sum(len(buffer) for channel in channels for buffer in channel.resting)
