"""A module of PyTorch Lightning in a federation: the example runs, and its peers take Lightning's own steps."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpeer.algorithms.draws import guarded
from fedpeer.cli.main import run
from tests.sims.worlds import engine, federation, relative, world

from .pages import ROOT

FOLDER = ROOT / "examples" / "lightning"
pytestmark = pytest.mark.slow  # the library takes seconds to import


@pytest.fixture
def lit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Change to an empty folder, and return the example's module."""
    pytest.importorskip("pytorch_lightning", reason="the package pytorch-lightning is missing")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDPEER_RUNS", raising=False)
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("lit")
    sys.modules.pop("lit", None)


def test_a_round_is_the_mean_of_what_lightning_trains(lit: Any) -> None:
    made = world(federation(network="python:lit:Digits", simulation__peers=2))
    trained = []
    for number, peer in enumerate(made.peers):
        module, held = copy.deepcopy(made.module), made.held(number)
        module.load_state_dict(made.layout.unflatten(made.drawn("")))
        x, y = torch.from_numpy(made.dataset.x[held.train_M]), torch.from_numpy(held.train_y)
        with guarded(made.draws.key("dropout", peer, 1)):
            lit.LightningPeers(made, epochs=2, batch_size=8).fit(module, x, y, 1)
        trained.append(made.layout.flatten(module))
    assert relative(torch.stack(trained), made.drawn("").expand(2, -1)) > 0.01
    with engine(made, "python:lit:LightningPeers,epochs=2,batch_size=8") as running:
        running.step()
        assert running.server_n is not None
        assert relative(running.server_n, torch.stack(trained).mean(0)) < 1e-5, "both have forty examples"


def test_the_federation_file_runs(lit: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--config", str(FOLDER / "federation.yaml"), "--rounds", "1", "--peers", "3", "--quiet"]
    assert run([*words, "--out", str(tmp_path)]) == 0, capsys.readouterr().err
    assert "LightningPeers" in capsys.readouterr().out
