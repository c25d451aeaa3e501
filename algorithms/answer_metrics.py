"""Metrics of a model's answers on one peer's test part, in addition to its score and its loss.

scikit-learn and torchmetrics compute them; both are imported when a metric is asked for, since that takes a second. A
metric is a function of targets and answers:

    y          (N,) int64 classes, (N, C) labels of 0 and 1, or numbers (N,) or (N, outputs) in the data's units
    answers    (N, C) probabilities of the classes, or of each label, or numbers (N, outputs)

It returns NaN where it is not defined, such as an area under the curve where the test part lacks a class.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedpeer.algorithms.losses import Task

#: y, answers -> value.
AnswerMetric: TypeAlias = Callable[[NDArray[Any], NDArray[Any]], float]


def log_loss(y_N: NDArray[Any], answer_NC: NDArray[Any]) -> float:
    """Mean negative log probability of the right class (negative log likelihood), in nats; less is better."""
    from sklearn import metrics

    return float(metrics.log_loss(y_N, _probabilities(answer_NC), labels=_classes(answer_NC)))


def brier(y_N: NDArray[Any], answer_NC: NDArray[Any]) -> float:
    """Brier score: mean squared distance of the probabilities from 0 and 1, summed over classes; less is better."""
    from sklearn import metrics

    score = metrics.brier_score_loss(y_N, _probabilities(answer_NC), labels=_classes(answer_NC), scale_by_half=False)
    return float(score)


def ece(y_N: NDArray[Any], answer_NC: NDArray[Any], *, bins: int = 15) -> float:
    """Expected calibration error of the likeliest class, from 0 to 1; less is better.

    Source: Guo, Pleiss, Sun, Weinberger, On Calibration of Modern Neural Networks, ICML 2017, equation 3.
    """
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    answers, targets = torch.from_numpy(_probabilities(answer_NC)), torch.from_numpy(np.asarray(y_N))
    return float(multiclass_calibration_error(answers, targets, answer_NC.shape[1], n_bins=bins, norm="l1"))


def auc(y_N: NDArray[Any], answer_NC: NDArray[Any]) -> float:
    """Area under the ROC curve, each class against the rest, mean over classes; more is better."""
    from sklearn import metrics

    if len(np.unique(y_N)) < answer_NC.shape[1]:
        return math.nan
    p_NC = _probabilities(answer_NC)
    if p_NC.shape[1] == 2:
        return float(metrics.roc_auc_score(y_N, p_NC[:, 1]))
    return float(metrics.roc_auc_score(y_N, p_NC, multi_class="ovr", labels=_classes(answer_NC)))


def f1(y_N: NDArray[Any], answer_NC: NDArray[Any]) -> float:
    """F1, mean over the classes that occur; more is better."""
    from sklearn import metrics

    return float(metrics.f1_score(y_N, answer_NC.argmax(1), average="macro", zero_division=0))


def balanced_accuracy(y_N: NDArray[Any], answer_NC: NDArray[Any]) -> float:
    """Accuracy of each class of the test part, mean over these classes; more is better."""
    from sklearn import metrics

    return float(metrics.balanced_accuracy_score(y_N, answer_NC.argmax(1)))


def label_log_loss(y_NC: NDArray[Any], answer_NC: NDArray[Any]) -> float:
    """Mean negative log probability of whether a label holds, in nats, mean over labels; less is better."""
    from sklearn import metrics

    of_each = (metrics.log_loss(y_N, p_N, labels=[0, 1]) for y_N, p_N in _by_label(y_NC, answer_NC))
    return float(np.mean(list(of_each)))


def label_auc(y_NC: NDArray[Any], answer_NC: NDArray[Any]) -> float:
    """Area under the ROC curve, mean over labels that hold for some examples and not for others; more is better."""
    from sklearn import metrics

    areas = [metrics.roc_auc_score(y_N, p_N) for y_N, p_N in _by_label(y_NC, answer_NC) if 0 < y_N.sum() < len(y_N)]
    return float(np.mean(areas)) if areas else math.nan


def average_precision(y_NC: NDArray[Any], answer_NC: NDArray[Any]) -> float:
    """Average precision (area under precision by recall), mean over labels that occur; more is better."""
    from sklearn import metrics

    found = [metrics.average_precision_score(y_N, p_N) for y_N, p_N in _by_label(y_NC, answer_NC) if y_N.any()]
    return float(np.mean(found)) if found else math.nan


def label_f1(y_NC: NDArray[Any], answer_NC: NDArray[Any]) -> float:
    """F1, mean over labels that occur; more is better."""
    from sklearn import metrics

    found = [metrics.f1_score(y_N, p_N > 0.5, zero_division=0) for y_N, p_N in _by_label(y_NC, answer_NC) if y_N.any()]
    return float(np.mean(found)) if found else math.nan


def exact_match(y_NC: NDArray[Any], answer_NC: NDArray[Any]) -> float:
    """Fraction of examples of which all labels are right; more is better."""
    from sklearn import metrics

    return float(metrics.accuracy_score(np.asarray(y_NC) > 0.5, np.asarray(answer_NC) > 0.5))


def mae(y: NDArray[Any], answers: NDArray[Any]) -> float:
    """Mean absolute error, in the data's units; less is better."""
    from sklearn import metrics

    return float(metrics.mean_absolute_error(*_numbers(y, answers)))


def rmse(y: NDArray[Any], answers: NDArray[Any]) -> float:
    """Root of the mean squared error, in the data's units, mean over the targets; less is better."""
    from sklearn import metrics

    return float(metrics.root_mean_squared_error(*_numbers(y, answers)))


