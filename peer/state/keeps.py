"""What a node must know of a state that an algorithm of equals keeps of its peer; quick to ask, unlike training.

The node has the state as bytes, (k,) uint8, as the last training left them. Who asks for what they mean is in
`rounds.py`: at the beginning of an averaging, and when the peer is to be evaluated. `keeper.py` answers.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Keeps(Protocol):
    """See the top of this file."""

    def weight(self, state_k: Tensor, place_D: Tensor) -> float | None:
        """With what weight, > 0, an averaging of these places of the parameters starts; None: with what is held, or by
        examples, as the federation says."""
        ...

    def own_model(self, state_k: Tensor) -> Tensor | None:
        """(n,) the model that the peer predicts with; None where that is the estimate."""
        ...
