"""Places for handshakes under way: so many in all, so many of one address, and none that is held for ever.

Where all are taken, whoever comes next gets the place of the oldest handshake of the address that has most, if that has
lasted longer than an honest one does. So who only holds places loses them, and who has few keeps his.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine


class Handshakes:
    """Those of one kind of address. Seconds are the loop's.

    most, per_address   places
    kept_s              for so long none gives way
    """

    def __init__(self, most: int, per_address: int, kept_s: float) -> None:
        self._most, self._per_address, self._kept_s = most, per_address, kept_s
        self._under_way: dict[asyncio.Task[None], tuple[str, float]] = {}  # address and beginning; the oldest first

    def has_room(self, address: str, now: float) -> bool:
        """Whether one more may begin; another one may have given way to it."""
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
        """Take a place until it is over."""
        task = asyncio.create_task(handshake)
        self._under_way[task] = address, now
        task.add_done_callback(lambda done: self._under_way.pop(done, None))
        return task

    def tasks(self) -> list[asyncio.Task[None]]:
        """All that are under way."""
        return list(self._under_way)
