"""What most of the algorithms here hold and send: the server a model, a client a model and how much it learnt from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Model:
    """What the server holds and tells: model_n (n,)."""

    model_n: Tensor


@dataclass(frozen=True, eq=False)
class Local:
    """What a client keeps, or sends: model_n (..., n), and n_k (...), the number of examples that it trains on."""

    model_n: Tensor
    examples: Tensor
