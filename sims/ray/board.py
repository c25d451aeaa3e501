"""The actor between the runs of a sweep and the leading process, on whose machine it runs; it takes no CPU."""

from __future__ import annotations

from collections.abc import Sequence

from fedpeer.sims.events import SimulationEvent


class ProgressQueue:
    """The events of runs until the leading process reads them, and whether the runs must stop."""

    def __init__(self) -> None:
        self._events: list[tuple[int, SimulationEvent]] = []
        self._stop = False

    def add(self, attempt: int, events: Sequence[SimulationEvent]) -> bool:
        """Add a run's events and return whether the run must stop. A run calls this several times a second."""
        self._events += [(attempt, event) for event in events]
        return self._stop

    def new_events(self) -> list[tuple[int, SimulationEvent]]:
        """Return and remove the new events, each run's in its order."""
        events, self._events = self._events, []
        return events

    def stop(self) -> None:
        """Make all runs stop."""
        self._stop = True
