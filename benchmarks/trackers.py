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


class Kept(GuardedTrackers):
    """The trackers of the last run, and their seconds in all calls before the second round's."""

    last: Kept

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.begun, self._asked = 0.0, False
        Kept.last = self

    def add(self, id: str, values: Mapping[str, float], round: int) -> None:
        # In the tracker's thread, behind the earlier calls: the run may be far ahead while a library is imported.
        if round == 2 and not self._asked:
            self._asked = True
            self._threads[0].put(self._begin)
        super().add(id, values, round)

    def _begin(self, logs: object) -> None:
        self.begun = self.seconds


def used() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    each = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in each)


def cost(tracker: str, rounds: int) -> tuple[float, float, float]:
    """Return the seconds in the tracker's calls before the second round's, in later calls, and in the whole run."""
    choice, before = parse_choice(tracker), used()
    settings: Mapping[str, Any] = {"learning": {"rounds": rounds}, "simulation": {"peers": 16}}
    with tempfile.TemporaryDirectory(prefix="fedpeer-trackers-") as folder:
        fedpeer.simulate("digits", federation=settings, out=folder, tracking=[str(choice)], device="cpu")
    return Kept.last.begun, Kept.last.seconds - Kept.last.begun, used() - before


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
