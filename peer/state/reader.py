"""Questions of a node about the state (k,) that the last training left, and a server's; quick to answer.

`rounds.py` and `client.py` ask when an averaging begins, or the peer is to be evaluated; `node/trainer.py` answers.
"""

from __future__ import annotations

from torch import Tensor


class StateReader:
    """Reader of a training state that is only an optimizer's state."""

    def weight(self, state_k: Tensor, place_D: Tensor) -> float | None:
        """Return the weight, > 0, with which an averaging of these places (D,) starts.

        None: it starts with the weight held, or the number of examples, as the federation says.
        """
        return None

    def models(self, x_n: Tensor, state_k: Tensor, fresh: bool) -> tuple[Tensor, Tensor | None]:
        """Return the model (n,) that the peer predicts with, and the estimate (n,) of the average if it is another one.

        `x_n` (N,) is what the peer averages, V vectors one after the other; `fresh`: there is no state yet.
        """
        return x_n, None

    def server_model(self, server: bytes) -> Tensor | None:
        """Return the model (n,) of a server's state; None: it has none."""
        return None


#: Reader for a peer that keeps at most an optimizer's state.
PLAIN = StateReader()
