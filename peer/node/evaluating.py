"""Which model of a peer is evaluated."""

from __future__ import annotations

from torch import Tensor

from fedpeer.peer.state.node_state import NodeState


def models_of(life: NodeState) -> tuple[Tensor, Tensor | None]:
    """The model (n,) that this peer predicts with, and the estimate (n,) where that is another one."""
    ledger, keeps = life.ledger, life.setup.keeps
    if keeps is None:
        return ledger.x_n, None
    own_n = None if ledger.fresh else keeps.own_model(ledger.s_k)
    return ledger.x_n if own_n is None else own_n, ledger.x_n
