"""Mixing matrices: the effect of exchanges on values and weights.

Every protocol is the same operation on different graphs: a peer splits its mass into (out-degree + 1) equal shares,
keeps one and sends one along each edge. Push-sum uses the overlay's phases, push-pull a random matching of the overlay
(each peer of a pair sends the other a half, so both get the pair's mean), and the exact mean the complete graph. So an
exchange is fully described by one column-stochastic matrix, A[dst, src] = 1 / (outdeg(src) + 1).

Matrices are scipy.sparse CSR, float64, (P, P) in the order of the members. Random numbers come from the streams that
are passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import networkx as nx
import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedpeer.topology.overlay import Overlay

Protocol = Literal["push-sum", "push-pull", "exact"]
Dense = NDArray[np.float64]
#: The random stream of one exchange, by its number over all averagings, for push-pull's matchings and for graphs that
#: are drawn again.
ExchangeDraws = Callable[[int], np.random.Generator]

#: Members up to which dense matrices are multiplied: 2 MiB each, half a second for a prediction. For more members,
#: predictions use the spectral gap.
DENSE_MEMBERS_MAX = 512


def push_sum_matrix(graph: nx.Graph) -> csr_array:
    """Return push-sum's column-stochastic matrix of one exchange, (P, P).

    A[dst, src] = 1 / (outdeg(src) + 1) on edges src -> dst and on the diagonal; an undirected edge is an edge each way.
    Source: Kempe, Dobra, Gehrke, Gossip-based computation of aggregate information, 2003, section 2, with equal shares.
    """
    return shares_of(adjacency(graph))


def shares_of(edges: csr_array) -> csr_array:
    """Return push-sum's matrix (see `push_sum_matrix`) from an adjacency matrix, (P, P), [src, dst]."""
    share_P = 1 / (edges.sum(axis=1) + 1)
    return ((edges.T + scipy.sparse.eye_array(len(share_P))) @ scipy.sparse.diags_array(share_P)).tocsr()


def adjacency(graph: nx.Graph) -> csr_array:
    """Return the matrix with 1.0 at [src, dst] for each edge src -> dst, (P, P), rows and columns 0..P-1."""
    return nx.to_scipy_sparse_array(graph, nodelist=range(len(graph)), weight=None, dtype=np.float64, format="csr")


def random_matching(graph: nx.Graph, draws: np.random.Generator) -> NDArray[np.int64]:
    """Draw a maximal matching: go through the edges in random order and take each if both ends are free.

    Directions of edges do not count.

    Returns:
        (P,) int64: the partner of each node, or the node itself if it has none.
    """
    edges = sorted({(min(edge), max(edge)) for edge in graph.edges})
    partner = list(range(len(graph)))
    for i in draws.permutation(len(edges)).tolist():
        a, b = edges[i]
        if partner[a] == a and partner[b] == b:
            partner[a], partner[b] = b, a
    return np.array(partner, dtype=np.int64)


def carrier(overlay: Overlay, protocol: Protocol, exchange: int, draws: ExchangeDraws) -> nx.Graph:
    """Return the graph along which shares travel in exchange number `exchange`, counted over all averagings."""
    match protocol:
        case "push-sum" if overlay.redraw is not None:
            return overlay.redraw.draw(len(overlay.members), draws(exchange))
        case "push-sum":
            return overlay.phases[exchange % len(overlay.phases)]
        case "push-pull":
            matching = nx.empty_graph(len(overlay.members))
            partner_P = random_matching(overlay.union, draws(exchange)).tolist()
            matching.add_edges_from((a, b) for a, b in enumerate(partner_P) if a < b)
            return matching
        case "exact":
            return nx.complete_graph(len(overlay.members))


def exchange_matrices(
    overlay: Overlay, protocol: Protocol, exchanges: int, *, first: int, draws: ExchangeDraws
) -> list[csr_array]:
    """Return the matrices of the exchanges first, first + 1, ..., in the order in which they are applied.

    Exchanges with the same phase of the graph share one object.
    """
    running = range(first, first + exchanges)
    match protocol:
        case "push-sum" if overlay.redraw is not None:
            return [push_sum_matrix(carrier(overlay, protocol, exchange, draws)) for exchange in running]
        case "push-sum":
            phases = [push_sum_matrix(phase) for phase in overlay.phases]
            return [phases[exchange % len(phases)] for exchange in running]
        case "push-pull":
            return [_meetings(random_matching(overlay.union, draws(exchange))) for exchange in running]
        case "exact":
            count = len(overlay.members)
            return [csr_array(np.full((count, count), 1 / count))] * exchanges


def _meetings(partner_P: NDArray[np.int64]) -> csr_array:
    """Return the matrix of a matching, (P, P): half of a member's own mass and half of its partner's."""
    count = len(partner_P)
    columns = np.stack([np.arange(count), partner_P], axis=1).ravel()
    matrix = csr_array((np.full(2 * count, 0.5), columns, np.arange(0, 2 * count + 1, 2)), shape=(count, count))
    matrix.sum_duplicates()
    return matrix


def effective_matrix(
    overlay: Overlay, protocol: Protocol, exchanges: int, *, first: int, draws: ExchangeDraws
) -> Dense:
    """Return the dense product of `exchange_matrices`, (P, P): the effect of all exchanges on values and weights."""
    product = np.eye(len(overlay.members))
    for matrix in exchange_matrices(overlay, protocol, exchanges, first=first, draws=draws):
        product = matrix @ product
    return product


def eigenvalues(matrix: csr_array | Dense) -> Dense:
    """Return all eigenvalues of a symmetric matrix, descending."""
    return np.asarray(np.linalg.eigvalsh(dense(matrix))[::-1])


def dense(matrix: Any) -> Dense:
    """Convert a sparse or dense matrix to a dense one of float64."""
    return np.asarray(matrix.toarray() if scipy.sparse.issparse(matrix) else matrix, dtype=np.float64)
