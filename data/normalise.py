"""Normalisation of inputs and regression targets, fitted on one peer's own training data only.

Neither a peer's data nor the statistics of the data leave the peer: every peer fits its own scale. These are pure
functions on arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Spread relative to the shift up to which a feature is constant: a constant 0.1 has a standard deviation of 1e-17 by
#: rounding, and dividing by it would turn the feature into noise.
_CONSTANT = 1e-7


@dataclass(frozen=True)
class Normaliser:
    """The transformation `(x - shift) / scale`, feature by feature.

    An image has one feature per channel, and a sequence those of each of its places.

    shift_F, scale_F   broadcast against an example; scale is never 0
    """

    shift_F: NDArray[np.float32]
    scale_F: NDArray[np.float32]

    def apply(self, x: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return the examples on the common scale, (N, *F)."""
        return ((x.astype(np.float32) - self.shift_F) / self.scale_F).astype(np.float32)

    def undo(self, x: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return values, such as predictions, in the units of the data."""
        return (x.astype(np.float32) * self.scale_F + self.shift_F).astype(np.float32)


def no_normalisation(train_x: NDArray[np.generic]) -> Normaliser:
    """Leave the values as they are."""
    return Normaliser(np.zeros(1, dtype=np.float32), np.ones(1, dtype=np.float32))


def standard(train_x: NDArray[np.generic]) -> Normaliser:
    """Scale to mean 0 and standard deviation 1 over the training examples; a constant feature becomes 0."""
    values = train_x.astype(np.float64)
    over = _all_but_features(values)
    return _normaliser(values.mean(axis=over, keepdims=True)[0], values.std(axis=over, keepdims=True)[0])


def minmax(train_x: NDArray[np.generic]) -> Normaliser:
    """Scale to minimum 0 and maximum 1 over the training examples; a constant feature becomes 0."""
    values = train_x.astype(np.float64)
    over = _all_but_features(values)
    low = values.min(axis=over, keepdims=True)[0]
    return _normaliser(low, values.max(axis=over, keepdims=True)[0] - low)


#: name -> f(train_x) -> Normaliser
NORMALISERS: dict[str, Callable[[NDArray[np.generic]], Normaliser]] = {
    "none": no_normalisation,
    "standard": standard,
    "minmax": minmax,
}


def fitted_targets(train_y: NDArray[np.generic], name: str) -> Normaliser:
    """Fit a scale to regression targets, (N,) or (N, outputs); several outputs have a shift each, and one scale.

    With one scale the error over all outputs is in units of the data. With one shift, outputs such as a latitude and a
    longitude would be two numbers far apart, beside which what is to be learned is small.

    Args:
        name: a key of `NORMALISERS`.
    """
    values_NO = train_y.reshape(len(train_y), -1)
    each = NORMALISERS[name](values_NO)
    if len(each.shift_F) == 1:
        return each
    apart_NO = values_NO.astype(np.float64) - each.shift_F
    scale_1 = NORMALISERS[name](apart_NO.reshape(-1, 1)).scale_F
    constant = scale_1 <= _CONSTANT * np.abs(each.shift_F).max()
    return Normaliser(each.shift_F.reshape(train_y.shape[1:]), np.where(constant, 1, scale_1).astype(np.float32))


def _all_but_features(values: NDArray[np.float64]) -> tuple[int, ...]:
    """Return the axes to average over: examples, and the places of a sequence (N, T, F) or the pixels (N, C, H, W)."""
    return (0, 1) if values.ndim == 3 else (0, *range(2, values.ndim))


def _normaliser(shift: NDArray[np.float64], spread: NDArray[np.float64]) -> Normaliser:
    constant = spread <= _CONSTANT * np.maximum(1e-30, np.abs(shift))
    return Normaliser(shift.astype(np.float32), np.where(constant, 1, spread).astype(np.float32))
