"""Meaning of the options of `simulate`, with a file and without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpeer.cli.simulate_options import options_of, resumed_request
from fedpeer.config.choice import Choice
from fedpeer.config.problems import ConfigError
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.request import SimulationRequest
from tests.cli.conftest import Fedpeer


def methods(given: dict[str, str], config: Path | None = None) -> list[str]:
    return [str(method) for method in options_of(given, config).methods]


def test_nothing_asked_is_the_default() -> None:
    request = options_of({})
    assert [str(method) for method in request.methods] == ["local", "partial-averaging", "full-averaging"]
    assert request.seeds == (0,)
    assert request.federation.simulation.dataset == Choice("digits")


def test_repeats_are_seeds_in_a_row() -> None:
    assert options_of({"seed": 7, "repeats": 3}).seeds == (7, 8, 9)


def test_engine_and_faults_are_the_runs_and_are_kept() -> None:
    request = options_of({"engine": "network", "faults": "links,loss=0.1/slow:1-4", "compare": "local"})
    assert (request.engine, request.faults) == ("network", "links,loss=0.1/slow:1-4")
    assert SimulationRequest.from_json(request.to_json()) == request
    assert prepare_simulation(request).faults.paces == tuple((f"peer{number}", 10.0) for number in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"algorithm": "full-averaging"}, ["local", "full-averaging"]),
        ({"algorithm": "local"}, ["local"]),
        ({"compare": "full-averaging,local"}, ["full-averaging", "local"]),
        ({"compare": "partial-averaging,cross_model=true,local"}, ["partial-averaging,cross_model=true", "local"]),
    ],
)
def test_methods(given: dict[str, str], wanted: list[str]) -> None:
    assert methods(given) == wanted


def test_the_files_algorithm_takes_its_place_among_the_three(tmp_path: Path) -> None:
    file = tmp_path / "federation.yaml"
    file.write_text("learning: {algorithm: {partial-averaging: {cross_model: true}}}")
    assert methods({}, file) == ["local", "partial-averaging,cross_model=true", "full-averaging"]
    assert methods({"algorithm": "full-averaging"}, file) == ["local", "full-averaging"]
    assert methods({"compare": "local"}, file) == ["local"]


def test_options_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "federation.yaml"
    file.write_text("seed: 3\nlearning: {rounds: 5, batch_size: 4}\ngossip: {tolerance: 0.01}")
    federation = options_of({"rounds": 9, "exchanges": 2}, file).federation
    assert (federation.seed, federation.learning.rounds, federation.learning.batch_size) == (3, 9, 4)
    assert federation.gossip.exchanges == 2, "and the file's tolerance does not contradict it"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("seed: 0", Choice("sgd", None, {"lr": "0.5"})),
        ("learning: {optimizer: {sgd: {lr: 0.1, momentum: 0.9}}}", Choice("sgd", None, {"lr": "0.5", "momentum": 0.9})),
        ("learning: {optimizer: adam:0.1}", Choice("adam", None, {"lr": "0.5"})),
    ],
)
def test_the_rate_is_the_optimizers(text: str, wanted: Choice, tmp_path: Path) -> None:
    file = tmp_path / "federation.yaml"
    file.write_text(text)
    assert options_of({"lr": "0.5"}, file).federation.learning.optimizer == wanted
    assert options_of({"lr": "0.5", "optimizer": "adam"}, file).federation.learning.optimizer.name == "adam"


@pytest.mark.parametrize("file", [None, "simulation: {dataset: 'csv:a.csv,label=y'}"], ids=["option", "file"])
def test_the_rate_of_a_table_is_that_of_the_optimizer_of_tables(file: str | None, tmp_path: Path) -> None:
    config = None
    if file is not None:
        config = tmp_path / "federation.yaml"
        config.write_text(file)
    given = {"dataset": "csv:a.csv,label=y"} if file is None else {}
    usual = options_of(given, config).federation
    changed = options_of({**given, "lr": "0.05"}, config).federation
    assert changed.learning.optimizer == Choice("adam", None, {"lr": "0.05"})
    same = changed.learning.model_copy(update={"optimizer": usual.learning.optimizer})
    assert (same.model_dump(), changed.network) == (usual.learning.model_dump(), usual.network), "nothing but the rate"
    by_name = options_of({**given, "lr": "0.05", "optimizer": "sgd"}, config).federation
    assert by_name.learning.optimizer == Choice("sgd", None, {"lr": "0.05"})


def test_a_data_file_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "federation.yaml"
    file.write_text("simulation: {dataset: {csv: {path: a.csv, label: y}}}")
    monkeypatch.chdir(tmp_path)
    in_file = options_of({}, Path("sub/federation.yaml")).federation.simulation.dataset
    assert in_file == Choice("csv", str((tmp_path / "sub/a.csv").resolve()), {"label": "y"})
    typed = options_of({"dataset": "csv:a.csv,label=y"}, file).federation.simulation.dataset
    assert typed.value == str((tmp_path / "a.csv").resolve())


def test_each_path_starts_where_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option's path starts in the working folder, and a path in a file in the file's folder."""
    (tmp_path / "sub").mkdir()
    for folder in (tmp_path, tmp_path / "sub"):
        (folder / "start.safetensors").write_bytes(folder.name.encode())
    file = tmp_path / "sub" / "federation.yaml"
    file.write_text(
        "learning: {start: 'file:start.safetensors'}\n"
        "simulation: {dataset: 'csv:a.csv,label=y', tracking: 'tensorboard,folder=boards'}\n"
    )
    monkeypatch.chdir(tmp_path)

    def paths(**given: str) -> list[str]:
        found = options_of(given, Path("sub/federation.yaml")).federation
        (tracker,) = found.simulation.tracking
        start = found.learning.start
        assert start is not None
        whole = [found.simulation.dataset.value, tracker.settings["folder"], start.value]
        return [str(Path(each).relative_to(tmp_path)) for each in whole]

    assert paths() == ["sub/a.csv", "sub/boards", "sub/start.safetensors"]
    assert paths(dataset="csv:b.csv,label=y") == ["b.csv", "sub/boards", "sub/start.safetensors"]
    assert paths(tracking="tensorboard,folder=mine") == ["sub/a.csv", "mine", "sub/start.safetensors"]


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    home = str((tmp_path / "me" / "a.csv").resolve())
    assert options_of({"dataset": "csv:~/a.csv,label=y"}).federation.simulation.dataset.value == home
    file = tmp_path / "federation.yaml"
    file.write_text("simulation: {dataset: 'csv:~/a.csv,label=y'}")
    assert options_of({}, file).federation.simulation.dataset.value == home


def test_a_resumed_run_keeps_what_it_was_asked() -> None:
    request = options_of({"peers": 4, "lr": "0.5", "split": "iid/swap:1+2,on=1-2", "compare": "local", "workers": 1})
    data = request.to_json()
    settings = json.loads(json.dumps({**data.pop("federation"), **data, "command": "fedpeer simulate"}))
    again = resumed_request({"resume": "last", "workers": 2}, None)(settings)
    assert again.federation.digest() == request.federation.digest()
    assert again.federation.simulation.model_dump() == request.federation.simulation.model_dump()
    assert (again.methods, again.seeds, again.workers) == (request.methods, request.seeds, 2)
    with pytest.raises(ConfigError, match="--seed"):
        resumed_request({"resume": "last", "seed": 1}, None)


def test_help_has_the_settings_own_defaults(fedpeer: Fedpeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = " ".join(fedpeer("simulate", "--help").out.split())
    for words in ("Number of rounds; default 30.", "default k-regular:4.", "default 0.0001.", "default vector."):
        assert words in told
