"""Jobs of a peer's trainer while its federation changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedpeer.algorithms.outer_steps import OuterSteps
from fedpeer.peer.runtime.job_runner import JobRunner
from fedpeer.peer.runtime.prepared import initial_status
from fedpeer.peer.state.events import Train, Trained
from fedpeer.peer.wire.roster import RosterEntry
from tests.peer.runtime.alone import alone_at

BOB = RosterEntry(id="bob", key=bytes(32), address="http://127.0.0.1:9")


def test_a_peer_takes_outer_steps_as_soon_as_another_one_joins_it(tmp_path: Path) -> None:
    (tmp_path / "ward.csv").write_text("a,b,outcome\n" + "1,2,ill\n3,1,well\n" * 20)
    learning = {"batch_size": 8, "steps_between_averaging": 2, "outer": "nesterov"}
    ann = alone_at(
        tmp_path,
        {"network": "mlp:2+3+2", "learning": learning},
        data={"csv": str(tmp_path / "ward.csv"), "label": "outcome"},
    )
    two = replace(ann.roster, number=2, entries=(*ann.roster.entries, BOB))
    rosters, found = iter([ann.roster, two]), list[bool]()
    runner = JobRunner(
        ann, tmp_path / "state", initial_status(ann), lambda what, text: pytest.fail(text), roster=lambda: next(rosters)
    )
    x_n, s_k = ann.trainer.start(), torch.zeros(0)
    for round in (1, 2):
        done = runner.work(Train(round, round, x_n, s_k, round == 1))
        assert isinstance(done, Trained)
        x_n, s_k = done.x_n, done.s_k
        algorithm = runner._trainer.algorithm
        assert isinstance(algorithm, OuterSteps)
        found.append(bool((algorithm.rules.rule_Cn >= 0).any()))
    assert found == [False, True]
