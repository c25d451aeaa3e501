"""Running statistics of normalization: they are averaged, and an algorithm does nothing else with them.

Batch normalization keeps means and variances of what it has seen. They are no parameters: no gradient goes to them. A
mean of variances is a variance. But what goes further than a mean, such as momentum, a rate above 1, a difference that
is added to another value, or noise, can be below 0, and then the network answers NaN. So whatever an algorithm does
with parameters, it takes the statistics as they were averaged.

They are the buffers of a flat vector (`slicing/flat.py`), which come after the parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpeer.slicing.flat import FlatLayout


def running_statistics(layout: FlatLayout) -> Tensor | None:
    """Return which numbers of a flat vector are running statistics, (n,) bool; None where the network keeps none."""
    return torch.arange(layout.n) >= layout.n_parameters if layout.n > layout.n_parameters else None


def with_statistics(model_n: Tensor, averaged_n: Tensor, layout: FlatLayout) -> Tensor:
    """Return models (..., n) with the running statistics of others, (..., n), which are averages of members'."""
    parameters = layout.n_parameters
    return torch.cat([model_n[..., :parameters], averaged_n[..., parameters:]], -1)
