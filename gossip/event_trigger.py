"""Averaging where a slice has drifted: who gives in each exchange of an averaging, and which matrices that makes.

A peer remembers its slice as the last averaging in which it took part left it, r (at first: as it started). It has
*moved* when its slice v is further from r than a part `drift` of r's length. In an averaging who has moved is awake
and gives its shares as ever. Who has not sleeps: it gives nothing, keeps its weight, and says so, for nobody is to
wait. Who receives a share is woken, and gives from the next exchange on. Who was awake at the end remembers what it
has then. So where nobody has moved an averaging is a few empty messages, and where one has, all are woken within the
diameter of the graph.

In exchange k the column of who sleeps is the identity's. Each matrix stays column-stochastic, so values and weights are
conserved and push-sum's quotient is right whoever sleeps; an averaging in which all have moved is the usual one. The
number of exchanges is that of a usual averaging, so who is woken late takes part in fewer of them. An exact mean has
two exchanges: in the second all give everything, if anybody has moved.

Source: Kamp, Adilova, Sicking, Hüger, Schlicht, Wirtz, Wrobel, Efficient decentralized deep learning by dynamic model
averaging, 2018: the local condition ||v - r||^2 > D, there with one common r and a coordinator that asks all. Here r
is each peer's own, the threshold is relative, and waking goes from neighbour to neighbour.
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

Awake = NDArray[np.bool_]


def has_moved(value_D: Tensor, reference_D: Tensor, drift: float) -> Tensor:
    """(...) bool: whether slices (..., D) are further from what is remembered of them than `drift` times its length."""
    distance, length = (value_D - reference_D).norm(dim=-1), reference_D.norm(dim=-1)
    far: Tensor = distance > drift * length
    return far


def wakings(matrices: Sequence[csr_array], active_P: Awake) -> Iterator[Awake]:
    """Who is awake in each exchange, (P,) bool each, and at last who took part in any; at first who has moved."""
    yield active_P
    for matrix in matrices:
        active_P = active_P | ((matrix @ active_P.astype(np.float64)) > 0)
        yield active_P


def _sleeping(matrix: csr_array, active_P: Awake) -> csr_array:
    """The matrix of an exchange in which only some are awake: the others keep all they have."""
    active, inactive = (scipy.sparse.diags_array(each.astype(np.float64)) for each in (active_P, ~active_P))
    return csr_array(matrix @ active + inactive)


def woken_matrix(matrices: Sequence[csr_array], active: Sequence[Awake]) -> NDArray[np.float64]:
    """(P, P) column-stochastic: the product of all exchanges, with who is awake in each (as `wakings` says it)."""
    product = np.eye(len(active[0]))
    for matrix, active_P in zip(matrices, active[:-1], strict=True):
        product = _sleeping(matrix, active_P) @ product
    return product
