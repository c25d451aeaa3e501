"""States that most algorithms share: a model alone, and a model with the number of examples it was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class ServerModel:
    """A model: what peers average, (..., n), or what a server holds and broadcasts, (n,)."""

    model_n: Tensor


@dataclass(frozen=True, eq=False)
class Local:
    """State or update of a client.

    model_n    (..., n) its model
    examples   (...) n_k, number of examples that it trains on
    """

    model_n: Tensor
    examples: Tensor
