"""`fedpeer.simulate` in Python and `fedpeer simulate` on the command line: the same words are the same run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigError
from fedpeer.config.settings import SimulationSettings
from fedpeer.runs.folder import RunFolder
from fedpeer.sims import api
from fedpeer.sims.results import Results
from tests.cli.conftest import Fedpeer

DRAWS = np.random.default_rng(0)


def _table(ending: str = "csv") -> str:
    x = DRAWS.normal(size=(48, 3)).round(3)
    rows = [f"{a},{b},{c},{'well' if a > b else 'ill'},{'ab'[n % 2]}" for n, (a, b, c) in enumerate(x.tolist())]
    Path("clinic.csv").write_text("\n".join(["a,b,c,outcome,ward", *rows]))
    return "csv:clinic.csv,label=outcome,user=ward"


def _arrays() -> str:
    x = DRAWS.normal(size=(48, 5)).astype(np.float32)
    np.savez("wards.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    return "npz:wards.npz"


def _folder() -> str:
    for number, name in enumerate(("cats", "dogs")):
        Path("pictures", name).mkdir(parents=True)
        for place in range(20):
            pixels = DRAWS.integers(100 * number, 100 * number + 90, size=(6, 6)).astype(np.uint8)
            Image.fromarray(pixels).save(Path("pictures", name, f"{place}.png"))
    return "images:pictures"


DATA: dict[str, Callable[[], str]] = {"csv": _table, "npz": _arrays, "images": _folder}


def _settings(run: RunFolder) -> dict[str, Any]:
    return {name: value for name, value in (run.read("settings") or {}).items() if name not in ("command", "id")}


def _same(shell: RunFolder, python: Results) -> None:
    """Assert that two runs have the same settings and the same results."""
    assert _settings(RunFolder(python.folder)) == _settings(shell)
    rows, others = (list(each.rows()) for each in (shell, RunFolder(python.folder)))
    assert [{**row, "seconds": 0} for row in rows] == [{**row, "seconds": 0} for row in others]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "chosen"),
    [
        *((kind, {}) for kind in DATA),  # the defaults follow from the data
        ("npz", {"algorithm": "fedavg"}),  # the federation is a mapping from here on
        ("csv", {"optimizer": "sgd,lr=0.2", "batch_size": 3}),
    ],
    ids=str,
)
def test_the_same_words_are_the_same_run(kind: str, chosen: dict[str, Any], fedpeer: Fedpeer) -> None:
    data = DATA[kind]()
    options = [word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    usual = ["--peers", "2", "--rounds", "2", "--seed", "3", "--workers", "1"]
    done = fedpeer("simulate", "--dataset", data, *usual, *options)
    assert done.code == 0, done.err
    settings = {"seed": 3, "learning": {"rounds": 2, **chosen}, "simulation": {"peers": 2}}
    shell = RunFolder.open(Path("fedpeer-runs"), "last")
    # `simulate` treats a mapping like a typed `Federation`: cases with choices pass the one, the others the other.
    federation = settings if chosen else Federation.model_validate(settings)
    _same(shell, api.simulate(data, federation=federation, workers=1, out="python"))


def test_a_network_by_name_takes_the_place_of_that_of_tables(fedpeer: Fedpeer) -> None:
    settings = {"learning": {"rounds": 1}, "network": "mlp,hidden=3"}
    found = api.simulate(_table(), "mlp,hidden=7", federation=settings, methods=["local"], workers=1)
    made = _settings(RunFolder(found.folder))
    assert (made["network"], made["learning"]["optimizer"]) == ("mlp,hidden=7", "adam,lr=0.003")


def test_a_federation_with_choices_goes_with_a_tracker_of_its_own(fedpeer: Fedpeer) -> None:
    settings = {"learning": {"rounds": 1}, "network": "mlp,hidden=3", "simulation": {"split": "user/subsample:0.9"}}
    found = api.simulate(
        _table(), federation=Federation.model_validate(settings), methods=["local"], workers=1, tracking=()
    )
    assert found.score("local") >= 0


def test_a_mistake_in_an_argument_has_its_name(fedpeer: Fedpeer) -> None:
    with pytest.raises(ConfigError) as caught:
        api.simulate("csv:clinic.csv,lable=outcome", "mpl", federation={"learning": {"rounds": 0}})
    assert {problem.path for problem in caught.value.problems} == {("data",), ("network",), ("learning", "rounds")}


@pytest.mark.slow
def test_a_data_set_is_laid_over_typed_settings_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    typed = {"simulation": SimulationSettings(peers=3), "learning": {"rounds": 1}}
    assert _settings(RunFolder(api.simulate("digits", federation=typed).folder))["simulation"]["peers"] == 3
    with pytest.raises(ConfigError, match="nothing after the colon"):
        api.simulate("csv:", federation=typed)
