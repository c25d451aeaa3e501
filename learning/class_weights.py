"""The weight of each class in a peer's loss, from `learning.class_weights` and the peer's own examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.class_weights import balanced
from fedpeer.algorithms.losses import Loss
from fedpeer.config.choice import ChoiceError, nearest_name
from fedpeer.config.settings import LearningSettings

#: Losses whose mean over a batch takes a weight for each class.
_WEIGHTED = ("cross-entropy", "binary")


def weighs_classes(learning: LearningSettings, criterion: Loss) -> bool:
    """Return whether the loss of an example is weighted by its class, unless an algorithm has a loss of its own.

    Args:
        criterion: the loss by which the network is trained.
    """
    auto = learning.class_weights == "auto" and criterion.name in _WEIGHTED and learning.batch_size > 1
    return auto or learning.demands_class_weights


def class_weight_of(
    learning: LearningSettings, criterion: Loss, classes: Sequence[str], y_M: NDArray[np.generic]
) -> Tensor | None:
    """Return the weight of each class in a peer's loss, (C,) float32; None: all examples count the same.

    Args:
        criterion: the loss by which the network is trained.
        classes: their names, in the order of their numbers.
        y_M: (M,) classes of the peer's own training examples, which determine balanced weights.

    Raises:
        ChoiceError: the settings name a class that the data do not have.
    """
    if not weighs_classes(learning, criterion):
        return None
    chosen = learning.class_weights
    if isinstance(chosen, str):
        return balanced(torch.from_numpy(y_M.astype(np.int64)), len(classes))
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
