"""Every promise about faults, over seeds: each kind of run here, thousands of runs in `make soak`.

A seed determines a whole run, the rates of the faults included. The id of a test names the run to repeat.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.faults.fuzz import fuzzed
from tests.faults.isolation import KINDS, isolate
from tests.faults.scenarios import SCENARIOS, played
from tests.faults.sessions import ROUND, starved

#: By scenario, seeds that always run, and seeds that run with the slow tests: one of each kind, and those that found a
#: bug in a peer and are not among the twenty of most that `make soak` runs (`soak.py`).
SEEDS: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    # A peer comes so late that it takes over a value.
    "truth": (range(1), (11,)),
    "killed": (range(111, 112), range(99, 100)),
    "neighbours_killed": (range(0), range(1)),
    "forgotten": (range(0), range(1)),
    "cut": (range(0), range(1, 2)),
    "stumbling": (range(0), range(1)),
    "pausing": (range(0), range(1)),
    "trusting": (range(1, 2), range(0)),
    "masked": (range(0), range(1)),
    "drifting": (range(1), (76,)),  # 76: an averaging that went on without others was taken for a complete one
    "leaving": (range(1), range(0)),
    # A peer's three shares leave the last bit of its weight.
    "leaving_slowly": (range(0), (65,)),
    "joining": (range(0), range(1, 2)),
    "slow_asynchronous": (range(0), range(10, 11)),  # a peer joins late after it has taken shares
    "slow_synchronous": (range(0), range(1)),
    # A peer learns of the new member before it learns of the roster.
    "roster_changes": (range(0), (30,)),
    "revoked": (range(1), (79,)),  # 79: a roster arrives in the middle of a cut
    "detection": (range(0), range(1, 2)),
    "replayed": (range(0), range(1)),
    "coordinator_killed": (range(2, ROUND, 40), range(0, ROUND, 10)),
    "client_killed": (range(20, 200, 60), range(9, 200, 40)),
    "coordinated": (range(1), range(0)),
    "buffered": (range(2, 3), (19,)),  # 19: the slow peer coordinates
    "minority": (range(0), range(1)),
    "disk_lost": (range(0), range(1)),
    "voters_change": (range(0), range(9, 10)),
    "coordinator_leaves": (range(0), range(1)),
    "ending": (range(1), range(3, 30, 26)),
    "starved": (range(0), (72,)),  # 72: two voters in a later term than the coordinator, and a dead one
    "terms_lied_about": (range(0), (2,)),
    "group_coordinator_killed": (range(8, 9), range(97, 98)),
    "groups_coordinated": (range(0), range(1)),
    "group_minority": (range(0), range(1)),
    "group_terms_lied_about": (range(1), (5,)),
    "groups_end": (range(0), range(3, 4)),
    "group_members_change": (range(0), range(1)),
    # Four in a ring are all apart, and come back to edges that were added for the dead.
    "isolated": (range(0), (143,)),
    "isolated_coordinated": (range(0), range(3, 4)),
    # One of three voters lies before anybody has met it.
    "liars": (range(0), (65,)),
    "liars_soon": (range(2), range(2, 24)),
    # To int8 and to top-k; from push-pull and from averaging by drift.
    "amended": (range(1, 2), (5, 7, 10)),
    "readmitted": (range(1), range(3, 4)),
    # A peer that was behind when the others switched; kills before, during and after the switch.
    "amended_groups": (range(2, 3), range(0)),
    "amended_killed": (range(0), range(4, 36, 12)),
    "amended_newcomer": (range(1, 2), range(0)),
}


def runs() -> list[ParameterSet]:
    found = []
    for name, (quick, slow) in SEEDS.items():
        found += [pytest.param(name, seed, id=f"{name}-{seed}") for seed in quick]
        marks = [pytest.mark.slow]
        found += [pytest.param(name, seed, id=f"{name}-{seed}", marks=marks) for seed in slow if seed not in quick]
    return found


@pytest.mark.parametrize(("name", "seed"), runs())
def test_what_is_promised_holds_whatever_happens(name: str, seed: int) -> None:
    SCENARIOS[name](seed)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("exchanges", "deadline"), [(10, 30.0), (4, 2.0)])
def test_five_minutes_alone_cost_no_more_than_half_a_minute(kind: str, exchanges: int, deadline: float) -> None:
    isolate(kind, 300.0, exchanges, deadline, "complete", seed=0)


def test_every_scenario_is_played() -> None:
    assert SEEDS.keys() == SCENARIOS.keys()


@pytest.mark.soak  # ten minutes of virtual time each
@pytest.mark.parametrize("seed", range(8))
def test_at_most_one_coordinator_follows_another_in_ten_minutes_on_starved_machines(seed: int) -> None:
    starved(seed, ticks=24_000.0)


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_are_a_message_or_a_named_refusal(seed: int) -> None:  # P10
    fuzzed(seed)


@pytest.mark.parametrize("seed", [pytest.param(1, id="D05")])
def test_no_clock_of_the_machine_is_read(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """P13: The history is the same with clocks that advance by an hour at each reading."""
    before = played(seed)
    hours = iter(range(10**9))
    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: 3600.0 * next(hours))
    for name in ("time_ns", "monotonic_ns", "perf_counter_ns"):
        monkeypatch.setattr(time, name, lambda: 3600 * 10**9 * next(hours))
    monkeypatch.setattr(datetime, "datetime", None)
    again = played(seed)
    monkeypatch.undo()
    assert again == before


@pytest.mark.slow
def test_another_process_plays_the_same_history() -> None:
    """P14: The history does not depend on the hash seed of the interpreter, which differs from the one here."""
    code = "from tests.faults.scenarios import played; print(played(2))"
    environment = os.environ | {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == played(2)
