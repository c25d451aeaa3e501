"""Event-triggered averaging: which peers are active in each exchange of an averaging, and the matrices that follow.

A peer keeps a reference r of its slice: the result of the last averaging in which it was active, at first the slice
that it started with. Its slice v has *moved* if ||v - r|| > drift * ||r||. In an averaging, the peers whose slice has
moved are active and give their shares as usual. An inactive peer gives nothing, keeps its weight, and sends an empty
message, so that nobody waits for it. A peer that receives a share becomes active and gives from the next exchange on.
Peers that are active at the end keep the result as their new r. So if no slice has moved, an averaging is a few empty
messages; if one has moved, all peers are active after as many exchanges as the diameter of the graph. The results that
peers keep may differ if an averaging went on without a member; once that member is back, real peers give as if they had
moved (`peer/node/rounds.py`).

In exchange k the column of an inactive peer is that of the identity. Each matrix stays column-stochastic, so values and
weights are conserved and push-sum's quotient is right, whichever peers are inactive; an averaging in which all have
moved is the usual one. The number of exchanges is that of a usual averaging, so peers that become active late take part
in fewer of them. An exact mean has two exchanges: in the second all give everything, if any slice has moved.

Source: Kamp, Adilova, Sicking, Hüger, Schlicht, Wirtz, Wrobel, Efficient decentralized deep learning by dynamic model
averaging, 2018: the local condition ||v - r||^2 > D, there with one common r and a coordinator that asks all. Here r
is each peer's own, the threshold is relative, and activation spreads from neighbor to neighbor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse import csr_array

if TYPE_CHECKING:
    from torch import Tensor

ActivePeers = NDArray[np.bool_]


def has_moved(value_D: Tensor, reference_D: Tensor, drift: float) -> Tensor:
    """Return whether slices (..., D) are further from their references than `drift` times the reference's norm, (...).

    ||v - r|| > drift * ||r||, as bool.
    """
    distance, length = (value_D - reference_D).norm(dim=-1), reference_D.norm(dim=-1)
    far: Tensor = distance > drift * length
    return far


def active_peers(matrices: Sequence[csr_array], active_P: ActivePeers) -> Iterator[ActivePeers]:
    """Yield which peers are active in each exchange, (P,) bool each, and finally which were active in any of them.

    `active_P`: the peers that have moved, which are active in the first exchange.
    """
    yield active_P
    for matrix in matrices:
        active_P = active_P | ((matrix @ active_P.astype(np.float64)) > 0)
        yield active_P


def _among_active(matrix: csr_array, active_P: ActivePeers) -> csr_array:
    """Return the matrix of an exchange in which inactive peers keep all their mass."""
    active, inactive = (scipy.sparse.diags_array(each.astype(np.float64)) for each in (active_P, ~active_P))
    return csr_array(matrix @ active + inactive)


def triggered_matrix(matrices: Sequence[csr_array], active: Sequence[ActivePeers]) -> NDArray[np.float64]:
    """Return the product of all exchanges, (P, P) column-stochastic, with the peers that `active_peers` yields."""
    product = np.eye(len(active[0]))
    for matrix, active_P in zip(matrices, active[:-1], strict=True):
        product = _among_active(matrix, active_P) @ product
    return product
