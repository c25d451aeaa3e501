"""Progress of an experiment: one bar on a terminal, at most one line a second elsewhere.

A run is one cell with one seed, or one variant of a search. The time left is estimated from the runs seen so far: a
running one keeps its pace, each waiting one takes the mean time of the others, and as many run at once as now.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from fedpeer.experiments.events import Begun, CellDone, ExperimentEvent, OfRun
from fedpeer.runs.summary import percent
from fedpeer.runs.units import duration_text
from fedpeer.sims.events import MethodDone, MethodStarted, Remark, RoundDone, RunBegun, RunLost, WorkerReplaced
from fedpeer.sims.progress import LINE_EVERY

#: Bars of running runs on a terminal.
BARS_MAX = 8


@dataclass
class Run:
    """A run that is under way.

    began    when it started, by the tally's clock, in s
    round    the last finished round
    rounds   number of rounds, 0 until known
    """

    began: float
    round: int = 0
    rounds: int = 0


class ExperimentTally:
    """Progress of an experiment whose runs come one after the other, or several at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.runs = self.done = 0
        self.took: list[float] = []
        self.running: dict[str, Run] = {}

    def on_event(self, event: ExperimentEvent) -> None:
        match event:
            case Begun():
                self.runs, self.done = event.runs, event.finished
            case OfRun(run=name, event=RunBegun()):
                self.running[name] = Run(self.clock())
            case OfRun(run=name, event=MethodStarted() as started):
                self.running[name].round, self.running[name].rounds = started.first_round - 1, started.rounds
            case OfRun(run=name, event=RoundDone() as done):
                self.running[name].round = done.round
            case OfRun(run=name, event=MethodDone()):
                self.done += 1
                self.took.append(self.clock() - self.running.pop(name).began)
            case OfRun(run=name, event=RunLost()):
                del self.running[name]
            case _:
                pass

    @property
    def waiting(self) -> int:
        return max(0, self.runs - self.done - len(self.running))

    @property
    def words(self) -> str:
        """The runs under way, in words."""
        if len(self.running) > 1:
            return f"{len(self.running)} running, {self.waiting} waiting"
        return next(iter(self.running), "")

    @property
    def left(self) -> str:
        """Estimate of the time left, in words; "" until there is something to estimate it from."""
        past = [self.clock() - run.began for run in self.running.values()]
        whole = [
            now * run.rounds / run.round if run.round else None
            for now, run in zip(past, self.running.values(), strict=True)
        ]
        seen = [*self.took, *(each for each in whole if each is not None)]
        if not seen:
            return ""
        usual = statistics.fmean(seen)
        mine = sum(max(0.0, (usual if all_ is None else all_) - now) for now, all_ in zip(past, whole, strict=True))
        return f"{duration_text((mine + usual * self.waiting) / max(1, len(self.running)))} left"


class ExperimentDisplay(Protocol):
    """Display that is entered before the first event, and left after the last."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def __call__(self, event: ExperimentEvent) -> None: ...


class ExperimentLines:
    """Progress for logs: at most one line a second about rounds, and one for each other event."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.write, self.clock, self.tally = write, clock, ExperimentTally(clock)
        self.last = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: nothing is open."""

    def __call__(self, event: ExperimentEvent) -> None:
        tally = self.tally
        tally.on_event(event)
        match event:
            case OfRun(run=name, event=RoundDone() as done):
                if self.clock() - self.last >= LINE_EVERY and done.round < done.rounds:
                    self.last = self.clock()
                    self.write(f"{name}: {self._place(done)}, {tally.left}")
            case _:
                for line in _remarks(event):
                    self.write(line)

    def _place(self, event: RoundDone) -> str:
        tally, where = self.tally, f"round {event.round} of {event.rounds}"
        if len(tally.running) > 1:
            return f"{where}; {tally.done} of {tally.runs} runs finished, {tally.words}"
        return f"run {tally.done + 1} of {tally.runs}, {where}"


class Bar:
    """Progress on a terminal: a bar over all runs, a bar for each of several running ones, a line per finished cell."""

    def __init__(self, console: Console) -> None:
        self.console, self.tally = console, ExperimentTally(time.monotonic)
        self.progress = Progress(
            TextColumn(
                "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=3)
            ),
            BarColumn(bar_width=None, table_column=Column(ratio=2)),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", style="cyan", markup=False, table_column=Column(no_wrap=True)),
            console=console,
            expand=True,
        )
        self.task = self.progress.add_task("", total=None, left="")
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, event: ExperimentEvent) -> None:
        tally = self.tally
        tally.on_event(event)
        for line in _remarks(event):
            self.progress.console.print(line, highlight=False, markup=False, soft_wrap=False)
        self.progress.update(
            self.task, description=tally.words, total=tally.runs, completed=tally.done, left=tally.left
        )
        self._draw_runs()

    def _draw_runs(self) -> None:
        shown = list(self.tally.running)[:BARS_MAX] if len(self.tally.running) > 1 else []
        for name in self.tasks.keys() - set(shown):
            self.progress.remove_task(self.tasks.pop(name))
        for name in shown:
            run = self.tally.running[name]
            if name not in self.tasks:
                self.tasks[name] = self.progress.add_task(f"  {name}", total=None, left="")
            self.progress.update(self.tasks[name], total=run.rounds or None, completed=run.round)


class ExperimentWarnings:
    """Display of warnings alone (`--quiet`)."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write = write

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: nothing is open."""

    def __call__(self, event: ExperimentEvent) -> None:
        if isinstance(event, Remark) and event.progress:
            return
        for line in _notes(event):
            self.write(line)


def experiment_display(console: Console, quiet: bool) -> ExperimentDisplay:
    """Return the display that suits the console: bars on a terminal, else lines, or warnings if `quiet`."""

    def write(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    if quiet:
        return ExperimentWarnings(write)
    return Bar(console) if console.is_terminal else ExperimentLines(write)


def _remarks(event: ExperimentEvent) -> list[str]:
    """Return the lines to print about an event, if any."""
    match event:
        case Begun():
            kept = f", {event.finished} of them finished already" if event.finished else ""
            return [f"{event.runs} runs{kept}"]
        case CellDone():
            scores = ", ".join(
                f"{name} {percent(sum(found) / len(found))}" for name, found in event.measured.per_seed.items()
            )
            return [f"{event.measured.label}: {scores}, {duration_text(event.measured.seconds)}"]
        case _:
            return _notes(event)


def _notes(event: ExperimentEvent) -> list[str]:
    """Return the lines to print about an event that needs attention; no lines for other events."""
    match event:
        case OfRun(run=name, event=RunLost() as lost):
            return [f"{name}: {lost.words}"]
        case Remark(text=text) | OfRun(event=Remark(text=text)):
            return [f"note: {text}"]
        case OfRun(event=WorkerReplaced() as replaced):
            return [f"{replaced.worker} died ({replaced.reason}); replaced"]
        case _:
            return []
