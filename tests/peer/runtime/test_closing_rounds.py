"""A peer that coordinates rounds and trains in them: its own training delays nobody."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fedpeer.peer.runtime.job_runner import JobRunner
from fedpeer.peer.state.events import TrainClient
from tests.peer.runtime.round_bob import round_bob_at
from tests.peer.runtime.whole import PATIENCE

pytestmark = pytest.mark.slow


def test_a_round_is_closed_while_its_coordinator_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two updates close a round; bob proposes its result before his own training has come to an end."""
    work, ends = JobRunner.work, threading.Event()

    def held(runner: JobRunner, job: Any) -> Any:
        if isinstance(job, TrainClient):
            assert ends.wait(PATIENCE), "bob proposes nothing"
        return work(runner, job)

    monkeypatch.setattr(JobRunner, "work", held)
    with round_bob_at(
        tmp_path, learning__algorithm="fedavg", learning__aggregation_goal=2, learning__farthest=None
    ) as bob:
        bob.is_elected()
        for sender in ("ann", "cas"):
            bob.hears(bob.update(sender), sender)
        bob.waits(lambda: bob.consensus.round_commit._open is not None)
        assert not ends.is_set()
        ends.set()
