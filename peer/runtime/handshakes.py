"""Slots for handshakes in progress: limited in all and by address, and none is occupied for ever.

When all slots are taken, a new handshake gets the slot of the oldest handshake of the address that has most, if that
has lasted longer than an honest one does. So an address that only occupies slots loses them, and an address with few
keeps them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine


class Handshakes:
    """Handshakes of one kind of address.

    most          slots in all
    per_address   slots of one address
    kept_s        seconds, by the loop's clock, for which a handshake keeps its slot in any case
    """

    def __init__(self, most: int, per_address: int, kept_s: float) -> None:
        self._most, self._per_address, self._kept_s = most, per_address, kept_s
        self._under_way: dict[asyncio.Task[None], tuple[str, float]] = {}  # address and start; the oldest first

    def has_room(self, address: str, now: float) -> bool:
        """Return whether one more may begin; this may cancel an older one to make room."""
        counts = Counter(whose for whose, _ in self._under_way.values())
        if counts[address] < self._per_address and len(self._under_way) < self._most:
            return True
        most = address if counts[address] >= self._per_address else counts.most_common(1)[0][0]
        task, since = next((task, since) for task, (whose, since) in self._under_way.items() if whose == most)
        if now - since < self._kept_s:
            return False
        del self._under_way[task]
        task.cancel()
        return True

    def begin(self, handshake: Coroutine[None, None, None], address: str, now: float) -> asyncio.Task[None]:
        """Start a handshake, which occupies a slot until it ends."""
        task = asyncio.create_task(handshake)
        self._under_way[task] = address, now
        task.add_done_callback(lambda done: self._under_way.pop(done, None))
        return task

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return all handshakes in progress."""
        return list(self._under_way)
