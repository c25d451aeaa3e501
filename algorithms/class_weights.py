"""Balanced weights of classes, from the examples of one peer alone."""

from __future__ import annotations

import torch
from torch import Tensor


def balanced(y_M: Tensor, classes: int) -> Tensor:
    """Return n / (k * count_c) for each class c, (C,) float32, of k classes among n examples.

    It is scikit-learn's `class_weight="balanced"` (King, Zeng 2001): each class with examples has the same total
    weight. A class without examples gets 0.

    >>> balanced(torch.tensor([0, 0, 0, 2]), 3).tolist()
    [0.6666666865348816, 0.0, 2.0]

    Args:
        y_M: (M,) classes 0, 1, ..., M >= 1.
        classes: C, the number of classes of the federation.
    """
    count_C = torch.bincount(y_M, minlength=classes)
    there = count_C > 0
    return torch.where(there, len(y_M) / (there.sum() * count_C.clamp(min=1)), 0.0)
