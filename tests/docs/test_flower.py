"""A client of Flower as the learner of peers: beside Flower's own averaging by hand, and as its page says."""

from __future__ import annotations

import ast
import copy
import importlib
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedpeer.algorithms.draws import guarded
from fedpeer.cli.main import run
from fedpeer.config.choice import parse_choice
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.peers import local_tasks
from tests.sims.worlds import engine, federation, relative, world

from .pages import FLOWER, ROOT, commands

FOLDER = ROOT / "examples" / "flower"
OWN = ("flower_client", "flower_peers")
METHOD = "python:flower_peers:FlowerClients,lr=0.05"
ROUNDS = 2


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Change to a copy of the folder, and return its module."""
    shutil.copytree(FOLDER, tmp_path / "examples" / "flower")
    monkeypatch.chdir(tmp_path / "examples" / "flower")
    monkeypatch.delenv("FEDPEER_RUNS", raising=False)
    monkeypatch.syspath_prepend(Path.cwd())
    yield importlib.import_module("flower_peers")
    for name in OWN:
        sys.modules.pop(name, None)


def test_the_client_knows_nothing_of_fedpeer() -> None:
    tree = ast.parse((FOLDER / "flower_client.py").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "typing", "numpy", "torch", "torch.utils.data", "flwr.client"}


def test_it_derives_from_flowers_class_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    flwr, client = ModuleType("flwr"), ModuleType("flwr.client")
    client.NumPyClient = type("NumPyClient", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flwr", flwr)
    monkeypatch.setitem(sys.modules, "flwr.client", client)
    monkeypatch.syspath_prepend(FOLDER)
    try:
        assert issubclass(importlib.import_module("flower_client").FlowerClient, client.NumPyClient)
    finally:
        sys.modules.pop("flower_client", None)


@pytest.mark.parametrize("whole", [False, True], ids=["vector", "network"])
def test_rounds_are_those_of_fedavg_over_the_clients(peers: Any, whole: bool) -> None:
    """The reference is Flower's FedAvg written out: `fit` of each client, then the mean weighted by examples."""
    made = world(federation(network="python:flower_client:Net", simulation__peers=3))
    module = copy.deepcopy(made.module)
    module.load_state_dict(made.layout.unflatten(made.drawn("")))
    parameters = [value.numpy() for value in module.state_dict().values()]
    for number in range(1, ROUNDS + 1):
        fitted = []
        for at, peer in enumerate(made.peers):
            held = made.held(at)
            x, y = torch.from_numpy(made.dataset.x[held.train_M]), torch.from_numpy(held.train_y)
            client = peers.client_fn(copy.deepcopy(module), x, y)
            with guarded(made.draws.key("dropout", peer, number)):
                fitted.append(client.fit(parameters, {"lr": 0.05}))
        examples = sum(count for _, count, _ in fitted)
        parameters = [
            sum(arrays[at].astype("float64") * count for arrays, count, _ in fitted) / examples
            for at in range(len(parameters))
        ]
        parameters = [each.astype("float32") for each in parameters]
    expected_n = torch.cat([torch.from_numpy(each).flatten() for each in parameters])
    if whole:
        with NetworkEngine(made, parse_choice(METHOD)) as running:
            for _ in range(ROUNDS):
                running.step()
            running.evaluate()
            wanted = [pytest.approx(task.evaluate(expected_n), rel=1e-4) for task in local_tasks(made).values()]
            found = running.evaluate_server()
            assert found is not None
            assert all(own == there for own, there in zip(found, wanted, strict=True))
        return
    with engine(made, METHOD) as running:
        for _ in range(ROUNDS):
            running.step()
        assert running.server_n is not None
        assert relative(running.server_n, expected_n) < 1e-5


@pytest.mark.slow
@pytest.mark.usefixtures("peers", "forked")
def test_each_command_of_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = commands(FLOWER)
    assert first == "cd examples/flower"
    for command in others:
        assert run([*shlex.split(command)[1:], "--rounds", "1", "--out", str(tmp_path)]) == 0, capsys.readouterr().err
