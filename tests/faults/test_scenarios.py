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
from tests.faults.isolation import COORDINATED, DEADLINES, KINDS, isolate, isolate_coordinated
from tests.faults.scenarios import SCENARIOS, played
from tests.faults.sessions import ROUND, starved

#: By scenario, seeds that always run, and seeds for `make soak` alone: these found a bug in a peer, or belong to one of
#: two scenarios that test the same code. `soak.py` plays many more of all scenarios.
SEEDS: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "truth": ((0,), ()),
    "killed": ((111,), (99,)),
    "neighbours_killed": ((0,), ()),
    "forgotten": ((0,), ()),
    # A peer is alone on its side, and its last shares were acknowledged just before the cut.
    "cut": ((3,), (1, 67)),
    "stumbling": ((0,), ()),
    "pausing": ((0,), ()),
    "trusting": ((1,), ()),
    "masked": ((0,), ()),
    "drifting": ((0,), (76,)),  # 76: an averaging that went on without others was taken for a complete one
    "leaving": ((0,), ()),
    # A peer's three shares leave the last bit of its weight.
    "leaving_slowly": ((65,), ()),
    "joining": ((1,), ()),
    "slow_asynchronous": ((10,), ()),  # a peer joins late after it has taken shares
    "slow_synchronous": ((0,), ()),
    # A peer learns of the new member before it learns of the roster.
    "roster_changes": ((30,), ()),
    "revoked": ((0,), (79,)),  # 79: a roster arrives in the middle of a cut
    "detection": ((1,), ()),
    "replayed": ((), (0,)),  # `test_no_clock_of_the_machine_is_read` plays a seed twice
    "coordinator_killed": (range(2, ROUND, 40), ()),
    "client_killed": ((80, 129), (89,)),
    "coordinated": ((0,), ()),
    "buffered": ((2,), ()),
    "minority": ((0,), ()),
    "disk_lost": ((0,), ()),
    "vote_forgotten": ((5,), (0,)),
    "voters_change": ((9,), ()),
    "voters_join": ((1,), ()),
    "voter_readmitted": ((3,), (2,)),
    "coordinator_leaves": ((0,), ()),
    "ending": ((29,), ()),
    "starved": ((0,), (72,)),  # 72: two voters in a later term than the coordinator, and a dead one
    "terms_lied_about": ((2,), ()),
    "group_coordinator_killed": ((), (8,)),  # as `slice_coordinator_killed`
    "slice_coordinator_killed": ((8,), ()),
    "groups_coordinated": ((), (0,)),  # as `slices_coordinated`
    "slices_coordinated": ((0,), ()),
    "group_minority": ((0,), ()),
    "group_terms_lied_about": ((0,), ()),
    "groups_end": ((), (3,)),  # as `slices_end`
    "slices_end": ((3,), ()),
    "group_members_change": ((0, 1), ()),  # 1: a group begins with its second member
    # Four in a ring are all apart, and come back to edges that were added for the dead. `make soak` plays 111, too: a
    # peer that stayed a round behind gave its weight to neighbors that gave it none.
    "isolated": ((863,), (287,)),
    "isolated_coordinated": ((0,), ()),
    "liars": ((2,), (65,)),  # 65: one of three voters lies before anybody has met it
    # A late joiner waited for a third value from a liar that had gone, or that gave none.
    "liars_soon": ((*range(4), 613, 1813), ()),
    "liars_ahead": ((0,), ()),  # `make soak` plays all seeds
    "amended": ((7,), (1,)),  # from push-pull; to int8
    "readmitted": ((0,), ()),
    # A peer was behind when the others switched; kills before, during and after the switch.
    "amended_groups": ((), (2,)),  # as `amended_slices`
    "amended_slices": ((2,), ()),
    "amended_killed": ((16,), (28,)),
    "amended_newcomer": ((1,), ()),
}


def runs() -> list[ParameterSet]:
    """Return each scenario with each of its seeds."""
    return [
        pytest.param(name, seed, id=f"{name}-{seed}", marks=mark)
        for name, (always, soak) in SEEDS.items()
        for seeds, mark in ((always, pytest.mark.slow), (soak, pytest.mark.soak))
        for seed in seeds
    ]


@pytest.mark.parametrize(("name", "seed"), runs())
def test_what_is_promised_holds_whatever_happens(name: str, seed: int) -> None:
    SCENARIOS[name](seed)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("exchanges", "deadline"), [(10, 30.0), (4, 2.0)])
def test_five_minutes_alone_cost_no_more_than_half_a_minute(kind: str, exchanges: int, deadline: float) -> None:
    isolate(kind, 300.0, exchanges, deadline, "complete", seed=0)


@pytest.mark.soak
@pytest.mark.parametrize("deadline", DEADLINES)
@pytest.mark.parametrize("kind", dict.fromkeys(kind for kind, *_ in COORDINATED))
def test_five_minutes_alone_cost_groups_with_coordinators_no_more(kind: str, deadline: float) -> None:
    isolate_coordinated(kind, 300.0, deadline, seed=0)


def test_every_scenario_is_played() -> None:
    assert SEEDS.keys() == SCENARIOS.keys()


@pytest.mark.soak  # ten minutes of virtual time each
@pytest.mark.parametrize("seed", range(8))
def test_at_most_one_coordinator_follows_another_in_ten_minutes_on_starved_machines(seed: int) -> None:
    starved(seed, ticks=24_000.0)


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_are_a_message_or_a_named_refusal(seed: int) -> None:  # P10
    fuzzed(seed)


@pytest.fixture(scope="module")
def history() -> str:
    """Return the digest of one stormy run."""
    return played(2)


@pytest.mark.parametrize("seed", [pytest.param(2, id="D05")])
def test_no_clock_of_the_machine_is_read(seed: int, history: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P13: The history is the same with clocks that advance by an hour at each reading."""
    hours = iter(range(10**9))
    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: 3600.0 * next(hours))
    for name in ("time_ns", "monotonic_ns", "perf_counter_ns"):
        monkeypatch.setattr(time, name, lambda: 3600 * 10**9 * next(hours))
    monkeypatch.setattr(datetime, "datetime", None)
    again = played(seed)
    monkeypatch.undo()
    assert again == history


@pytest.mark.slow
def test_another_process_plays_the_same_history(history: str) -> None:
    """P14: The history does not depend on the hash seed of the interpreter, which differs from the one here."""
    code = "from tests.faults.scenarios import played; print(played(2))"
    environment = os.environ | {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == history
