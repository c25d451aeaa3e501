"""Push-sum: give away a share of value and weight, add what arrives, divide when the average is needed.

The single steps here serve the synchronous and the asynchronous mode; `averaging.py` and a peer's own schedule decide
who gives to whom and when. A share that is known to be lost returns to its sender. At every moment, the total of all
mass held and all mass under way is conserved.

Source: Kempe, Dobra, Gehrke, Gossip-based computation of aggregate information, 2003.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpeer.gossip.mass import Mass


def share_of(held: Mass, fraction: float, *, copies: int = 1, wire: torch.dtype = torch.float64) -> tuple[Mass, Mass]:
    """Split off `copies` equal shares of `fraction` each; return (mass kept, mass that each receiver gets).

    Exactly what travels is debited: the share is rounded to the wire's type first, and the rounding error stays with
    the sender.
    """
    assert fraction > 0, "a share is a part of what is held"
    assert copies * fraction <= 1, "no one can give more than is held"
    sent = held.scaled(fraction).rounded(wire)
    return held - sent.scaled(copies), sent


def receive(held: Mass, sent: Mass) -> Mass:
    """Add a share that arrived, or a share of the peer's own that is known to be lost."""
    return held + sent


def absorb(held: Mass, start_D: Tensor, trained_D: Tensor) -> Mass:
    """Add a training step from estimate `start_D` to `trained_D`, both (..., D), to the mass.

    The estimate moves by exactly trained - start, and the weight stays the same. The change is therefore multiplied by
    the weight: added as it is, it would move the estimate by change / weight, and a weight may well be 1e-6. Shares
    that arrived during training are kept.
    """
    change_D = trained_D.to(torch.float64) - start_D.to(torch.float64)
    return Mass(held.value_D + held.weight[..., None] * change_D, held.weight)
