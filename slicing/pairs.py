"""Union of the neurons of two tensors that an operation combines scalar by scalar."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedpeer.slicing.cells import Ids, MixedError
from fedpeer.slicing.shadows import TracedCall


def united(call: TracedCall, a: Tensor, b: Tensor) -> Tensor:
    """Unite the neurons of each pair, except one that is broadcast over many neurons (a gate), which stays separate."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    wide_a, wide_b = a.expand(shape), b.expand(shape)
    pairs = call.builder.find(np.stack([wide_a.numpy().ravel(), wide_b.numpy().ravel()]))
    a_spreads = a.numel() < wide_a.numel() and _spreads(call, pairs[0], pairs[1])
    b_spreads = b.numel() < wide_b.numel() and _spreads(call, pairs[1], pairs[0])
    if a_spreads and b_spreads:
        raise MixedError("it combines every pair of two sets of neurons")
    if not a_spreads and not b_spreads:
        call.builder.unite(pairs[0], pairs[1])
    return torch.where(wide_b >= 0, wide_b, wide_a) if a_spreads else torch.where(wide_a >= 0, wide_a, wide_b)


def _spreads(call: TracedCall, narrow: Ids, wide: Ids) -> bool:
    """Return whether a broadcast neuron meets several neurons.

    Pixels that may later be united count as one neuron, unless a statistic or a single broadcast neuron meets them all.
    """
    both = (narrow >= 0) & (wide >= 0)
    if call.builder.statistics(narrow[both]):
        return True
    pairs = np.unique(narrow[both] << 32 | wide[both])  # there are far fewer than 2**32 neurons
    kinds, meets = np.unique(pairs >> 32, return_counts=True)
    several = bool((meets > 1).any())
    return several and (len(kinds) == 1 or not call.builder.loose(pairs & 0xFFFFFFFF))
