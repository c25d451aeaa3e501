"""`python -m benchmarks.trackers [--rounds N] [TRACKER ...]`: the cost of experiment trackers in a run.

Sixteen peers learn digits by three methods, once with each tracker (default: tensorboard). A line has the processor
seconds inside the tracker's calls: first of the calls up to the first round, which import its library, then of all
later calls; and the share of the later calls in the processor seconds of the run without the first calls.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from collections.abc import Mapping
from typing import Any

import fedpeer
from fedpeer.config.choice import parse_choice
from fedpeer.runs.trackers.guarded import GuardedTrackers
from fedpeer.sims import tracked
from fedpeer.sims.events import RoundDone, SimulationEvent


class Kept(GuardedTrackers):
    """The trackers of the last run."""

    last: GuardedTrackers

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        Kept.last = self


def used() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    each = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in each)


def cost(tracker: str, rounds: int) -> tuple[float, float, float]:
    """Return the seconds in the tracker's calls up to the second round, in later calls, and in the whole run."""
    first: list[float] = []

    def listen(event: SimulationEvent) -> None:
        if isinstance(event, RoundDone) and event.round == 2 and not first:
            first.append(Kept.last.seconds)

    choice, before = parse_choice(tracker), used()
    settings: Mapping[str, Any] = {"learning": {"rounds": rounds}, "simulation": {"peers": 16}}
    with tempfile.TemporaryDirectory(prefix="fedpeer-trackers-") as folder:
        fedpeer.simulate(
            "digits", federation=settings, out=folder, tracking=[str(choice)], device="cpu", on_event=listen
        )
    return first[0], Kept.last.seconds - first[0], used() - before


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trackers", description=__doc__)
    parser.add_argument("trackers", nargs="*", default=["tensorboard"], help="such as wandb,mode=offline")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of each method")
    options = parser.parse_args()
    setattr(tracked, "GuardedTrackers", Kept)  # noqa: B010 - so that the run's own trackers can be read after it
    for tracker in options.trackers:
        begin, rest, whole = cost(tracker, options.rounds)
        share = 100 * rest / (whole - begin)
        print(f"{tracker}: {begin:.2f} s to begin; then {rest:.2f} s of {whole - begin:.1f} s, {share:.2f} %")


if __name__ == "__main__":
    main()
