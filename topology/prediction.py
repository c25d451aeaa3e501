"""Prediction, from the graph alone, of the exchanges that bring a group's members within a tolerance of their mean.

No peer of a network sees how far the values are apart, so the number is computed from the mixing matrices before the
first exchange, and is the same on every engine and every peer.

Relative disagreement is defined as follows: values x start with weights of 1, and T is the product of the exchanges'
matrices. The estimates are z = T x / T 1, and with E = diag(T 1)^-1 T - 1 1'/P, their distance from the true mean is
E x = E (x - mean). The largest remaining fraction of the distance, ||z - mean|| / ||x - mean|| in Euclidean norm over
the peers, is the spectral norm of E. So a tolerance holds for the worst start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy.linalg
from scipy.sparse import csr_array, eye_array
from scipy.sparse.csgraph import laplacian
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, aslinearoperator, eigsh

from fedpeer.topology.graphs import TopologyError
from fedpeer.topology.mixing import (
    DENSE_MEMBERS_MAX,
    Dense,
    Protocol,
    adjacency,
    push_sum_matrix,
)
from fedpeer.topology.overlay import Overlay

#: The federation file's bound on exchanges in one averaging; a graph that needs more is useless for learning.
_EXCHANGES_MAX = 10_000
#: Float64 sums over a thousand peers agree to about 1e-13, so nothing finer can be reached.
TOLERANCE_MIN = 1e-12


def predicted_rounds(overlay: Overlay, protocol: Protocol, tolerance: float, *, most: int | None = None) -> int:
    """Return the number of exchanges after which the relative disagreement (see above) is at most `tolerance`.

    It is at most `most`, unless that is None.

    push-sum    the smallest number that suffices whichever phase the averaging begins with; up to DENSE_MEMBERS_MAX
                members from the product of the matrices, above that from the spectral gap (an upper estimate); for
                graphs that are drawn again, in root mean square over the draws, as if all weights were equal
    push-pull   an upper bound, in root mean square over the random matchings: an edge is certainly taken if it comes
                first among the edges at its two ends, which has a probability q >= 1 / (d_i + d_j - 1). One exchange
                keeps on average at most 1 - mu / 2 of the squared distance, where mu is the second smallest eigenvalue
                of the Laplacian weighted by q (Boyd, Ghosh, Prabhakar, Shah, Randomized gossip algorithms, 2006,
                theorem 3)
    exact       1

    A group of one needs 0.

    Raises:
        TopologyError: the tolerance is out of range, or takes more than _EXCHANGES_MAX exchanges while `most` is None.
    """
    if not TOLERANCE_MIN <= tolerance < 1:
        raise TopologyError(f"tolerance = {tolerance}: write a number from {TOLERANCE_MIN} to below 1")
    if len(overlay.members) == 1:
        return 0
    match protocol:
        case "exact":
            return 1
        case "push-pull":
            return _within_bound(geometric(_matching_contraction(overlay), tolerance**2), overlay, tolerance, most)
        case "push-sum" if overlay.redraw is not None:
            left = overlay.redraw.left(len(overlay.members))
            return _within_bound(geometric(left, tolerance**2), overlay, tolerance, most)
        case "push-sum":
            return _push_sum(overlay, tolerance, most)


def relative_disagreement(product: Dense) -> float:
    """Return the spectral norm of diag(T 1)^-1 T - 1 1'/P for a product T, (P, P), of mixing matrices."""
    count = len(product)
    error = product / product.sum(axis=1, keepdims=True) - 1 / count
    return math.sqrt(max(0.0, float(np.linalg.eigvalsh(error.T @ error)[-1])))


def _push_sum(overlay: Overlay, tolerance: float, most: int | None) -> int:
    matrices = [push_sum_matrix(phase) for phase in overlay.phases]
    if len(overlay.members) > DENSE_MEMBERS_MAX:
        return _by_gap(matrices, overlay, tolerance, most)
    return max(
        _by_product([*matrices[first:], *matrices[:first]], overlay, tolerance, most) for first in range(len(matrices))
    )


def _by_product(matrices: Sequence[csr_array], overlay: Overlay, tolerance: float, most: int | None) -> int:
    """Double the number of periods until it suffices, bisect to the last insufficient one, then add phases."""
    period = len(matrices)
    product = np.eye(len(overlay.members))
    for matrix in matrices:
        product = matrix @ product
    powers = [product]  # the 1st, 2nd, 4th, 8th, ... power of one period
    while relative_disagreement(powers[-1]) > tolerance:
        insufficient = period << (len(powers) - 1)
        bounded = _within_bound(insufficient, overlay, tolerance, most)
        if bounded == most:
            return bounded
        powers.append(powers[-1] @ powers[-1])
    periods, product = 0, np.eye(len(overlay.members))
    for i in reversed(range(len(powers) - 1)):
        further = powers[i] @ product
        if relative_disagreement(further) > tolerance:
            periods, product = periods + (1 << i), further
    done = periods * period
    for matrix in matrices[:-1]:
        done, product = done + 1, matrix @ product
        if relative_disagreement(product) <= tolerance:
            return _within_bound(done, overlay, tolerance, most)
    return _within_bound((periods + 1) * period, overlay, tolerance, most)


