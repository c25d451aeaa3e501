"""Running statistics of normalization: they are averaged, and algorithms change them in no other way.

Batch normalization keeps means and variances of its inputs. They are not parameters: they have no gradient. A mean of
variances is a variance. But the result of a step beyond a mean, such as momentum, a rate above 1, a difference that is
added to another value, or noise, can be below 0, and then the network's answers are NaN. So whatever an algorithm does
with parameters, it takes the averaged statistics unchanged.

They are the buffers of a flat vector (`slicing/flat.py`), which come after the parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpeer.slicing.flat import FlatLayout


def running_statistics(layout: FlatLayout) -> Tensor | None:
    """Return which numbers of a flat vector are running statistics, (n,) bool; None where the network keeps none."""
    return torch.arange(layout.n) >= layout.n_parameters if layout.n > layout.n_parameters else None


def refused_statistics(layout: FlatLayout, lack: str) -> str:
    """Return why an algorithm refuses a network with such buffers: they have no gradient, for example (`lack`)."""
    first, *others = (each.name for each in layout.tensors if each.kind == "buffer")
    more = f" and {len(others)} more" if others else ""
    return (
        f"the network keeps running statistics, or another buffer that is averaged ({first}{more}), which {lack}; take "
        "a network without them (norm=none), and register a table of constants with persistent=False"
    )


def with_statistics(model_n: Tensor, averaged_n: Tensor, layout: FlatLayout) -> Tensor:
    """Return models (..., n) with the running statistics of `averaged_n` (..., n), which are averages over peers."""
    parameters = layout.n_parameters
    return torch.cat([model_n[..., :parameters], averaged_n[..., parameters:]], -1)
