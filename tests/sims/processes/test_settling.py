"""The files of real peers under an engine: they say what the simulation's federation says."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpeer.cli.config import ConfigSource, load
from fedpeer.config.choice import parse_choice
from fedpeer.config.contract import contract_of, differences
from fedpeer.config.settings import GossipSettings
from fedpeer.sims.processes import settling
from tests.sims import worlds


def test_peers_have_the_settings_that_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are defaults elsewhere: a table has others, and so have exchanges beside a tolerance."""

    def init(*_: object, **__: object) -> SimpleNamespace:
        for peer in made.peers:
            (tmp_path / "made" / "peers" / peer).mkdir(parents=True)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", init)
    made = worlds.world(worlds.federation(simulation__peers=3))
    federation = made.federation
    table = federation.simulation.model_copy(update={"dataset": parse_choice("csv:ward.csv,label=outcome")})
    gossip = GossipSettings(tolerance=1e-4)
    learning = federation.learning.model_copy(
        update={"optimizer": parse_choice("sgd,lr=0.1"), "batch_size": 1, "class_weights": "none"}
    )
    asked = federation.model_copy(update={"simulation": table, "gossip": gossip, "learning": learning})
    settling.settle(tmp_path / "made", replace(made, federation=asked), parse_choice("partial-averaging"), "cpu")
    written = load(ConfigSource.of_file(tmp_path / "made" / "federation.yaml"))
    # Ticks are longer where peers share cores.
    assert {each.path for each in differences(contract_of(asked), contract_of(written))} <= {"gossip.tick"}
