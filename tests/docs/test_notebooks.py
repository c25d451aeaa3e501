"""The notebooks of the examples and of `fedpeer new` run, show what their texts say, and show progress.

They share a kernel, which is a fork of a Python that has torch: each has its own folder, and begins without variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient import NotebookClient

from fedpeer.cli.main import run

from .pages import ROOT

pytestmark = pytest.mark.slow
#: Seconds for a cell, on a busy machine.
PATIENCE_S = 240


@pytest.fixture(scope="module")
def kernel(forked: None) -> Iterator[AsyncKernelManager]:
    """Return the manager of the kernel, which the first notebook starts."""
    manager = AsyncKernelManager()
    yield manager
    if run_sync(manager.is_alive)():
        run_sync(manager.shutdown_kernel)(now=True)


def executed(kernel: AsyncKernelManager, file: Path, folder: Path, **replaced: str) -> list[Any]:
    """Return the outputs of each code cell, after texts of the cells were replaced."""
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not kept: they would not stay true"
    for cell in notebook.cells:
        for old, new in replaced.items():
            cell.source = cell.source.replace(old, new)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(f"%reset_selective -f ^[^_]\n%cd -q {folder}"))
    client = NotebookClient(notebook, km=kernel, timeout=PATIENCE_S)
    try:
        client.execute()
    finally:
        client.kc.stop_channels()
    found = [cell.outputs for cell in notebook.cells[1:] if cell.cell_type == "code"]
    assert [each.text for outputs in found for each in outputs if each.get("name") == "stderr"] == [], "no warnings"
    return found


def distances(shown: str) -> list[float]:
    """Return the numbers of a list as the notebook shows it."""
    return [float(each) for each in re.findall(r"\d+\.\d+", shown)]


def test_distances_are_shown_in_one_form_whatever_their_ratio() -> None:
    """An array of numpy is shown as 1.2e-03 where the largest number is a thousand times the smallest."""
    notebook = nbformat.read(ROOT / "examples" / "notebooks" / "sharing.ipynb", as_version=4)
    [cell] = [cell.source for cell in notebook.cells if cell.cell_type == "code" and "apart" in cell.source]
    apart = torch.tensor([0.9, 0.00021, 0.0], requires_grad=True)
    shown = repr(eval(cell.splitlines()[-1], {"apart": apart, "np": np}))
    assert distances(shown) == [0, 0.0002, 0.9]


def test_sharing(kernel: AsyncKernelManager, tmp_path: Path) -> None:
    file = ROOT / "examples" / "notebooks" / "sharing.ipynb"
    _, counts, _, results, picture, levels, apart, report = executed(
        kernel, file, tmp_path, **{"range(5)": "range(1)", "(4, 12, 20)": "(20,)"}
    )
    assert "38" in counts[-1].data["text/plain"]
    progress = results[0]  # a single output, which was redrawn
    assert progress.output_type == "display_data"
    assert progress.data["text/html"].count("<progress value=8 max=8></progress>") == 3
    assert progress.data["text/html"].count("8 of 8 rounds") == 3
    assert "wines: 4 peers" in progress.data["text/html"]
    assert len(results) == 2
    assert "<table class=results>" in results[-1].data["text/html"]
    assert "partial averaging" in results[-1].data["text/plain"]
    assert "partial averaging" in results[-1].data["text/html"]
    assert "image/png" in picture[-1].data
    assert "20:" in levels[-1].data["text/plain"]
    numbers = distances(apart[-1].data["text/plain"])
    assert sum(each < 0.02 for each in numbers) == 16
    assert sum(each > 0.1 for each in numbers) == 4
    assert (tmp_path / report[-1].text.strip()).is_file()


def test_the_notebook_of_a_new_folder(
    kernel: AsyncKernelManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "study"]) == 0
    study = tmp_path / "study"
    results, _, table = executed(kernel, study / "explore.ipynb", study, **{"seeds=[0, 1, 2]": "seeds=[0]"})
    assert "partial averaging" in results[-1].data["text/html"]
    assert all(name in table[-1].data["text/html"] for name in ("peer1", "peer8", "partial-averaging"))
