"""A block's scores beside those of each peer alone: parts of different sizes, several pieces, views, kinds of loss."""

from __future__ import annotations

from math import nan

import pytest
import torch
from torch import nn

from fedpeer.algorithms import evaluation
from fedpeer.algorithms.batches import BatchView, Examples
from fedpeer.algorithms.evaluation import evaluate, evaluate_block
from fedpeer.algorithms.losses import LOSSES, predicted
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.steppers import build_stepper
from fedpeer.slicing.flat import FlatLayout

COUNTS = (7, 1, 30)


@pytest.mark.parametrize("seen", [False, True], ids=["as it is", "through a view"])
@pytest.mark.parametrize("loss", ["cross-entropy", "squared-error", "mean-squared-error", "huber"])
def test_a_block_has_the_scores_of_its_peers(loss: str, seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "BLOCK_EVALUATED_AT_ONCE", 12)  # four examples of each peer at once
    torch.manual_seed(0)
    module, criterion = nn.Sequential(nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 3)), LOSSES[loss]
    layout, optimizer = FlatLayout.of(module), OptimizerChoice("SGD", {"lr": 0.1})
    stepper = build_stepper("stack" if criterion.delta else "loop", module, layout, criterion, optimizer)
    x_NF = torch.randn(50, 6)
    x_Bn = torch.randn(3, layout.n)
    parts = [
        Examples(x_NF, torch.randint(50, (m,)), torch.randint(3, (m,)) if criterion.classifies else torch.randn(m, 3))
        for m in COUNTS
    ]
    maps_BF = torch.stack([torch.randperm(6) for _ in COUNTS])
    view = BatchView(maps_BF, torch.randn(3, 6), torch.rand(3, 6) + 0.5) if seen else None
    scales = (1.0, 2.0, 3.0)
    found = evaluate_block(stepper, criterion, x_Bn, parts, view, scales)
    for number, (x_n, part, scale) in enumerate(zip(x_Bn, parts, scales, strict=True)):
        alone = evaluate(stepper, criterion, x_n, part, view and view.of(number), scale)
        assert found[number] == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("loss", ["cross-entropy", "binary"])
def test_examples_count_by_the_weights_of_their_classes(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside means made by hand; a peer whose examples weigh nothing has no scores."""
    monkeypatch.setattr(evaluation, "BLOCK_EVALUATED_AT_ONCE", 12)
    monkeypatch.setattr(evaluation, "EVALUATED_AT_ONCE", 8)
    torch.manual_seed(0)
    criterion, outputs = LOSSES[loss], 3 if loss == "cross-entropy" else 1
    classes = max(outputs, 2)
    module = nn.Sequential(nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, outputs))
    layout, optimizer = FlatLayout.of(module), OptimizerChoice("SGD", {"lr": 0.1})
    stepper = build_stepper("stack", module, layout, criterion, optimizer)
    x_NF, x_Bn, weight_C = torch.randn(50, 6), torch.randn(3, layout.n), torch.tensor([0.0, 4.0, 0.5])[:classes]
    y = [torch.randint(classes, (7,)), torch.tensor([0]), torch.randint(classes, (30,))]
    parts = [Examples(x_NF, torch.randint(50, (len(y_M),)), y_M).weighted(weight_C) for y_M in y]
    assert evaluate_block(stepper, criterion, x_Bn, parts, None, (1.0,) * 3)[1] == pytest.approx(
        (nan, nan), nan_ok=True
    )
    for number, (x_n, part) in enumerate(zip(x_Bn, parts, strict=True)):
        logits_MC = stepper.logits(x_n[None], part.inputs()[None])[0]
        right_M = predicted(logits_MC) == part.y_M
        loss_M = torch.stack([criterion.value(z[None], y[None]) for z, y in zip(logits_MC, part.y_M, strict=True)])
        weight_M = weight_C[part.y_M]
        by_hand = tuple(float((each_M * weight_M).sum() / weight_M.sum()) for each_M in (right_M, loss_M))
        alone = evaluate(stepper, criterion, x_n, part, None, 1.0)
        assert alone == pytest.approx(by_hand, rel=1e-5, nan_ok=True)
        block = evaluate_block(stepper, criterion, x_Bn, parts, None, (1.0,) * 3)[number]
        assert block == pytest.approx(alone, rel=1e-5, nan_ok=True)


class Writer(nn.Module):
    """Logits of 5 tokens at each of 4 places; it records how many places it has answered at once."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 5)
        self.most = [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.most[0] = max(self.most[0], x.numel())
        answers: torch.Tensor = self.embedding(x)
        return answers


def test_texts_are_continued_a_few_places_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place has outputs for a whole vocabulary. Scores do not depend on how many places are answered at once."""
    module, criterion = Writer(), LOSSES["next-token"]
    layout = FlatLayout.of(module)
    stepper = build_stepper("loop", module, layout, criterion, OptimizerChoice("SGD", {"lr": 0.1}))
    x_NF = torch.randint(5, (30, 4))
    y_N4 = torch.randint(-1, 5, (30, 4))
    parts = [Examples(x_NF, torch.arange(m), y_N4[:m]) for m in COUNTS]
    x_Bn = torch.randn(3, layout.n)
    wanted = [evaluate(stepper, criterion, x_n, part, None, 1.0) for x_n, part in zip(x_Bn, parts, strict=True)]
    monkeypatch.setattr(evaluation, "EVALUATED_AT_ONCE", 9)
    monkeypatch.setattr(evaluation, "BLOCK_EVALUATED_AT_ONCE", 25)
    most: list[int] = stepper._module.most  # type: ignore[attr-defined]
    most[0] = 0
    for x_n, part, whole in zip(x_Bn, parts, wanted, strict=True):
        assert evaluate(stepper, criterion, x_n, part, None, 1.0) == pytest.approx(whole, rel=1e-5)
    assert most[0] == 8, "two texts of four places"
    most[0] = 0
    found = evaluate_block(stepper, criterion, x_Bn, parts, None, (1.0, 1.0, 1.0))
    assert [each == pytest.approx(whole, rel=1e-5) for each, whole in zip(found, wanted, strict=True)] == [True] * 3
    assert most[0] == 8, "two of each of three peers"
