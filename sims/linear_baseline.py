"""A linear model that each peer fits to its own table by scikit-learn, for comparison."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.config.settings import TABLES
from fedpeer.data.held import PeerExamples
from fedpeer.learning.class_weights import class_weight_of
from fedpeer.sims.world import World

#: Most peers for which linear models are fitted: some 10 ms each.
PEERS_MAX = 256
#: Steps of the solver: enough for tables of some thousand rows.
_ITERATIONS = 1000


@dataclass(frozen=True, slots=True)
class LinearScores:
    """Scores of each peer's own linear model on its test part.

    scores     accuracy, or the root-mean-square error
    balanced   balanced accuracy, where classes have weights; else None
    """

    scores: list[float]
    balanced: list[float] | None = None


def linear_scores(world: World) -> LinearScores | None:
    """Fit a linear model to each peer's own training examples, and return the scores.

    Classes: logistic regression, with the peers' weights of classes; labels: one for each label, and the share of
    answers that are right; numbers: ridge regression. All have scikit-learn's default penalty, on inputs scaled as the
    peers scale them. None if the data are not a user's own table, or for more than `PEERS_MAX` peers.
    """
    dataset = world.dataset
    numbers = dataset.input_kind == "features" and dataset.x.ndim == 2
    table = world.federation.simulation.dataset.name in TABLES and numbers
    if not table or dataset.task == "completion" or len(world.peers) > PEERS_MAX:
        return None
    holdings = [world.held(number) for number in range(len(world.peers))]
    if dataset.task != "classification":
        score = _share_right if dataset.task == "multi-label" else _error
        return LinearScores([score(*_scaled(world, each)) * each.score_scale for each in holdings])
    weight_PC = [
        class_weight_of(world.federation.learning, world.criterion, dataset.classes, each.train_y) for each in holdings
    ]
    found = [_classified(*_scaled(world, each), weight_C) for each, weight_C in zip(holdings, weight_PC, strict=True)]
    balanced = [score for _, score in found] if any(each is not None for each in weight_PC) else None
    return LinearScores([score for score, _ in found], balanced)


_Array = NDArray[Any]


def _scaled(world: World, holding: PeerExamples) -> tuple[_Array, _Array, _Array, _Array]:
    """Return inputs and targets for training, and those for the test, as the peer sees them."""

    def inputs(rows_M: NDArray[np.int64]) -> NDArray[np.float64]:
        x_MF = world.dataset.x[rows_M]
        if holding.feature_map_F is not None:
            x_MF = x_MF[:, holding.feature_map_F]
        scaled = x_MF if holding.inputs is None else holding.inputs.apply(x_MF)
        return np.asarray(scaled, dtype=np.float64)

    return inputs(holding.train_M), holding.train_y, inputs(holding.test_M), holding.test_y


def _classified(x: _Array, y: _Array, test_x: _Array, test_y: _Array, weight_C: Tensor | None) -> tuple[float, float]:
    """Return accuracy and balanced accuracy."""
    from sklearn.metrics import balanced_accuracy_score

    answers = _answers(x, y, test_x, None if weight_C is None else weight_C.numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # answers that no test example has
        return float((answers == test_y).mean()), float(balanced_accuracy_score(test_y, answers))


def _answers(x: _Array, y: _Array, test_x: _Array, weight_C: _Array | None = None) -> _Array:
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(y)) == 1:  # there is one class only
        return np.full(len(test_x), y[0])
    weight_M = (
        None if weight_C is None else weight_C[y] * (len(y) / weight_C[y].sum())
    )  # beside the penalty, their sum counts
    with warnings.catch_warnings():  # scikit-learn doubts classes that most rows have for themselves
        warnings.filterwarnings("ignore", message="The number of unique classes", category=UserWarning)
        model = LogisticRegression(max_iter=_ITERATIONS).fit(x, y, sample_weight=weight_M)
    return np.asarray(model.predict(test_x))


def _share_right(x: _Array, y: _Array, test_x: _Array, test_y: _Array) -> float:
    right = [(_answers(x, y_N, test_x) == test_y_N).mean() for y_N, test_y_N in zip(y.T, test_y.T, strict=True)]
    return float(np.mean(right))


def _error(x: _Array, y: _Array, test_x: _Array, test_y: _Array) -> float:
    from sklearn.linear_model import Ridge

    wanted = y.reshape(len(y), -1)
    error = Ridge().fit(x, wanted).predict(test_x).reshape(len(test_y), -1) - test_y.reshape(len(test_y), -1)
    return float(np.sqrt((error**2).mean()))
