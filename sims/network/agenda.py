"""Virtual time: a queue of planned actions.

Time is measured in ticks, as in the nodes, and fractions of them. Actions at the same time run in the order in which
they were planned, so a run depends on its seed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

_Action = Callable[[], None]


class Agenda:
    """The virtual clock and the actions that are planned for later."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, _Action]] = []
        self._count = 0

    def at(self, time: float, action: _Action) -> None:
        assert time >= self.now, "nothing can be planned for the past"
        self._count += 1
        heappush(self._planned, (time, self._count, action))

    def step(self, until: float) -> bool:
        """Run the next action and return True; if none comes until `until`, advance the time and return False."""
        if not self._planned or self._planned[0][0] > until:
            self.now = max(self.now, until)
            return False
        self.now, _, action = heappop(self._planned)
        action()
        return True
