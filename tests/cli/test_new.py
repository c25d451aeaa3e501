"""`fedpeer new`: what it makes runs at once, in the terminal, in a notebook and as real peers."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from fedpeer.cli.new_command import _TEMPLATES
from tests.cli.conftest import Fedpeer
from tests.docs.pages import blocks


@pytest.fixture
def own_nets() -> Iterator[None]:
    """Let `nets` be the module in the folder of this test, and of no other one in this process."""
    others = sys.modules.pop("nets", None)
    yield
    sys.modules.pop("nets", None)
    if others is not None:
        sys.modules["nets"] = others


@pytest.mark.slow
@pytest.mark.usefixtures("own_nets")
@pytest.mark.parametrize("template", _TEMPLATES)
def test_each_command_of_a_templates_page_runs(
    template: str, fedpeer: Fedpeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fedpeer("new", "My Study", "--template", template)
    assert (made.code, made.err) == (0, "")
    folder = tmp_path / "My Study"
    shown = {line.split()[0] for line in made.out.splitlines() if line.startswith("  ") and "federation" not in line}
    assert {name.name for name in folder.iterdir()} - {"federation.yaml"} == shown - {"cd"}
    assert "  cd 'My Study'\n" in made.out
    monkeypatch.chdir(folder)
    commands = [
        shlex.split(line[2:])
        for block in blocks(folder / "README.md", "console")
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
    assert ["fedpeer", "simulate", "--config", "federation.yaml"] in commands
    assert fedpeer("config", "check", "federation.yaml").out.startswith(
        'federation.yaml is valid: federation "my-study"'
    )
    for program, command, *rest in commands:
        assert program == "fedpeer"
        if command == "start":
            continue  # the peers' files are checked below, and that such peers learn is tested elsewhere
        quick = ["--rounds", "1"] if command == "simulate" else []
        outcome = fedpeer(command, *rest, *quick)
        assert outcome.code == 0, outcome.err
        if command == "init":
            for number in range(1, 5):
                checked = fedpeer("config", "check", f"peers/peer{number}/peer{number}.yaml")
                assert checked.code == 0, checked.err


@pytest.mark.soak
def test_partial_averaging_gains_where_hospitals_differ(fedpeer: Fedpeer, tmp_path: Path) -> None:
    """A newcomer's first result is worth looking at: sharing a part is better than nothing and than everything."""
    assert fedpeer("new", "study").code == 0
    data = "csv:study/patients.csv,label=diagnosis,user=hospital"
    options = ["--config", "study/federation.yaml", "--dataset", data, "--repeats", "3", "--json", "--quiet"]
    outcome = fedpeer("simulate", *options)
    methods = json.loads(outcome.out)["methods"]
    partly, alone, wholly = (
        methods[name]["accuracy_mean"] for name in ("partial-averaging", "local", "full-averaging")
    )
    assert partly > max(alone, wholly)


@pytest.mark.slow
def test_the_notebook_runs(fedpeer: Fedpeer, tmp_path: Path) -> None:
    assert fedpeer("new", "study").code == 0
    notebook = nbformat.read(tmp_path / "study" / "explore.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        cell.source = cell.source.replace("seeds=[0, 1, 2]", "seeds=[0]")
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path / "study")}}).execute()
    results, _, table = (cell.outputs[-1].data for cell in notebook.cells if cell.cell_type == "code")
    assert "partial averaging" in results["text/html"]
    assert all(name in table["text/html"] for name in ("peer1", "peer8", "partial-averaging"))


def test_what_exists_is_left_alone_and_unknown_templates_are_named(fedpeer: Fedpeer, tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "mine.txt").write_text("mine")
    outcome = fedpeer("new", "study", "--template", "tabel")
    assert outcome.code == 2
    assert 'no template "tabel"; choose one of table, images, module' in " ".join(outcome.err.split())
    assert "study exists already; choose another folder" in " ".join(outcome.err.split())
    assert [path.name for path in (tmp_path / "study").iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert fedpeer("new", "empty", "--template", "module").code == 0
