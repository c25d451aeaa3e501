"""What most algorithms hold and send: equals and the server a model, a client a model and how much it learnt from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class ServerModel:
    """What equals average, (..., n), or what the server holds and tells: model_n (n,)."""

    model_n: Tensor


@dataclass(frozen=True, eq=False)
class Local:
    """What a client keeps, or sends: model_n (..., n), and n_k (...), the number of examples that it trains on."""

    model_n: Tensor
    examples: Tensor
