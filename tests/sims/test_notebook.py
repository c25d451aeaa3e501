"""`fedpeer.simulate` in a real notebook: progress under the cell, and results as a table."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.slow]

SIMULATE = """
import warnings
warnings.simplefilter("error")
import fedpeer

results = fedpeer.simulate(
    "digits",
    federation={
        "partial_models": {"everyone": {"neurons": {"input": "all", "hidden1": "all", "output": "all"}}},
        "learning": {"rounds": 2, "steps_between_averaging": 2},
        "simulation": {"peers": 4},
    },
    methods=["local", "partial-averaging"],
    device="cpu",
    workers=1,
)
"""


def test_progress_stands_under_the_cell_and_results_are_a_table(tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(text) for text in (SIMULATE, "results", "results.plot();", "results.frame()")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    progress, table, picture, frame = (cell.outputs for cell in notebook.cells)
    (shown,) = progress
    assert shown.output_type == "display_data", "one output, which was redrawn"
    page = shown.data["text/html"]
    assert page.count("<progress value=2 max=2></progress>") == 2
    assert page.count("2 of 2 rounds") == 2
    assert "digits: 4 peers" in page
    (result,) = table
    assert "<table class=results>" in result.data["text/html"]
    assert "partial averaging" in result.data["text/plain"]
    assert "image/png" in picture[-1].data
    assert "peer4" in frame[-1].data["text/html"]
