"""Scenarios over many seeds, and a million fuzzed messages; prints each failure with the command that repeats it.

python -m tests.faults.soak                    all scenarios, some 3,000 runs, and 10^6 fuzzed messages
python -m tests.faults.soak truth 17 18        one scenario, seeds 17 <= seed < 18
python -m tests.faults.soak all 58 60          the same seeds of all scenarios
python -m tests.faults.soak fuzz 0 1000        fuzzed messages of these seeds, a thousand each
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from tests.faults.fuzz import fuzzed
from tests.faults.group_clusters import ROUND as GROUP_ROUND
from tests.faults.scenarios import LATER, SCENARIOS
from tests.faults.sessions import ROUND

#: Seeds of each scenario: three seconds of one core each, in the mean. With those below they take some 70 minutes of
#: one core, and the fuzzed messages 4: `make soak` as a whole has to stay under two hours on two cores.
SEEDS = 8
#: The same for scenarios where lies, sizes, links or moments make many kinds of run.
OTHERWISE = {
    "isolated": 144,
    "isolated_coordinated": 20,
    "liars": 36,
    "liars_soon": 2_000,
    "liars_ahead": 30,
    "killed": LATER // 3,
    "coordinator_killed": ROUND,
    "client_killed": 100,
    "group_coordinator_killed": GROUP_ROUND // 3,
    "slice_coordinator_killed": GROUP_ROUND // 3,
}
#: Where the seed is the effect after which somebody is killed: steps between seeds, so that the effects of all of a
#: federation's beginning, or of a round, have their turn.
EVERY = {"killed": 3, "client_killed": 2, "group_coordinator_killed": 3, "slice_coordinator_killed": 3}
#: A thousand messages each.
FUZZ_SEEDS = 1000
#: Seconds between two lines of progress.
SAY_S = 30.0

PLAYS: dict[str, Callable[[int], None]] = {**SCENARIOS, "fuzz": fuzzed}


def failure(job: tuple[str, int]) -> tuple[str | None, float]:
    """Return the failure of this run with the command that repeats it, or None; and the processor's seconds."""
    name, seed = job
    began = time.process_time()
    # A run makes no garbage that only the collector finds; the search for it takes a seventh of the time.
    gc.disable()
    try:
        PLAYS[name](seed)
    except Exception as problem:
        first = (str(problem) or type(problem).__name__).splitlines()[0]
        return f"python -m tests.faults.soak {name} {seed} {seed + 1}    # {first[:160]}", time.process_time() - began
    finally:
        gc.collect()
    return None, time.process_time() - began


def soak(jobs: list[tuple[str, int]]) -> int:
    """Run the jobs on all cores; return the number that failed."""
    failed, said, spent = 0, time.monotonic(), dict.fromkeys((name for name, _ in jobs), 0.0)
    with ProcessPoolExecutor() as pool:
        for done, (line, seconds) in enumerate(pool.map(failure, jobs, chunksize=4), start=1):
            spent[jobs[done - 1][0]] += seconds
            if line is not None:
                failed += 1
                print(line, flush=True)
            if time.monotonic() - said > SAY_S:
                said = time.monotonic()
                print(f"{done} of {len(jobs)} runs, {failed} failed", flush=True)
    longest = ", ".join(
        f"{name} {seconds:.0f}" for name, seconds in sorted(spent.items(), key=lambda each: -each[1])[:12]
    )
    print(f"seconds of one core: {sum(spent.values()):.0f}, of them {longest}")
    print(f"{len(jobs)} runs, {failed} failed")
    return failed


def main(arguments: list[str]) -> int:
    if arguments:
        name, first, last = arguments[0], int(arguments[1]), int(arguments[2])
        names = list(SCENARIOS) if name == "all" else [name]
        return soak([(each, seed) for seed in range(first, last) for each in names])
    seeds = {name: OTHERWISE.get(name, SEEDS) for name in SCENARIOS}
    return soak(
        [("fuzz", seed) for seed in range(FUZZ_SEEDS)]
        + [
            (name, 1 + EVERY.get(name, 1) * number)
            for number in range(max(seeds.values()))
            for name in SCENARIOS
            if number < seeds[name]
        ]
    )


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
