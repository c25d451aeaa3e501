"""The numbers of `benchmarks/trackers.py`: seconds inside a tracker's calls, and of the whole run."""

from __future__ import annotations

import pytest

from benchmarks.trackers import Kept, cost
from fedpeer.sims import tracked
from tests.runs.trackers import Recorder, known_as


@pytest.mark.slow
def test_what_a_tracker_costs_is_part_of_what_the_run_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    known_as(monkeypatch, "recorder", recorder)
    monkeypatch.setattr(tracked, "GuardedTrackers", Kept)
    begin, rest, whole = cost("recorder,place=here", rounds=2)
    assert begin > 0
    assert rest > 0
    assert begin + rest < whole
    assert [len(recorder.rows(f"{name}-seed0")) for name in ("local", "full-averaging")] == [2, 2]