def _by_gap(matrices: Sequence[csr_array], overlay: Overlay, tolerance: float, most: int | None) -> int:
    """Estimate the exchanges from `contraction`, whose powers, in the norm of D^1/2, are off by mean(D) / min(D)."""
    size_P = _size(matrices[0])
    periods = geometric(contraction(overlay), tolerance * float(size_P.min() / size_P.mean()))
    return _within_bound(periods * len(matrices), overlay, tolerance, most)


def contraction(overlay: Overlay) -> float:
    """Return the factor by which one period of push-sum shrinks the disagreement in the long run.

    For a graph that is drawn again it is the factor of one exchange, in root mean square over the draws.
    """
    if overlay.redraw is not None:
        return math.sqrt(overlay.redraw.left(len(overlay.members)))
    return contraction_of([push_sum_matrix(phase) for phase in overlay.phases])


def contraction_of(matrices: Sequence[csr_array]) -> float:
    """Return the factor of `contraction` from the matrices of one period.

    With D = out-degree + 1, the matrix A of an undirected graph is similar to the symmetric matrix D^-1/2 A D^1/2, and
    the matrices of the registry's directed graphs are circulant. So the second largest modulus of their eigenvalues is
    the spectral norm of D^-1/2 A D^1/2 - v v' with v the unit vector along D^1/2, which Lanczos finds reliably even if
    many eigenvalues share that modulus.
    """
    root_P = np.sqrt(_size(matrices[0]))
    v_P = root_P / np.linalg.norm(root_P)

    def squared(x_P: Dense) -> Dense:
        x_P = x_P.ravel()  # scipy passes columns, too
        y_P = x_P * root_P
        for matrix in matrices:
            y_P = matrix @ y_P
        z_P = y_P / root_P**2
        for matrix in reversed(matrices):
            z_P = matrix.T @ z_P
        return np.asarray(z_P * root_P - v_P * (v_P @ x_P))  # a period preserves v, so once is enough

    count = len(root_P)
    operator = LinearOperator((count, count), matvec=squared, dtype=np.float64)
    if count <= DENSE_MEMBERS_MAX:
        largest = float(np.linalg.eigvalsh(operator @ np.eye(count))[-1])
    else:
        start = np.cos(np.arange(count))  # any vector that is not orthogonal to the eigenvectors; ARPACK would draw one
        shifted = operator + aslinearoperator(eye_array(count))  # Lanczos cannot start on a matrix that is zero
        try:
            top = eigsh(shifted, k=1, v0=start, ncv=80, maxiter=100, tol=1e-9, return_eigenvectors=False)
        except ArpackNoConvergence:  # happens only if eigenvalues cluster at 1, which takes too many exchanges anyway
            return 1.0
        largest = float(top[0]) - 1
    return math.sqrt(largest) if largest > 1e-12 else 0.0  # smaller values are rounding: the period averages exactly


def _size(matrix: csr_array) -> Dense:
    """Return each member's out-degree + 1, (P,)."""
    return np.asarray((matrix != 0).sum(axis=0), dtype=np.float64)


def _matching_contraction(overlay: Overlay) -> float:
    """Return an upper bound on the mean fraction of the squared distance that one random matching leaves."""
    graph = overlay.union.to_undirected()
    edges = adjacency(graph).tocoo()
    degree_P = edges.sum(axis=1)
    chance = 1 / (degree_P[edges.row] + degree_P[edges.col] - 1)
    weighted = laplacian(csr_array((chance, (edges.row, edges.col)), shape=edges.shape))
    mu = scipy.linalg.eigh(weighted.toarray(), eigvals_only=True, subset_by_index=(1, 1))
    return max(0.0, 1 - float(mu[0]) / 2)


def geometric(contraction: float, wanted: float) -> float:
    """Return the smallest k >= 1 with contraction^k <= wanted; infinite if contraction >= 1."""
    if contraction <= wanted:
        return 1
    return math.inf if contraction >= 1 else math.ceil(math.log(wanted) / math.log(contraction))


def _within_bound(exchanges: float, overlay: Overlay, tolerance: float, most: int | None) -> int:
    """Return the number, or `most` if that is less. Raises TopologyError: there are too many exchanges to wait for."""
    if most is not None:
        return int(min(exchanges, most))
    if exchanges > _EXCHANGES_MAX:
        raise TopologyError(
            f"{len(overlay.members)} peers on this graph need more than {_EXCHANGES_MAX} exchanges for a tolerance of "
            f"{tolerance:g}; choose a better connected topology (k-regular:4), a larger tolerance, or set exchanges"
        )
    return int(exchanges)
