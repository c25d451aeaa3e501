"""Progress of a simulation: bars on a terminal, at most one line a second elsewhere.

Both displays receive the events of `sims/events.py` in order and keep one `MethodTally` per method; they decide
nothing. Progress goes to standard error, so that standard output has results only.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from fedpeer.cli.units import apart, duration_text
from fedpeer.runs.history import Measure
from fedpeer.runs.summary import score_text
from fedpeer.sims.events import (
    Event,
    MethodDone,
    MethodStarted,
    Remark,
    RoundDone,
    RunBegun,
    RunLost,
    SimulationStarted,
    WorkerReplaced,
)

#: Seconds between two lines of a log: slow enough to follow, and a long run's log stays short.
LINE_EVERY = 1.0


@dataclass
class MethodTally:
    """Progress of one method over all its seeds, which run one after the other or several at once.

    rounds    rounds of each seed
    seeds     number of seeds
    done      seed -> finished rounds
    running   seeds under way
    seconds   duration of the last 20 rounds, in s
    score     newest score: mean ± spread over the peers
    seed      seed of the newest event
    """

    rounds: int
    seeds: int
    done: dict[int, int] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)
    score: str = ""
    seed: int = 0

    def begin(self, seed: int, done: int = 0) -> None:
        self.running.add(seed)
        self.done[seed], self.seed = done, seed

    def add(self, event: RoundDone, measure: Measure) -> None:
        self.done[event.seed], self.seed = event.round, event.seed
        self.seconds = [*self.seconds[-19:], event.seconds]  # recent rounds only: the first ones include warm-up
        if event.score_P:
            mean, finite = statistics.fmean(event.score_P), all(map(math.isfinite, event.score_P))
            spread = statistics.pstdev(event.score_P) if finite else math.nan  # it raises for NaN
            self.score = f"{score_text(mean, measure)} ± {apart(spread, measure)}"

    @property
    def outlook(self) -> str:
        """The time left, in words."""
        if not self.running:
            return "waiting"
        return f"{duration_text(self.left)} left" if self.seconds else "starting"

    def end(self, seed: int) -> None:
        self.running.discard(seed)
        self.done[seed], self.seed = self.rounds, seed

    def lose(self, seed: int) -> None:
        """Return a lost run to the waiting ones."""
        self.running.discard(seed)
        self.done[seed] = 0

    @property
    def rounds_done(self) -> int:
        return sum(self.done.values())

    @property
    def rounds_total(self) -> int:
        return self.rounds * self.seeds

    @property
    def finished(self) -> int:
        """Number of finished seeds."""
        return sum(done == self.rounds for seed, done in self.done.items() if seed not in self.running)

    @property
    def pace(self) -> float:
        """Seconds per round: the median of the last rounds."""
        return statistics.median(self.seconds) if self.seconds else 0.0

    @property
    def left(self) -> float:
        return self.pace * (self.rounds_total - self.rounds_done) / max(1, len(self.running))


class ProgressDisplay(Protocol):
    """Display that is entered before the first event, and left after the last."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __call__(self, event: Event) -> None: ...


class ProgressTable:
    """Tallies of all methods, and the texts that both displays share."""

    def __init__(self) -> None:
        self.tallies: dict[str, MethodTally] = {}
        self.measure: Measure = "accuracy"
        self.together = False

    def start(self, event: SimulationStarted) -> str:
        seeds = Counter(method for method, _ in event.cells)
        self.tallies = {method: MethodTally(event.rounds, count) for method, count in seeds.items()}
        self.measure, self.together = event.measure, event.at_once > 1
        workers = f"{event.workers} worker{'s' if event.workers > 1 else ''} on {event.device}"
        size = f"{event.parameters:,} parameters each"
        return f"{event.dataset}: {event.peers} peers, {size}, {event.rounds} rounds, {workers}; run {event.run}"

    def on_event(self, event: Event) -> None:
        match event:
            case RunBegun():
                self.tallies[event.method].begin(event.seed)
            case MethodStarted():
                self.tallies[event.method].begin(event.seed, event.first_round - 1)
            case RoundDone():
                self.tallies[event.method].add(event, self.measure)
            case MethodDone():
                self.tallies[event.method].end(event.seed)
            case RunLost():
                self.tallies[event.method].lose(event.seed)
            case _:
                pass

    def name(self, method: str) -> str:
        tally = self.tallies[method]
        if len(tally.running) > 1:
            return f"{method}, {len(tally.running)} seeds at once"
        return f"{method}, seed {tally.seed}" if tally.seeds > 1 and tally.done else method

    @property
    def runs(self) -> tuple[int, int, int]:
        """Numbers of finished, running and waiting runs."""
        tallies = self.tallies.values()
        finished, running = sum(each.finished for each in tallies), sum(len(each.running) for each in tallies)
        return finished, running, sum(each.seeds for each in tallies) - finished - running


def _lost(event: RunLost) -> str:
    return f"{event.method}, seed {event.seed}: {event.words}"


def _replaced(event: WorkerReplaced) -> str:
    return f"{event.worker} died ({event.reason}) in round {event.round} of {event.method}; another took over its work"


def _words(text: str, width: int) -> TextColumn:
    """Return a column that keeps its width while its text changes, so that nothing moves."""
    return TextColumn(text, justify="right", table_column=Column(min_width=width, no_wrap=True))


class Bars:
    """Progress on a terminal: one bar per method."""

    def __init__(self, console: Console) -> None:
        self.console, self.board = console, ProgressTable()
        self.tasks: dict[str, TaskID] = {}
        self.runs: TaskID | None = None
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
        self.board.on_event(event)
        match event:
            case SimulationStarted():
                self._say(self.board.start(event))
                self._say(f"[dim]{self.board.measure}: mean ± spread over peers")
                if self.board.together:
                    count = len(event.cells)
                    self.runs = self.progress.add_task("runs finished", total=count, score="", pace="", left="")
                for method, tally in self.board.tallies.items():
                    self.tasks[method] = self.progress.add_task(
                        method, total=tally.rounds_total, start=False, score="", pace="", left="waiting"
                    )
            case RunLost():
                self._say(f"[yellow]{_lost(event)}")
                self._draw(event.method)
            case RunBegun() | MethodStarted():
                self.progress.start_task(self.tasks[event.method])
                self._draw(event.method)
            case RoundDone() | MethodDone():
                self._draw(event.method)
            case WorkerReplaced():
                self._say(f"[yellow]{_replaced(event)}")
            case Remark():
                self._say(f"[dim]note: {event.text}")

    def _say(self, text: str) -> None:
        self.progress.console.print(text, highlight=False, soft_wrap=False)

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

    def __call__(self, event: Event) -> None:
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
            case RunLost():
                self.write(_lost(event))
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
            words.append(f"{duration_text(tally.pace)} a round")
        words.append(f"{duration_text(tally.left)} left" if tally.rounds_done < tally.rounds_total else "done")
        if self.board.together:
            finished, running, waiting = self.board.runs
            words.append(f"runs: {finished} finished, {running} running, {waiting} waiting")
        return f"{self.board.name(method)}: {', '.join(words)}"


class NoProgress:
    """No progress at all (`--quiet`)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: nothing is open."""

    def __call__(self, event: Event) -> None:
        """Ignore the event."""


def progress_display(console: Console, quiet: bool) -> ProgressDisplay:
    """Return the display that suits the console: bars on a terminal, else lines, or none if `quiet`."""
    if quiet:
        return NoProgress()
    if console.is_terminal:
        return Bars(console)
    return ProgressLines(lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True))
