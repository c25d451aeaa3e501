"""One peer's examples with its own labels and scale: rows, targets, and the scale fitted on its training examples.

The simulators stack these over peers; a real peer has one. It has only arrays and indices; only the targets are copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import DataError, Dataset, Split
from fedpeer.data.normalise import NORMALISERS, Normaliser, fitted_targets


@dataclass(frozen=True, kw_only=True)
class PeerExamples:
    """One peer's examples.

    train_M, test_M      (M,) int64 rows of the data set's x
    train_y, test_y      their targets for this peer: (M,) int64 classes, float32 numbers on its own scale, or (M, F)
                         patterns
    feature_map_F        (F,) int64: the peer has feature `feature_map_F[i]` at place i; None: the official order
    inputs               converts the inputs, after `feature_map_F`, to the peer's scale; None: they stay as they are
    targets              scale of regression targets; None for classes and patterns
    valid_M, valid_y     training examples held out for validation, in the form of the test part
    """

    train_M: NDArray[np.int64]
    test_M: NDArray[np.int64]
    train_y: NDArray[np.generic]
    test_y: NDArray[np.generic]
    feature_map_F: NDArray[np.int64] | None
    inputs: Normaliser | None
    targets: Normaliser | None
    valid_M: NDArray[np.int64]
    valid_y: NDArray[np.generic]

    def tested(self, dataset: Dataset, *, validation: bool = False) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return the raw inputs (N, *F) of the test part and its targets as this peer sees them, in the data's units.

        Args:
            dataset: the data set whose rows these are.
            validation: whether to take the examples held out for validation instead of the test part.
        """
        rows_M, y = (self.valid_M, self.valid_y) if validation else (self.test_M, self.test_y)
        return dataset.x[rows_M], y if self.targets is None else self.targets.undo(y)

    @property
    def score_scale(self) -> float:
        """One unit of each of the peer's regression targets in units of the data; 1 for other tasks."""
        return 1.0 if self.targets is None else float(self.targets.scale_F.reshape(-1)[0])


def held(dataset: Dataset, split: Split, peer: int, normalise: str) -> PeerExamples:
    """Return the examples of a peer (0, 1, ...); `normalise`: a name of `NORMALISERS`.

    Raises:
        DataError: this data set cannot be normalised.
    """
    share = split.shares[peer]
    parts = (share.train_M, share.test_M, share.valid_M)
    train_y, test_y, valid_y = (split.labels_of(dataset, peer, rows_M) for rows_M in parts)
    targets = inputs = None
    if dataset.task == "regression":
        targets = fitted_targets(train_y, normalise)
        train_y, test_y, valid_y = map(targets.apply, (train_y, test_y, valid_y))
    elif dataset.task == "completion" and normalise != "none":
        raise DataError(f"normalise: {dataset.name} has patterns of 0 and 1, which must not be scaled; write none")
    if normalise != "none" and dataset.input_kind != "tokens":
        inputs = NORMALISERS[normalise](split.inputs(dataset, peer))
    return PeerExamples(
        train_M=share.train_M,
        test_M=share.test_M,
        train_y=train_y,
        test_y=test_y,
        feature_map_F=share.feature_map_F,
        inputs=inputs,
        targets=targets,
        valid_M=share.valid_M,
        valid_y=valid_y,
    )
