"""A simulation's numbers in experiment trackers: one series for each method with each seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fedpeer.config.choice import call_choice
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.trackers.guarded import GuardedTrackers
from fedpeer.runs.trackers.registry import TRACKERS
from fedpeer.runs.trackers.tracker import Series, flattened
from fedpeer.sims.events import MethodDone, MethodStarted, Remark, RoundDone, SimulationEvent
from fedpeer.sims.simulation import Simulation

#: Peers up to which each peer's own numbers are tracked; for more peers, the mean, the least and the greatest.
PEERS_MAX = 100


@contextmanager
def tracked(
    simulation: Simulation, run: RunFolder, on_event: Callable[[SimulationEvent], None]
) -> Iterator[Callable[[SimulationEvent], None]]:
    """Yield a handler of events that gives settings and numbers to the trackers, and then passes each event on.

    A tracker's warning becomes a remark.
    """
    choices = simulation.request.federation.simulation.tracking
    if not choices:
        yield on_event
        return
    trackers = GuardedTrackers({each.name: call_choice(each, TRACKERS, "tracker")() for each in choices})

    def remark() -> None:
        for text in trackers.warnings():
            on_event(Remark(text=text))

    def handle(event: SimulationEvent) -> None:
        _track(trackers, simulation, run, event)
        remark()
        on_event(event)

    try:
        yield handle
    finally:
        trackers.close()
        remark()


def _track(trackers: GuardedTrackers, simulation: Simulation, run: RunFolder, event: SimulationEvent) -> None:
    match event:
        case MethodStarted(method=method, seed=seed, first_round=first):
            name = f"{method}-seed{seed}"
            series = Series(id=f"{run.id}/{name}", name=name, group=run.id, home=run.path, first=first)
            settings = simulation.resolved.to_json()
            federation = settings.pop("federation") | {"seed": seed}
            federation["simulation"].pop("tracking")  # it may name a password
            trackers.open(series, flattened({**federation, **settings, "methods": method, "seeds": seed}))
        case RoundDone(method=method, seed=seed):
            trackers.add(f"{run.id}/{method}-seed{seed}", _numbers(event, simulation), event.round)
        case MethodDone(method=method, seed=seed):
            trackers.end(f"{run.id}/{method}-seed{seed}")


def _numbers(event: RoundDone, simulation: Simulation) -> dict[str, float]:
    score = "error" if simulation.dataset.task == "regression" else "accuracy"
    found = {"seconds": event.seconds, "bytes_sent": float(event.bytes_sent)}
    for name, value_P in ((score, event.score_P), ("loss", event.loss_P)):
        if value_P:
            found |= of_peers(name, simulation.world.peers, value_P)
    return found


def of_peers(name: str, peers: Sequence[str], value_P: Sequence[float]) -> dict[str, float]:
    """Return the mean of a number over peers, and each peer's own, or the least and the greatest of many."""
    found = {f"{name}/mean": statistics.fmean(value_P)}
    if len(peers) > PEERS_MAX:
        return found | {f"{name}/least": min(value_P), f"{name}/greatest": max(value_P)}
    return found | {f"{name}/{peer}": value for peer, value in zip(peers, value_P, strict=True)}
