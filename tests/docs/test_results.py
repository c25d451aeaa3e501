"""The pages under docs/results say what the numbers beside them say, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpeer.sims.experiments.registry import EXPERIMENTS, experiment
from fedpeer.sims.experiments.results import Measured
from fedpeer.sims.experiments.table import page

from .pages import ROOT

FOLDER = ROOT / "docs" / "results"
NUMBERS = sorted(FOLDER.glob("*.json"))


def test_every_page_has_its_numbers() -> None:
    assert [path.stem for path in sorted(FOLDER.glob("*.md"))] == [path.stem for path in NUMBERS]


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: path.stem)
def test_a_page_is_that_of_its_numbers(path: Path) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    assert path.with_suffix(".md").read_text(encoding="utf-8") == page(data), "write it with fedpeer experiment report"
    assert path.stem == f"{data['name']}-{data['size']}"
    assert data["name"] in EXPERIMENTS


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: path.stem)
def test_what_is_said_to_hold_follows_from_the_numbers(path: Path) -> None:
    """Each claim is judged again, on what was measured."""
    data = json.loads(path.read_text(encoding="utf-8"))
    results = {each["label"]: Measured.from_json(each) for each in data["measured"]}
    claims = {claim.text: claim for claim in experiment(data["name"]).claims}
    for said in data["claims"]:
        verdict = claims[said["text"]].check(results)
        assert (verdict.held, verdict.words) == (said["held"], said["words"])
