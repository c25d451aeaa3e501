"""Between the runs of a sweep and whoever leads it: an actor on the leader's machine, which holds no CPU."""

from __future__ import annotations

from collections.abc import Sequence

from fedpeer.sims.events import Event


class ProgressQueue:
    """What runs tell, until the leader reads it; and whether they are to stop."""

    def __init__(self) -> None:
        self._told: list[tuple[int, Event]] = []
        self._stop = False

    def tell(self, attempt: int, events: Sequence[Event]) -> bool:
        """By a run, some times a second. Whether it is to stop."""
        self._told += [(attempt, event) for event in events]
        return self._stop

    def told(self) -> list[tuple[int, Event]]:
        """What is new, in the order in which each run told it."""
        told, self._told = self._told, []
        return told

    def stop(self) -> None:
        """From now on all runs are to stop."""
        self._stop = True
