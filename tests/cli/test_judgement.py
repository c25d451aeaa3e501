"""What `fedpeer evaluate` prints fits the terminal: no count is cut, however many classes there are."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from rich.console import Console

from fedpeer.cli.judgement import Judgement, judgement_of
from fedpeer.learning.models import Model

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
LONG = tuple(f"the {number}th of many classes" for number in range(16))


def _printed(names: Sequence[str], confusion: np.ndarray[tuple[int, int], np.dtype[np.int64]], width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    for each in Judgement(classes=names, by_class=np.ones((len(names), 4)), confusion=confusion).shown(width):
        console.print(each, highlight=False, markup=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("names", "width", "headed_by"),
    [
        (("ill", "well"), 80, "names"),
        (FASHION, 80, "numbers"),
        (FASHION, 140, "names"),
        (LONG, 140, "numbers"),
        (LONG, 80, None),
        (tuple(map(str, range(101))), 300, None),
    ],
)
def test_no_count_of_confused_classes_is_cut(names: tuple[str, ...], width: int, headed_by: str | None) -> None:
    size = len(names)
    confusion = np.random.default_rng(0).integers(1000, 9999, (size, size))
    text = _printed(names, confusion, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    found = [line.split()[-size:] for line in text.splitlines()]
    rows = [row for row in found if len(row) == size and all(re.fullmatch(r"\d{4}", each) for each in row)]
    if headed_by is None:
        assert rows == []
        assert f"confusion of the {size} classes" in text
        return
    assert rows == [[str(count) for count in row] for row in confusion]
    headings = list(names) if headed_by == "names" else [str(number + 1) for number in range(size)]
    assert " ".join(headings) in " ".join(text.split())


def test_metrics_of_a_model_that_diverged_are_not_defined() -> None:
    """scikit-learn refuses NaN, and the user named no metric."""
    card = SimpleNamespace(shape=SimpleNamespace(task="classification"), classes=("ill", "well"))
    model = SimpleNamespace(card=card, answers=lambda x: np.full((len(x), 2), np.nan, np.float32))
    found = judgement_of(cast(Model, model), np.zeros((4, 1)), np.array([0, 1, 1, 1]), []).to_json()
    assert found["metrics"]["log-loss"] is None
    assert found["metrics"]["balanced-accuracy"] == 0.5
    assert found["confusion"] == [[1, 0], [3, 0]]
