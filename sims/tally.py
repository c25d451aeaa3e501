"""A simulation's progress, as its displays show it: rounds, pace and newest score of each method."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field

from fedpeer.runs.history import Measure
from fedpeer.runs.summary import score_text
from fedpeer.runs.units import apart, duration_text
from fedpeer.sims.events import (
    MethodDone,
    MethodStarted,
    RoundDone,
    RunBegun,
    RunLost,
    SimulationEvent,
    SimulationStarted,
    WorkerReplaced,
)


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


class ProgressTable:
    """Tallies of all methods, and the texts that the displays share."""

    def __init__(self) -> None:
        self.tallies: dict[str, MethodTally] = {}
        self.measure: Measure = "accuracy"
        self.together = False

    def start(self, event: SimulationStarted) -> str:
        seeds = Counter(method for method, _ in event.cells)
        self.tallies = {method: MethodTally(event.rounds, count) for method, count in seeds.items()}
        self.measure, self.together = event.measure, event.at_once > 1
        peers, rounds = (
            f"{event.peers} peer{'s' * (event.peers != 1)}",
            f"{event.rounds} round{'s' * (event.rounds != 1)}",
        )
        where = f"on {event.device}"
        if event.workers:  # none if a device does the work
            where = f"{event.workers} worker{'s' * (event.workers > 1)} {where}"
        least, most = event.parameters[0], event.parameters[-1]
        size = f"{least:,} parameters each" if least == most else f"{least:,} to {most:,} parameters"
        return f"{event.dataset}: {peers}, {size}, {rounds}, {where}; run {event.run}"

    def on_event(self, event: SimulationEvent) -> None:
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


def lost_text(event: RunLost) -> str:
    """Describe the loss of a run."""
    return f"{event.method}, seed {event.seed}: {event.words}"


def replaced_text(event: WorkerReplaced) -> str:
    """Describe the replacement of a worker."""
    return f"{event.worker} died ({event.reason}) in round {event.round} of {event.method}; another took over its work"
