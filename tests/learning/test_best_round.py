"""The best round: which one it is, and what is kept of it on disk."""

from __future__ import annotations

import math

import pytest

from fedpeer.learning.models import BestRound


def best(score: float, loss: float) -> BestRound:
    return BestRound(round=1, score=score, loss=loss)


@pytest.mark.parametrize(
    ("one", "other", "counts", "better"),
    [
        (best(0.9, 0.5), None, True, True),
        (best(0.9, 0.5), best(0.8, 0.1), True, True),
        (best(0.9, 0.5), best(0.9, 0.6), True, True),
        (best(0.9, 0.6), best(0.9, 0.6), True, False),
        (best(0.9, 0.5), best(0.95, 0.9), True, False),
        (best(2.0, 0.5), best(3.0, 0.4), False, True),
        (best(3.0, 0.5), best(2.0, 0.6), False, False),
    ],
)
def test_the_better_round_has_the_better_score_or_the_same_and_a_smaller_loss(
    one: BestRound, other: BestRound | None, counts: bool, better: bool
) -> None:
    assert one.beats(other, counts=counts) == better


def test_scores_on_other_examples_are_not_compared() -> None:
    """Scores of a release that did not state its examples are compared: it had the same ones."""
    pairs = ((1.0, ""), (1.0, "a"), (0.5, "b"))
    old, before, now = (BestRound(round=1, score=score, loss=0.1, examples=on) for score, on in pairs)
    assert now.beats(before, counts=True)
    assert not now.beats(old, counts=True)
    assert not BestRound(round=2, score=0.5, loss=0.1, examples="a").beats(before, counts=True)


@pytest.mark.parametrize(("score", "loss"), [(0.5, math.nan), (math.nan, 0.5), (0.9, math.inf)])
def test_a_model_that_diverged_is_never_the_best(score: float, loss: float) -> None:
    assert BestRound.of(3, score, loss) is None
    assert BestRound.of(3, 0.5, 0.25) == BestRound(round=3, score=0.5, loss=0.25)
