"""Progress of a simulation: bars on a terminal and in a notebook, at most one line a second elsewhere.

All displays receive the events of `sims/events.py` in order and keep the tallies of `tally.py`; they decide nothing.
Progress goes to standard error, or under the notebook's cell, so that standard output has results only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from importlib import import_module
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from fedpeer.runs.units import duration_text
from fedpeer.sims.events import (
    MethodDone,
    MethodStarted,
    Remark,
    RoundDone,
    RunBegun,
    RunLost,
    SimulationEvent,
    SimulationStarted,
    WorkerReplaced,
)
from fedpeer.sims.tally import ProgressTable, lost_text, replaced_text

#: Seconds between two lines of a log: slow enough to follow, and a long run's log stays short.
LINE_EVERY = 1.0
#: Seconds between two drawings in a notebook, each of which is a message to the browser.
DRAW_EVERY = 0.25


class ProgressDisplay(Protocol):
    """Display that is entered before the first event, and left after the last."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __call__(self, event: SimulationEvent) -> None: ...


def _words(text: str, width: int, style: str = "none") -> TextColumn:
    """Return a column that keeps its width while its text changes, so that nothing moves."""
    column = Column(min_width=width, no_wrap=True)
    return TextColumn(text, style, justify="right", markup=False, table_column=column)


class Bars:
    """Progress on a terminal: one bar per method."""

    def __init__(self, console: Console) -> None:
        self.console, self.board = console, ProgressTable()
        self.tasks: dict[str, TaskID] = {}
        self.runs: TaskID | None = None
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            _words("{task.fields[score]}", 12),
            _words("{task.fields[pace]}", 13, "dim"),
            _words("{task.fields[left]}", 12, "cyan"),
            console=console,
            expand=True,
            refresh_per_second=8,
        )

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, event: SimulationEvent) -> None:
        self.board.on_event(event)
        match event:
            case SimulationStarted():
                self._say(self.board.start(event))
                self._say(f"{self.board.measure}: mean ± spread over peers", "dim")
                if self.board.together:
                    count = len(event.cells)
                    self.runs = self.progress.add_task("runs finished", total=count, score="", pace="", left="")
                for method, tally in self.board.tallies.items():
                    self.tasks[method] = self.progress.add_task(
                        method, total=tally.rounds_total, start=False, score="", pace="", left="waiting"
                    )
            case RunLost():
                self._say(lost_text(event), "yellow")
                self._draw(event.method)
            case RunBegun() | MethodStarted():
                self.progress.start_task(self.tasks[event.method])
                self._draw(event.method)
            case RoundDone() | MethodDone():
                self._draw(event.method)
            case WorkerReplaced():
                self._say(replaced_text(event), "yellow")
            case Remark():
                self._say(f"note: {event.text}", "dim")

    def _say(self, text: str, style: str | None = None) -> None:
        self.progress.console.print(text, style=style, highlight=False, markup=False, soft_wrap=False)

    def _draw(self, method: str) -> None:
        if self.runs is not None:
            finished, running, waiting = self.board.runs
            self.progress.update(self.runs, completed=finished, pace=f"{running} running", left=f"{waiting} waiting")
        tally = self.board.tallies[method]
        done = tally.rounds_done >= tally.rounds_total
        self.progress.update(
            self.tasks[method],
            description=self.board.name(method),
            completed=tally.rounds_done,
            score=tally.score,
            pace=f"{duration_text(tally.pace)}/round" if tally.seconds else "",
            left="done" if done else tally.outlook,
        )


class ProgressLines:
    """Progress for logs: at most one line a second, and one at the end of each method."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.write, self.clock, self.board = write, clock, ProgressTable()
        self.last = clock() - LINE_EVERY

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: nothing is open."""

    def __call__(self, event: SimulationEvent) -> None:
        self.board.on_event(event)
        match event:
            case SimulationStarted():
                self.write(self.board.start(event))
            case RoundDone():
                if self.clock() - self.last >= LINE_EVERY and event.round < event.rounds:
                    self.last = self.clock()
                    self.write(self._line(event.method))
            case MethodDone():
                self.write(self._line(event.method))
            case _:
                for line in _note_lines(event):
                    self.write(line)

    def _line(self, method: str) -> str:
        tally = self.board.tallies[method]
        words = [f"round {tally.rounds_done} of {tally.rounds_total}"]
        if tally.score:
            words.append(f"{self.board.measure} {tally.score}")
        if tally.seconds:
            words.append(f"{duration_text(tally.pace)} a round")
        words.append(f"{duration_text(tally.left)} left" if tally.rounds_done < tally.rounds_total else "done")
        if self.board.together:
            finished, running, waiting = self.board.runs
            words.append(f"runs: {finished} finished, {running} running, {waiting} waiting")
        return f"{self.board.name(method)}: {', '.join(words)}"


class NotebookBars:
    """Progress under a notebook's cell: a table with one bar per method, redrawn in place; it needs no widgets."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.board = clock, ProgressTable()
        self.last = clock() - DRAW_EVERY
        self.title = ""
        self.notes: list[str] = []
        self._ipython = import_module("IPython.display")
        self._output: Any = None

    def __enter__(self) -> Self:
        self._output = self._ipython.display(self._ipython.HTML(""), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the last picture stays."""

    def __call__(self, event: SimulationEvent) -> None:
        self.board.on_event(event)
        if isinstance(event, SimulationStarted):
            self.title = self.board.start(event)
        self.notes += _note_lines(event)
        if not isinstance(event, RoundDone) or self.clock() - self.last >= DRAW_EVERY:
            self._draw()

    def _draw(self) -> None:
        self.last = self.clock()
        rows = []
        for method, tally in self.board.tallies.items():
            done, total = tally.rounds_done, tally.rounds_total
            bar = f"<progress value={done} max={total}></progress>"
            left = "done" if done >= total else tally.outlook
            cells = [escape(self.board.name(method)), bar, f"{done} of {total} rounds", tally.score, left]
            rows.append("".join(f"<td>{cell}</td>" for cell in cells))
        lines = [f"<p>{escape(text)}</p>" for text in (self.title, *self.notes) if text]
        table = "".join(f"<tr>{row}</tr>" for row in rows)
        self._output.update(self._ipython.HTML(f"{''.join(lines)}<table>{table}</table>"))


class WarningsOnly:
    """Display of warnings alone (`--quiet`, and scripts of Python by default)."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: nothing is open."""

    def __call__(self, event: SimulationEvent) -> None:
        if isinstance(event, Remark) and event.progress:
            return
        for line in _note_lines(event):
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _note_lines(event: SimulationEvent) -> list[str]:
    """Return the lines to print about an event that needs attention; no lines for other events."""
    match event:
        case RunLost():
            return [lost_text(event)]
        case WorkerReplaced():
            return [replaced_text(event)]
        case Remark():
            return [f"note: {event.text}"]
        case _:
            return []


class NoProgress:
    """Nothing at all: a script of Python that asked for that."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: nothing is open."""

    def __call__(self, event: SimulationEvent) -> None:
        """Ignore the event."""


def progress_display(console: Console, quiet: bool) -> ProgressDisplay:
    """Return the display that suits the console: bars on a terminal or in a notebook, else lines; `quiet`: warnings."""
    if quiet:
        return WarningsOnly(console)
    if console.is_jupyter:
        return NotebookBars()
    if console.is_terminal:
        return Bars(console)
    return ProgressLines(lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True))
