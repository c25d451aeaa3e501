"""What a simulation looks like while it runs: bars on a terminal, at most one line a second anywhere else.

Both are told the events of `sims/events.py` one after the other and keep one `Tally` a method. Nothing here decides
anything. Progress goes to standard error, so that standard output holds results only.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from fedpeer.cli.units import apart, lasting
from fedpeer.runs.history import Measure
from fedpeer.runs.summary import score_text
from fedpeer.sims.events import Event, MethodDone, MethodStarted, Remark, RoundDone, SimulationStarted, WorkerReplaced

#: Seconds between two lines of a log: a person can follow, and a long run's log stays short.
LINE_EVERY = 1.0


@dataclass
class Tally:
    """What has been seen of one method, over all its seeds."""

    rounds_total: int
    rounds_done: int = 0
    seconds: list[float] = field(default_factory=list)
    score: str = ""
    seed: int = 0

    def add(self, event: RoundDone, measure: Measure) -> None:
        self.rounds_done += 1
        self.seconds = [*self.seconds[-19:], event.seconds]  # of late: the first rounds also warm up
        if event.score_P:
            mean, spread = statistics.fmean(event.score_P), statistics.pstdev(event.score_P)
            self.score = f"{score_text(mean, measure)} ± {apart(spread, measure)}"

    @property
    def pace(self) -> float:
        """Seconds a round, the median of late."""
        return statistics.median(self.seconds) if self.seconds else 0.0

    @property
    def left(self) -> float:
        return self.pace * (self.rounds_total - self.rounds_done)


class Watcher(Protocol):
    """A display: entered before the first event, left after the last."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __call__(self, event: Event) -> None: ...


class Board:
    """The tallies, and the words both displays share."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.seeds: dict[str, list[int]] = {}
        self.measure: Measure = "accuracy"

    def start(self, event: SimulationStarted) -> str:
        for method, seed in event.cells:
            self.seeds.setdefault(method, []).append(seed)
        self.tallies = {method: Tally(event.rounds * len(seeds)) for method, seeds in self.seeds.items()}
        self.measure = event.measure
        workers = f"{event.workers} worker{'s' if event.workers > 1 else ''} on {event.device}"
        size = f"{event.parameters:,} parameters each"
        return f"{event.dataset}: {event.peers} peers, {size}, {event.rounds} rounds, {workers}; run {event.run}"

    def begin(self, event: MethodStarted) -> Tally:
        tally = self.tallies[event.method]
        tally.seed = event.seed
        tally.rounds_done = self.seeds[event.method].index(event.seed) * event.rounds + event.first_round - 1
        return tally

    def name(self, method: str) -> str:
        several = len(self.seeds[method]) > 1
        return f"{method}, seed {self.tallies[method].seed}" if several else method


def _replaced(event: WorkerReplaced) -> str:
    return f"{event.worker} died ({event.reason}) in round {event.round} of {event.method}; another took over its work"


def _words(text: str, width: int) -> TextColumn:
    """A column that keeps its width while its words change, so that nothing moves."""
    return TextColumn(text, justify="right", table_column=Column(min_width=width, no_wrap=True))


class Bars:
    """One bar a method on a terminal."""

    def __init__(self, console: Console) -> None:
        self.console, self.board = console, Board()
        self.tasks: dict[str, TaskID] = {}
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            _words("{task.fields[score]}", 12),
            _words("[dim]{task.fields[pace]}", 13),
            _words("[cyan]{task.fields[left]}", 12),
            console=console,
            expand=True,
            refresh_per_second=8,
        )

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case SimulationStarted():
                self._say(self.board.start(event))
                self._say(f"[dim]{self.board.measure}: mean ± spread over peers")
                for method, tally in self.board.tallies.items():
                    self.tasks[method] = self.progress.add_task(
                        method, total=tally.rounds_total, start=False, score="", pace="", left="waiting"
                    )
            case MethodStarted():
                self.board.begin(event)
                self.progress.start_task(self.tasks[event.method])
                self._draw(event.method)
            case RoundDone():
                self.board.tallies[event.method].add(event, self.board.measure)
                self._draw(event.method)
            case MethodDone():
                self._draw(event.method)
            case WorkerReplaced():
                self._say(f"[yellow]{_replaced(event)}")
            case Remark():
                self._say(f"[dim]note: {event.text}")

    def _say(self, text: str) -> None:
        self.progress.console.print(text, highlight=False, soft_wrap=False)

    def _draw(self, method: str) -> None:
        tally = self.board.tallies[method]
        done = tally.rounds_done >= tally.rounds_total
        self.progress.update(
            self.tasks[method],
            description=self.board.name(method),
            completed=tally.rounds_done,
            score=tally.score,
            pace=f"{lasting(tally.pace)}/round" if tally.seconds else "",
            left="done" if done else f"{lasting(tally.left)} left" if tally.seconds else "starting",
        )


class Lines:
    """One line a second at most, and one at the end of each method: for logs."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.write, self.clock, self.board = write, clock, Board()
        self.last = clock() - LINE_EVERY

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open."""

    def __call__(self, event: Event) -> None:
        match event:
            case SimulationStarted():
                self.write(self.board.start(event))
            case MethodStarted():
                self.board.begin(event)
            case RoundDone():
                self.board.tallies[event.method].add(event, self.board.measure)
                if self.clock() - self.last >= LINE_EVERY and event.round < event.rounds:
                    self.last = self.clock()
                    self.write(self._line(event.method))
            case MethodDone():
                self.write(self._line(event.method))
            case WorkerReplaced():
                self.write(_replaced(event))
            case Remark():
                self.write(f"note: {event.text}")

    def _line(self, method: str) -> str:
        tally = self.board.tallies[method]
        words = [f"round {tally.rounds_done} of {tally.rounds_total}"]
        if tally.score:
            words.append(f"{self.board.measure} {tally.score}")
        if tally.seconds:
            words.append(f"{lasting(tally.pace)} a round")
        words.append(f"{lasting(tally.left)} left" if tally.rounds_done < tally.rounds_total else "done")
        return f"{self.board.name(method)}: {', '.join(words)}"


class Silence:
    """No progress at all (`--quiet`)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open."""

    def __call__(self, event: Event) -> None:
        """Events pass unseen."""


def watcher(console: Console, quiet: bool) -> Watcher:
    """The display that suits where standard error goes."""
    if quiet:
        return Silence()
    if console.is_terminal:
        return Bars(console)
    return Lines(lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True))
