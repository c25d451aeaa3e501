"""Bringing inputs, and regression targets, to a common scale, fitted on one peer's own training data only.

A peer's data never leaves it, so neither do its statistics: every peer fits its own. Pure functions on arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Normaliser:
    """`(x - shift) / scale`, feature by feature; an image has one feature a channel.

    shift_F, scale_F   broadcast against an example; scale is never 0
    """

    shift_F: NDArray[np.float32]
    scale_F: NDArray[np.float32]

    def apply(self, x: NDArray[np.generic]) -> NDArray[np.float32]:
        """The examples (N, *F) on the common scale."""
        return ((x.astype(np.float32) - self.shift_F) / self.scale_F).astype(np.float32)

    def undo(self, x: NDArray[np.generic]) -> NDArray[np.float32]:
        """Back to the units of the data, as for a prediction."""
        return (x.astype(np.float32) * self.scale_F + self.shift_F).astype(np.float32)


def no_normalisation(train_x: NDArray[np.generic]) -> Normaliser:
    """As they are."""
    return Normaliser(np.zeros(1, dtype=np.float32), np.ones(1, dtype=np.float32))


def standard(train_x: NDArray[np.generic]) -> Normaliser:
    """Mean 0 and standard deviation 1 over the training examples; a constant feature becomes 0."""
    values = train_x.astype(np.float64)
    over = _all_but_features(values)
    return _normaliser(values.mean(axis=over, keepdims=True)[0], values.std(axis=over, keepdims=True)[0])


def minmax(train_x: NDArray[np.generic]) -> Normaliser:
    """Smallest 0 and largest 1 over the training examples; a constant feature becomes 0."""
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


def _all_but_features(values: NDArray[np.float64]) -> tuple[int, ...]:
    """The axes that are averaged over: examples, and the places of an image (N, C, H, W)."""
    return (0, *range(2, values.ndim))


def _normaliser(shift: NDArray[np.float64], spread: NDArray[np.float64]) -> Normaliser:
    # A spread of rounding errors only (a constant 0.1 has std 1e-17) would blow a constant feature up to noise.
    constant = spread <= 1e-7 * np.maximum(1e-30, np.abs(shift))
    return Normaliser(shift.astype(np.float32), np.where(constant, 1, spread).astype(np.float32))
