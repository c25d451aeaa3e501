"""A segmentation network of MONAI with a head for each label set: the example's parts, and its federation."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

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
    segmentation: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The federation file runs for a round; with exact averages instead of two exchanges, all agree after it."""
    assert run(["config", "check", str(FOLDER / "federation.yaml")]) == 0
    settings = tmp_path / "federation.yaml"
    text, shown = (FOLDER / "federation.yaml").read_text(encoding="utf-8"), "gossip: {exchanges: 2}"
    assert shown in text
    settings.write_text(text.replace(shown, "gossip: {protocol: exact}"), encoding="utf-8")
    words = ["simulate", "--config", str(settings), "--compare", "partial-averaging", "--rounds", "1", "--quiet"]
    assert run([*words, "--out", str(tmp_path)]) == 0, capsys.readouterr().err
    assert "dice" in capsys.readouterr().out
    (file,) = tmp_path.glob("*/models/partial-averaging-seed0.safetensors")
    models = load_file(file)
    names = [each.removeprefix("peer1/") for each in models if each.startswith("peer1/")]
    assert {each.partition(".")[0] for each in names} == {"body", "head"}
    for name in names:
        alike = [torch.equal(models[f"peer1/{name}"], models[f"peer{number}/{name}"]) for number in range(1, 7)]
        assert alike == ([True] * 6 if name.startswith("body.") else [True, False, False, True, False, False]), name
