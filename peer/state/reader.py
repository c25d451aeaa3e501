"""What a node asks of the state that training has left; quick to answer, unlike training.

The node has the state as a tensor (k,), as the last training left it. Who asks for what it means is in `rounds.py`: at
the beginning of an averaging, and when the peer is to be evaluated. `node/trainer.py` answers.
"""

from __future__ import annotations

from torch import Tensor


class StateReader:
    """The answers where a state says nothing: that of an optimiser."""

    def weight(self, state_k: Tensor, place_D: Tensor) -> float | None:
        """Return the weight, > 0, with which an averaging of these places starts; None: with what is held, or by
        examples, as the federation says."""
        return None

    def models(self, x_n: Tensor, state_k: Tensor, fresh: bool) -> tuple[Tensor, Tensor | None]:
        """Return the model (n,) that the peer predicts with, and the estimate (n,) where that is another one.

        `x_n` is what it averages; `fresh`: there is no state yet.
        """
        return x_n, None


#: Of a peer that keeps an optimiser's state at the most.
PLAIN = StateReader()