def r2(y: NDArray[Any], answers: NDArray[Any]) -> float:
    """Explained part of the variance (R2), at most 1; more is better."""
    from sklearn import metrics

    return float(metrics.r2_score(*_numbers(y, answers)))


#: The metric of classes that are not equally frequent.
BALANCED_ACCURACY = "balanced-accuracy"
#: Metrics by name, for each kind of target.
ANSWER_METRICS: Mapping[Task, Mapping[str, Callable[..., float]]] = {
    "classification": {
        "log-loss": log_loss,
        "brier": brier,
        "ece": ece,
        "auc": auc,
        "f1": f1,
        BALANCED_ACCURACY: balanced_accuracy,
    },
    "multi-label": {
        "log-loss": label_log_loss,
        "auc": label_auc,
        "average-precision": average_precision,
        "f1": label_f1,
        "exact-match": exact_match,
    },
    "regression": {"mae": mae, "rmse": rmse, "r2": r2},
    "completion": {},
    "next-token": {},
}


#: Number of examples with which a metric of numbers is tried.
_TRIED = 16
#: Metrics that are always measured if the algorithm is Bayesian.
CALIBRATION = ("log-loss", "brier", "ece")


@dataclass(frozen=True)
class AnswerScores:
    """Values of some metrics on one test part.

    values   by name; NaN: not defined there
    failed   by name, the error of a user's own metric that failed
    """

    values: Mapping[str, float]
    failed: Mapping[str, str]


def answer_scores(metrics: Mapping[str, AnswerMetric], y: NDArray[Any], answers: NDArray[Any]) -> AnswerScores:
    """Return the values of the metrics; a metric that raises has the value NaN, and its error is returned."""
    values, failed = dict[str, float](), dict[str, str]()
    for name, metric in metrics.items():
        values[name] = math.nan
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about absent classes, which NaN reports
                values[name] = float(metric(y, answers))
        except Exception as problem:  # whatever a user's own metric raises
            failed[name] = f"{type(problem).__name__}: {problem}"
    return AnswerScores(values, failed)


def example_answers(task: Task, y: NDArray[Any], classes: int) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return targets and answers to try a user's own metric with before a training; None: answers have another form.

    The answers are those of a model that knows nothing: each class with the same probability, or the mean.

    Args:
        y: targets of all examples; numbers to predict are the first of these.
    """
    if task == "classification":
        return np.arange(classes), np.full((classes, classes), 1 / classes)
    if task == "multi-label":
        return np.eye(classes), np.full((classes, classes), 0.5)
    if task == "regression":
        few = y[:_TRIED].astype(np.float64)
        return few, np.broadcast_to(few.mean(0), few.shape).reshape(len(few), -1)
    return None


def confusion(y_N: NDArray[Any], answer_NC: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many examples of each class (rows) were taken for each class (columns), (C, C).

    NumPy counts them: every run asks for this, and importing scikit-learn takes longer than all of it.
    """
    classes = answer_NC.shape[1]
    place_N = np.asarray(y_N, np.int64) * classes + answer_NC.argmax(1)
    return np.bincount(place_N, minlength=classes * classes).reshape(classes, classes)


def class_scores(y: NDArray[Any], answer_NC: NDArray[Any]) -> NDArray[np.float64]:
    """Return precision, recall, F1 and number of examples of each class, (C, 4); 0 where a class does not occur.

    Args:
        y: (N,) classes, or (N, C) labels of 0 and 1.
    """
    from sklearn import metrics

    chosen = answer_NC > 0.5 if y.ndim == 2 else answer_NC.argmax(1)
    found = metrics.precision_recall_fscore_support(
        y.astype(np.int64), chosen, labels=_classes(answer_NC), zero_division=0
    )
    return np.stack(found, axis=1).astype(np.float64)


def reliability(y_N: NDArray[Any], answer_NC: NDArray[Any], bins: int = 10) -> NDArray[np.float64]:
    """Return the reliability diagram of the likeliest class: mean confidence, part that is right, number; (bins, 3).

    Bins without examples are left out.
    """
    from sklearn.calibration import calibration_curve

    p_NC = _probabilities(answer_NC)
    right_N, confidence_N = (p_NC.argmax(1) == y_N).astype(np.int64), p_NC.max(1)
    part_B, mean_B = calibration_curve(right_N, confidence_N, n_bins=bins)
    place_N = np.searchsorted(np.linspace(0.0, 1.0, bins + 1)[1:-1], confidence_N)  # the bins of calibration_curve
    count_B = np.bincount(place_N, minlength=bins)
    return np.stack([mean_B, part_B, count_B[count_B > 0]], axis=1)


def _by_label(y_NC: NDArray[Any], answer_NC: NDArray[Any]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Yield for each label whether it holds, (N,), and its probabilities, (N,)."""
    for y_N, p_N in zip(y_NC.T, np.asarray(answer_NC, dtype=np.float64).T, strict=True):
        yield y_N.astype(np.int64), p_N


def _classes(answer_NC: NDArray[Any]) -> NDArray[np.int64]:
    return np.arange(answer_NC.shape[1])


def _probabilities(answer_NC: NDArray[Any]) -> NDArray[np.float64]:
    """Return the probabilities as float64 that sum to 1: scikit-learn refuses float32's rounding."""
    p_NC = np.asarray(answer_NC, dtype=np.float64)
    summed: NDArray[np.float64] = p_NC / p_NC.sum(1, keepdims=True)
    return summed


def _numbers(y: NDArray[Any], answers: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return targets and answers of the same shape (N, outputs)."""
    wanted = np.asarray(y, dtype=np.float64).reshape(len(answers), -1)
    return wanted, np.asarray(answers, dtype=np.float64).reshape(wanted.shape)
