"""The weight of each class in a peer's loss, from `learning.class_weights` and the peer's own examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.class_weights import balanced
from fedpeer.config.choice import ChoiceError, nearest_name
from fedpeer.config.settings import LearningSettings


def class_weight_of(learning: LearningSettings, classes: Sequence[str], y_M: NDArray[np.generic]) -> Tensor | None:
    """Return the weight of each class in a peer's loss, (C,) float32; None: all examples count the same.

    Args:
        classes: their names, in the order of their numbers.
        y_M: (M,) classes of the peer's own training examples, which determine balanced weights.

    Raises:
        ChoiceError: the settings name a class that the data do not have.
    """
    chosen = learning.class_weights
    if isinstance(chosen, str):
        return None if chosen == "none" else balanced(torch.from_numpy(y_M.astype(np.int64)), len(classes))
    check_class_names(learning, classes)
    return torch.tensor([float(chosen.get(name, 1.0)) for name in classes])


def check_class_names(learning: LearningSettings, classes: Sequence[str]) -> None:
    """Check that the data have all classes to which the settings give a weight.

    Raises:
        ChoiceError: the data lack one of them.
    """
    named = () if isinstance(learning.class_weights, str) else learning.class_weights
    unknown = [name for name in named if name not in classes]
    if unknown:
        hint = nearest_name(unknown[0], classes)
        raise ChoiceError(f'learning.class_weights: the data have no class "{unknown[0]}"; {hint}')
