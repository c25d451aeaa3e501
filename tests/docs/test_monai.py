"""A segmentation network of MONAI with a head for each label set: the example's parts, and its federation."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML

import fedpeer
from fedpeer.cli.main import run

from .pages import ROOT

FOLDER = ROOT / "examples" / "monai"
pytestmark = pytest.mark.slow  # the library takes seconds to import


@pytest.fixture
def segmentation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the example's module."""
    pytest.importorskip("monai", reason="the package monai is missing")
    monkeypatch.delenv("FEDPEER_RUNS", raising=False)
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("segmentation")
    sys.modules.pop("segmentation", None)


def test_the_loss_is_dice_and_entropy_of_each_example(segmentation: Any) -> None:
    draws = torch.Generator().manual_seed(1)
    marks = (torch.rand(3, segmentation.OUTPUTS, generator=draws) < 0.2).float()
    z = torch.randn(3, segmentation.OUTPUTS, generator=draws)
    p, y = (each.reshape(3, segmentation.MARKED, -1).double() for each in (z.sigmoid(), marks))
    overlap = (2 * (p * y).sum(-1) + 1e-5) / (p.sum(-1) + y.sum(-1) + 1e-5)
    entropy = -(y * p.log() + (1 - y) * (1 - p).log()).flatten(1).mean(1)
    expected = entropy + (1 - overlap).mean(1)
    torch.testing.assert_close(segmentation.dice_and_entropy(z, marks).double(), expected, rtol=1e-4, atol=1e-5)


def test_dice_is_twice_the_overlap_of_both_masks(segmentation: Any) -> None:
    marks = np.zeros((2, segmentation.MARKED, segmentation.EDGE**3))
    marks[:, :, :8] = 1
    half = marks.copy()
    half[:, :, 4:8] = 0
    assert segmentation.dice(marks, marks) == 1
    assert segmentation.dice(marks, half) == pytest.approx(2 * 4 / (8 + 4))
    assert segmentation.dice(marks, 1 - marks) == 0


def test_hospitals_share_the_body_with_all_and_the_head_with_those_of_their_label_set(
    segmentation: Any, tmp_path: Any
) -> None:
    settings = YAML(typ="safe").load(FOLDER / "federation.yaml")
    settings["learning"]["rounds"] = 1
    settings["gossip"] = {"protocol": "exact"}
    results = fedpeer.simulate(federation=settings, methods=["partial-averaging"], out=tmp_path)
    models = [results.state_dict("partial-averaging", f"peer{number}") for number in range(1, 7)]
    for name, value in models[0].items():
        alike = [torch.equal(value, model[name]) for model in models]
        assert alike == ([True] * 6 if name.startswith("body.") else [True, False, False, True, False, False]), name


def test_the_federation_file_runs(segmentation: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--config", str(FOLDER / "federation.yaml"), "--rounds", "1", "--quiet"]
    assert run([*words, "--out", str(tmp_path)]) == 0, capsys.readouterr().err
    assert "dice" in capsys.readouterr().out
