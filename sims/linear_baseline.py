"""A linear model that each peer fits to its own table by scikit-learn, for comparison."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpeer.config.settings import TABLES
from fedpeer.sims.world import World

#: Most peers for which linear models are fitted: some 10 ms each.
PEERS_MAX = 256
#: Steps of the solver: enough for tables of some thousand rows.
_ITERATIONS = 1000


def linear_scores(world: World) -> list[float] | None:
    """Return the accuracy, or the root-mean-square error, of each peer's own linear model on its test part.

    Classes: logistic regression; labels: one for each label, and the share of answers that are right; numbers: ridge
    regression. All have scikit-learn's default penalty, on inputs scaled as the peers scale them. None if the data are
    not a user's own table, or for more than `PEERS_MAX` peers.
    """
    dataset = world.dataset
    numbers = dataset.input_kind == "features" and dataset.x.ndim == 2
    table = world.federation.simulation.dataset.name in TABLES and numbers
    if not table or dataset.task == "completion" or len(world.peers) > PEERS_MAX:
        return None
    score = {"classification": _accuracy, "multi-label": _share_right}.get(dataset.task, _error)
    return [_fitted(world, number, score) for number in range(len(world.peers))]


_Score = Callable[[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]], float]


def _fitted(world: World, number: int, score: _Score) -> float:
    holding = world.held(number)

    def inputs(rows_M: NDArray[np.int64]) -> NDArray[np.float64]:
        x_MF = world.dataset.x[rows_M]
        if holding.feature_map_F is not None:
            x_MF = x_MF[:, holding.feature_map_F]
        scaled = x_MF if holding.inputs is None else holding.inputs.apply(x_MF)
        return np.asarray(scaled, dtype=np.float64)

    found = score(inputs(holding.train_M), holding.train_y, inputs(holding.test_M), holding.test_y)
    return found * holding.score_scale


def _accuracy(x: NDArray[Any], y: NDArray[Any], test_x: NDArray[Any], test_y: NDArray[Any]) -> float:
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(y)) == 1:  # there is one class only
        return float((test_y == y[0]).mean())
    with warnings.catch_warnings():  # scikit-learn doubts classes that most rows have for themselves
        warnings.filterwarnings("ignore", message="The number of unique classes", category=UserWarning)
        model = LogisticRegression(max_iter=_ITERATIONS).fit(x, y)
    return float((model.predict(test_x) == test_y).mean())


def _share_right(x: NDArray[Any], y: NDArray[Any], test_x: NDArray[Any], test_y: NDArray[Any]) -> float:
    labels = zip(y.T, test_y.T, strict=True)
    return float(np.mean([_accuracy(x, y_N, test_x, test_y_N) for y_N, test_y_N in labels]))


def _error(x: NDArray[Any], y: NDArray[Any], test_x: NDArray[Any], test_y: NDArray[Any]) -> float:
    from sklearn.linear_model import Ridge

    wanted = y.reshape(len(y), -1)
    error = Ridge().fit(x, wanted).predict(test_x).reshape(len(test_y), -1) - test_y.reshape(len(test_y), -1)
    return float(np.sqrt((error**2).mean()))
