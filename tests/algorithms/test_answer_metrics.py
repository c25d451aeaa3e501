"""Metrics of a model's answers against their definitions, written out example by example."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedpeer.algorithms.answer_metrics import (
    ANSWER_METRICS,
    CALIBRATION,
    answer_scores,
    class_scores,
    confusion,
    reliability,
)
from fedpeer.config.building import metrics_of
from fedpeer.config.choice import ChoiceError, parse_choice, several

Arrays = tuple[NDArray[Any], NDArray[Any]]


@st.composite
def answered(draw: st.DrawFn) -> Arrays:
    """Draw classes (N,) and float32 probabilities (N, C) that sum to 1 up to rounding."""
    examples, classes = draw(st.integers(1, 30)), draw(st.integers(2, 5))
    numbers = np.random.default_rng(draw(st.integers(0, 10**6)))
    p_NC = numbers.dirichlet(np.full(classes, draw(st.sampled_from([0.2, 1.0, 5.0]))), size=examples)
    return numbers.integers(0, classes, examples), np.clip(p_NC, 1e-6, None).astype(np.float32)


def classified(name: str) -> Callable[..., float]:
    """Return the metric as it is used: it is NaN where the library warns."""

    def measured(y_N: NDArray[Any], p_NC: NDArray[Any], **settings: Any) -> float:
        metric = partial(ANSWER_METRICS["classification"][name], **settings)
        found = answer_scores({name: metric}, y_N, p_NC)
        assert not found.failed
        return found.values[name]

    return measured


def normalised(p_NC: NDArray[Any]) -> NDArray[np.float64]:
    wide: NDArray[np.float64] = p_NC.astype(np.float64)
    summed: NDArray[np.float64] = wide / wide.sum(1, keepdims=True)
    return summed


@pytest.mark.slow
@settings(max_examples=30)
@given(answered())
def test_log_loss_and_brier_are_their_sums(found: Arrays) -> None:
    y_N, p_NC = found[0], normalised(found[1])
    pairs = list(zip(y_N, p_NC, strict=True))
    assert classified("log-loss")(*found) == pytest.approx(-sum(math.log(p_C[y]) for y, p_C in pairs) / len(y_N))
    squares = [sum((p - (place == y)) ** 2 for place, p in enumerate(p_C)) for y, p_C in pairs]
    assert classified("brier")(*found) == pytest.approx(sum(squares) / len(y_N))


@pytest.mark.slow
@settings(max_examples=30)
@given(answered(), st.integers(1, 20))
def test_the_calibration_error_is_the_weighted_gap_of_its_bins(found: Arrays, bins: int) -> None:
    y_N, p_NC = found[0], normalised(found[1])
    gap = 0.0
    for place in range(bins):
        low, high = place / bins, (place + 1) / bins
        inside = [(p_C.max(), p_C.argmax() == y) for y, p_C in zip(y_N, p_NC, strict=True) if low < p_C.max() <= high]
        if inside:
            confidence, right = (sum(each) / len(inside) for each in zip(*inside, strict=True))
            gap += len(inside) / len(y_N) * abs(right - confidence)
    assert classified("ece")(*found, bins=bins) == pytest.approx(gap, abs=1e-5)


@pytest.mark.slow
@settings(max_examples=30)
@given(answered())
def test_the_area_is_the_part_of_pairs_in_the_right_order(found: Arrays) -> None:
    y_N, p_NC = found[0], normalised(found[1])
    area = classified("auc")(*found)
    if len(set(y_N)) < p_NC.shape[1]:
        assert math.isnan(area), "a class is missing"
        return
    areas = []
    for each in range(p_NC.shape[1]):
        pairs = [(p_NC[i, each], p_NC[j, each]) for i in range(len(y_N)) for j in range(len(y_N))
                 if y_N[i] == each != y_N[j]]  # fmt: skip
        areas.append(sum((one > other) + 0.5 * (one == other) for one, other in pairs) / len(pairs))
    assert area == pytest.approx(sum(areas) / len(areas))


@pytest.mark.slow
@settings(max_examples=30)
@given(answered())
def test_what_is_said_of_classes_follows_from_counts(found: Arrays) -> None:
    y_N, p_NC = found
    answer_N, classes = p_NC.argmax(1), p_NC.shape[1]
    counts_CC = np.zeros((classes, classes), np.int64)
    for y, answer in zip(y_N, answer_N, strict=True):
        counts_CC[y, answer] += 1
    assert (confusion(y_N, p_NC) == counts_CC).all()
    right_C, of_C, as_C = np.diag(counts_CC), counts_CC.sum(1), counts_CC.sum(0)

    def parted(one: int, other: int) -> float:
        return one / other if other else 0.0

    rows = class_scores(y_N, p_NC)
    for each in range(classes):
        precision, recall = parted(right_C[each], as_C[each]), parted(right_C[each], of_C[each])
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        assert rows[each] == pytest.approx([precision, recall, f1, of_C[each]])
    there = [each for each in range(classes) if of_C[each] or as_C[each]]
    assert classified("f1")(y_N, p_NC) == pytest.approx(np.mean([rows[each][2] for each in there]))
    asked = [each for each in range(classes) if of_C[each]]
    assert classified("balanced-accuracy")(y_N, p_NC) == pytest.approx(np.mean([rows[each][1] for each in asked]))


@pytest.mark.slow
@settings(max_examples=30)
@given(answered())
def test_a_reliability_diagram_has_every_example_once(found: Arrays) -> None:
    y_N, p_NC = found[0], normalised(found[1])
    mean_B, part_B, count_B = reliability(*found).T
    assert count_B.sum() == len(y_N)
    assert (mean_B * count_B).sum() == pytest.approx(p_NC.max(1).sum())
    assert (part_B * count_B).sum() == pytest.approx((p_NC.argmax(1) == y_N).sum())


@st.composite
def labelled(draw: st.DrawFn) -> Arrays:
    """Draw labels (N, C) and float32 probabilities (N, C), some of them equal."""
    examples, labels = draw(st.integers(1, 20)), draw(st.integers(2, 4))
    numbers = np.random.default_rng(draw(st.integers(0, 10**6)))
    y_NC = numbers.random((examples, labels)) < draw(st.sampled_from([0.1, 0.5, 0.9]))
    return y_NC.astype(np.float32), numbers.choice([0.1, 0.3, 0.4, 0.6, 0.95], (examples, labels)).astype(np.float32)


@pytest.mark.slow
@settings(max_examples=30)
@given(labelled())
def test_what_is_said_of_labels_follows_from_pairs_and_counts(found: Arrays) -> None:
    """The area under a label's curve is the part of its pairs in the right order. Its average precision is the sum,
    over falling thresholds, of the gain in recall times the precision there."""
    y_NC, p_NC = found
    scores = answer_scores(ANSWER_METRICS["multi-label"], y_NC, p_NC)
    assert not scores.failed
    areas, precisions, f1s, losses = [], [], [], []
    rows = class_scores(y_NC, p_NC)
    for each, (y_N, p_N) in enumerate(zip(y_NC.T.tolist(), p_NC.T.astype(np.float64).tolist(), strict=True)):
        losses += [-math.log(p if y else 1 - p) for y, p in zip(y_N, p_N, strict=True)]
        there, away = ([p for y, p in zip(y_N, p_N, strict=True) if y == which] for which in (1.0, 0.0))
        if there and away:
            right = [(p > q) + 0.5 * (p == q) for p in there for q in away]
            areas.append(sum(right) / len(right))
        if there:
            average, recalled = 0.0, 0.0
            for threshold in sorted(set(p_N), reverse=True):
                hits, answered = sum(p >= threshold for p in there), sum(p >= threshold for p in p_N)
                average += (hits / len(there) - recalled) * hits / answered
                recalled = hits / len(there)
            precisions.append(average)
            hits, answered = sum(p > 0.5 for p in there), sum(p > 0.5 for p in p_N)
            f1s.append(2 * hits / (len(there) + answered))
            assert rows[each] == pytest.approx(
                [hits / answered if answered else 0, hits / len(there), f1s[-1], len(there)]
            )
    wanted = {
        "log-loss": np.mean(losses),
        "auc": np.mean(areas) if areas else math.nan,
        "average-precision": np.mean(precisions) if precisions else math.nan,
        "f1": np.mean(f1s) if f1s else math.nan,
        "exact-match": np.mean(((p_NC > 0.5) == (y_NC == 1)).all(1)),
    }
    assert scores.values == pytest.approx(wanted, nan_ok=True)


@pytest.mark.parametrize("outputs", [1, 2])
def test_errors_of_numbers_are_their_sums(outputs: int) -> None:
    draws = np.random.default_rng(outputs)
    answers = draws.normal(size=(20, outputs)).astype(np.float32)
    y = draws.normal(size=20 if outputs == 1 else (20, outputs)).astype(np.float32)
    wanted = y.reshape(answers.shape).astype(np.float64)
    error = answers.astype(np.float64) - wanted
    found = answer_scores(ANSWER_METRICS["regression"], y, answers).values
    assert found["mae"] == pytest.approx(np.abs(error).mean())
    assert found["rmse"] == pytest.approx(np.sqrt((error**2).mean(0)).mean())
    explained = 1 - (error**2).sum(0) / ((wanted - wanted.mean(0)) ** 2).sum(0)
    assert found["r2"] == pytest.approx(explained.mean())


def test_a_metric_of_ones_own_that_fails_is_named_and_the_others_are_measured() -> None:
    def fails(y: NDArray[Any], answers: NDArray[Any]) -> float:
        raise ZeroDivisionError("no examples of the rare class")

    metrics = {"mine": fails, "f1": classified("f1")}
    found = answer_scores(metrics, np.array([0, 1]), np.eye(2, dtype=np.float32))
    assert found.failed == {"mine": "ZeroDivisionError: no examples of the rare class"}
    assert math.isnan(found.values["mine"])
    assert found.values["f1"] == 1.0


def test_metrics_are_chosen_by_name_with_settings_or_as_ones_own_function() -> None:
    def load(name: str) -> Callable[..., float]:
        assert name == "mine:wrong"
        return lambda y, answers, *, factor=1: factor * float((answers.argmax(1) != y).sum())

    chosen = several("ece,bins=5,auc,python:mine:wrong,factor=3")
    found = metrics_of(chosen, "classification", load)
    assert list(found) == ["ece,bins=5", "auc", "python:mine:wrong,factor=3"]
    y_N, p_NC = np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], dtype=np.float32)
    values = answer_scores(found, y_N, p_NC).values
    assert values["ece,bins=5"] == pytest.approx(classified("ece")(y_N, p_NC, bins=5))
    assert values["python:mine:wrong,factor=3"] == 3.0


@pytest.mark.parametrize(
    ("name", "task", "says"),
    [
        ("auc", "regression", "auc is for classification, and the data ask for regression; choose mae, rmse, r2"),
        ("mae", "completion", "mae is for regression, and the data ask for completion; leave it out"),
        ("acu", "classification", 'did you mean "auc"'),
        ("brier", "multi-label", "choose log-loss, auc, average-precision, f1, exact-match"),
    ],
)
def test_a_metric_for_other_targets_is_refused(name: str, task: Any, says: str) -> None:
    with pytest.raises(ChoiceError, match=says):
        metrics_of([parse_choice(name)], task, pytest.fail)


def test_calibration_is_measured_by_metrics_of_classes() -> None:
    assert set(CALIBRATION) <= ANSWER_METRICS["classification"].keys()
