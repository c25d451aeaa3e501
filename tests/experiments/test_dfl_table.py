"""The table of methods to compare with: its quick size runs, stops and goes on, and each method has as many steps."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fedpeer.data.registry import describe_dataset
from fedpeer.experiments.columns import COLUMNS
from fedpeer.experiments.dfl import TABLE
from fedpeer.experiments.events import OfRun
from fedpeer.experiments.runner import ExperimentOptions, found, run_experiment
from fedpeer.experiments.table import table_page
from fedpeer.runs.disk import read_json
from fedpeer.sims.events import RoundDone


def options(root: Path) -> ExperimentOptions:
    return ExperimentOptions(experiment=TABLE, size_name="quick", root=root, workers=1, device="cpu", command="fedpeer")


def test_every_method_takes_as_many_steps() -> None:
    for name, size in TABLE.sizes.items():
        steps = set()
        for cell in TABLE.cells(size):
            for request in cell.variants.values():
                learning = request.federation.learning
                assert isinstance(learning.steps_between_averaging, int)
                steps.add(learning.rounds * learning.steps_between_averaging)
        assert len(steps) == 1, name


def test_the_averages_of_whole_networks_are_all_of_them() -> None:
    """A claim to be above them compares with all lines of whole networks, also those of CHOCO-SGD and random graphs."""
    whole = {"full-averaging", "d-psgd", "choco-sgd", "dfedavgm", "noloco"}
    lines = {
        cell.label
        for cell in TABLE.cells(TABLE.sizes["default"])
        for request in cell.variants.values()
        if request.methods[0].name in whole
    }
    claims = [claim for claim in TABLE.claims if "averages of whole networks" in claim.text]
    assert len(claims) == 4
    for claim in claims:
        mine, *others = claim.needs
        assert mine.endswith(", DFedAlt")
        place = claim.text.partition(":")[0]
        assert set(others) == {label for label in lines if label.startswith(f"{place}, ")}
        assert len(others) == 9


@pytest.mark.slow
@pytest.mark.skipif(not describe_dataset("fashion-mnist").here, reason="Fashion-MNIST is not on this machine")
def test_averages_of_whole_networks_have_scores_of_servers_beside_them() -> None:
    """Own models with a server are scored after a round's local steps, averages before them, as a server's model is."""
    scores = [name for name in TABLE.columns if COLUMNS[name].metric in ("PM", "GM")]
    assert scores == ["PM", "GM"]
    assert "scored after the local steps" in TABLE.notes


def test_the_quick_size_is_stopped_and_goes_on(tmp_path: Path) -> None:
    class Stopping(threading.Event):
        def __call__(self, event: Any) -> None:
            match event:
                case OfRun(event=RoundDone(round=1)):
                    self.set()

    stop = Stopping()
    assert not run_experiment(options(tmp_path), stop, stop)
    assert run_experiment(options(tmp_path))
    cells = found(options(tmp_path))
    assert len(cells) == 4
    for label, cell in cells.items():
        accuracy, worst, sent = (COLUMNS[name].values(cell) for name in ("PM", "worst", "all"))
        assert accuracy is not None
        assert worst is not None
        assert sent is not None
        assert 0 <= worst[0] <= accuracy[0] <= 100
        assert (sent[0] == 0) == label.endswith("Local")
    page = table_page(read_json(options(tmp_path).folder / "results.json"))
    assert "| worst tenth |" in page
    assert "MB of all rounds" in page
