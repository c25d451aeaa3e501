"""A user's own loss and optimizer from Python, from the command line, and by a real peer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpeer.cli.main import run
from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigError
from fedpeer.data.dataset import DataError
from fedpeer.learning.holdings import outfit
from fedpeer.sims import api
from fedpeer.sims.results import Results
from tests.algorithms import own_code
from tests.learning.test_holdings import peer, table

X = np.random.default_rng(0).normal(size=(240, 6)).astype(np.float32)
Y = (X[:, 0] > X[:, 1]).astype(np.int64)


def simulated(out: Path, engine: Any = "vector", workers: int = 1, **learning: Any) -> Results:
    settings = {
        "learning": {"rounds": 2, "batch_size": 5, "steps_between_averaging": 6, **learning},
        "simulation": {"peers": 4, "split": "iid"},
    }
    network = "mlp:6+5+2,activation=relu"
    given = {"methods": ["full-averaging"], "device": "cpu", "workers": workers, "engine": engine, "out": out}
    return api.simulate((X, Y), network, federation=settings, **given)


def weights(results: Results) -> Tensor:
    found = results.state_dict("full-averaging", "peer1")
    return torch.cat([value.flatten() for _, value in sorted(found.items())])


def closed(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a loss that no process can import."""
    return lambda outputs, targets: factor * functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.slow
def test_functions_train_as_fedpeers_own_do(tmp_path: Path) -> None:
    expected = weights(simulated(tmp_path / "a", optimizer="sgd,lr=0.2"))
    mine = {"loss": closed(2.0), "optimizer": partial(own_code.plain, lr=0.1)}
    for number, engine in enumerate(("vector", "network")):
        found = simulated(tmp_path / f"b{number}", engine, 2, **mine)
        torch.testing.assert_close(weights(found), expected, rtol=1e-4, atol=1e-5)
    settings = json.loads((found.folder / "settings.json").read_text())
    assert settings["objects"] == ["data", "loss", "optimizer"]
    assert settings["learning"]["loss"].startswith("python:tests.sims.test_own_code:loss_")


def test_a_modules_loss_and_lion_learn(tmp_path: Path) -> None:
    found = simulated(
        tmp_path, loss=nn.CrossEntropyLoss(label_smoothing=0.1), optimizer=partial(own_code.Lion, lr=0.02)
    )
    assert found.score("full-averaging") > 0.7


def test_real_peers_cannot_take_functions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data and loss came as a Python object") as caught:
        simulated(tmp_path, "processes", loss=closed(1.0))
    assert "name code" in str(caught.value)


def test_by_name_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(own_code.__file__, tmp_path / "my_losses.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = [
        "simulate",
        "--peers",
        "4",
        "--rounds",
        "1",
        "--batch-size",
        "8",
        "--compare",
        "local",
        "--json",
        "--quiet",
    ]
    loss, optimizer = "python:my_losses:cross_entropies,factor=2", "python:my_losses:plain"
    assert run([*words, "--loss", loss, "--optimizer", optimizer, "--lr", "0.05"]) == 0
    found = json.loads(capsys.readouterr().out)["methods"]["local"]["accuracy_mean"]
    assert run([*words, "--lr", "0.1"]) == 0
    assert found == pytest.approx(json.loads(capsys.readouterr().out)["methods"]["local"]["accuracy_mean"], abs=0.02)
    assert run([*words, "--loss", "python:my_losses:branching"]) == 2
    assert "cannot be computed for many peers at once" in capsys.readouterr().err


def test_a_real_peer_runs_what_its_own_file_allows(tmp_path: Path) -> None:
    code = {"loss": "python:tests.algorithms.own_code:mean_cross_entropy"}
    code["optimizer"] = "python:tests.algorithms.own_code:Lion,lr=0.01"
    federation = Federation.model_validate({"learning": {"batch_size": 8, **code}})
    data = {"csv": table(tmp_path), "label": "outcome"}
    with pytest.raises(DataError, match=r"if you trust it, write allow_python: \[tests\]"):
        outfit(peer(data), federation, "cpu")
    made = outfit(peer(data, allow_python=["tests"]), federation, "cpu").local_task
    start_n = made.start()
    x_Bn, s_Bk = start_n.clone()[None], torch.zeros(1, made.stepper.state_size)
    made.stepper.train(x_Bn, s_Bk, True, made.batches(1).block(), [0])
    moved_n = (x_Bn[0] - start_n).abs()
    assert moved_n.max() > 0
    assert made.evaluate(x_Bn[0])[1] < made.evaluate(start_n)[1]
