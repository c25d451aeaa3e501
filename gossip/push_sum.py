"""Push-sum: give away a share of value and weight, add what arrives, divide when the average is needed.

`averaging.py` and a peer's own schedule decide who gives to whom and when; `transfers.py` gives and takes. A share that
is known to be lost returns to its sender. At every moment, the total of all mass held and all mass under way is
conserved.

Source: Kempe, Dobra, Gehrke, Gossip-based computation of aggregate information, 2003.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpeer.gossip.mass import Mass


def absorb(held: Mass, start_D: Tensor, trained_D: Tensor) -> Mass:
    """Add a training step from estimate `start_D` to `trained_D`, both (..., D), to the mass.

    The estimate moves by exactly trained - start, and the weight stays the same. The change is therefore multiplied by
    the weight: added as it is, it would move the estimate by change / weight, and a weight may well be 1e-6. Shares
    that arrived during training are kept.
    """
    change_D = trained_D.to(torch.float64, copy=True).sub_(start_D)
    return Mass(change_D.mul_(held.weight[..., None]).add_(held.value_D), held.weight)
