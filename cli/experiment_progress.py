"""What an experiment looks like while it is played: one bar on a terminal, at most one line a second anywhere else.

A run is one cell with one seed, or with one variant that is tried. How much time is left is told from the runs that
were seen: what is left of this one at its pace, and for each of the others the mean of those that were played.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fedpeer.cli.progress import LINE_EVERY
from fedpeer.cli.units import lasting
from fedpeer.runs.summary import percent
from fedpeer.sims.events import Event, MethodDone, Remark, RoundDone, WorkerReplaced
from fedpeer.sims.experiments.results import Measured
from fedpeer.sims.experiments.runner import Begun, CellBegun, CellDone


class Tally:
    """How far an experiment is."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.runs = self.done = self.round = self.rounds = 0
        self.took: list[float] = []
        self.began = clock()
        self.name = ""

    def begin(self, event: CellBegun) -> None:
        self.name, self.rounds, self.round, self.began = f"{event.label}, {event.what}", event.rounds, 0, self.clock()

    def end(self) -> None:
        self.done += 1
        self.took.append(self.clock() - self.began)

    @property
    def left(self) -> str:
        """In words; nothing while there is nothing to tell it from."""
        now = self.clock() - self.began
        whole = now * self.rounds / self.round if self.round else None
        seen = [*self.took, *([] if whole is None else [whole])]
        if not seen:
            return ""
        others = statistics.fmean(seen) * max(0, self.runs - self.done - 1)
        mine = statistics.fmean(seen) if whole is None else whole
        return f"{lasting(max(0.0, mine - now) + others)} left"


class Watcher(Protocol):
    """A display: entered before the first event, left after the last."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def __call__(self, event: Begun | CellBegun | CellDone | Event) -> None: ...


class Lines:
    """For logs."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.write, self.clock, self.tally = write, clock, Tally(clock)
        self.last = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open."""

    def __call__(self, event: Begun | CellBegun | CellDone | Event) -> None:
        tally = self.tally
        match event:
            case Begun():
                tally.runs, tally.done = event.runs, event.finished
                self.write(_begun(event))
            case CellBegun():
                tally.begin(event)
            case RoundDone():
                tally.round = event.round
                if self.clock() - self.last >= LINE_EVERY and event.round < event.rounds:
                    self.last = self.clock()
                    where = f"run {tally.done + 1} of {tally.runs}, round {event.round} of {event.rounds}"
                    self.write(f"{tally.name}: {where}, {tally.left}")
            case MethodDone():
                tally.end()
            case CellDone():
                self.write(_reached(event.measured))
            case WorkerReplaced() | Remark():
                self.write(_told(event))
            case _:
                pass


class Bar:
    """One bar over all runs on a terminal, and a line above it for each cell that is finished."""

    def __init__(self, console: Console) -> None:
        self.console, self.tally = console, Tally(time.monotonic)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("[cyan]{task.fields[left]}"),
            console=console,
            expand=True,
        )
        self.task = self.progress.add_task("", total=None, left="")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, event: Begun | CellBegun | CellDone | Event) -> None:
        tally = self.tally
        match event:
            case Begun():
                tally.runs, tally.done = event.runs, event.finished
                self._say(_begun(event))
            case CellBegun():
                tally.begin(event)
            case RoundDone():
                tally.round = event.round
            case MethodDone():
                tally.end()
            case CellDone():
                self._say(_reached(event.measured))
            case WorkerReplaced() | Remark():
                self._say(_told(event))
            case _:
                pass
        part = tally.round / tally.rounds if tally.rounds and tally.round < tally.rounds else 0.0
        self.progress.update(
            self.task, description=tally.name, total=tally.runs, completed=int(tally.done + part), left=tally.left
        )

    def _say(self, text: str) -> None:
        self.progress.console.print(text, highlight=False, markup=False, soft_wrap=False)


class Silence:
    """No progress at all (`--quiet`)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open."""

    def __call__(self, event: Begun | CellBegun | CellDone | Event) -> None:
        """Events pass unseen."""


def watcher(console: Console, quiet: bool) -> Watcher:
    """The display that suits where standard error goes."""
    if quiet:
        return Silence()
    if console.is_terminal:
        return Bar(console)
    return Lines(lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True))


def _begun(event: Begun) -> str:
    kept = f", {event.finished} of them finished before" if event.finished else ""
    return f"{event.runs} runs{kept}"


def _reached(cell: Measured) -> str:
    scores = ", ".join(f"{name} {percent(sum(found) / len(found))}" for name, found in cell.per_seed.items())
    return f"{cell.label}: {scores}, {lasting(cell.seconds)}"


def _told(event: WorkerReplaced | Remark) -> str:
    return f"note: {event.text}" if isinstance(event, Remark) else f"{event.worker} died ({event.reason}); replaced"
