"""Limits of mixing matrices, computed densely for small graphs, and Metropolis-Hastings weights."""

from __future__ import annotations

import networkx as nx
import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.sparse import csr_array

from fedpeer.topology.mixing import Dense, adjacency, dense


def limit_weights(matrix: csr_array | Dense) -> Dense:
    """Return the limit (P,) of push-sum weights that begin at 1: A w = w with sum P. Dense; for small graphs."""
    matrix_PP = dense(matrix)
    count = len(matrix_PP)
    equations = np.vstack([matrix_PP - np.eye(count), np.ones(count)])
    return np.asarray(np.linalg.lstsq(equations, np.append(np.zeros(count), count))[0])


def second_modulus(matrix: csr_array | Dense) -> float:
    """Return the second largest modulus of a mixing matrix's eigenvalues; dense, for up to a few hundred members."""
    moduli = np.sort(np.abs(scipy.linalg.eigvals(dense(matrix))))
    return float(moduli[-2]) if len(moduli) > 1 else 0.0


def spectral_gap(matrix: csr_array | Dense) -> float:
    """Return 1 - the second largest modulus of the eigenvalues: the share of the disagreement that one exchange
    removes."""
    return 1 - second_modulus(matrix)


def metropolis_hastings(graph: nx.Graph) -> csr_array:
    """Return symmetric, doubly stochastic weights of an undirected graph, (P, P).

    W[i, j] = 1 / (1 + max(d_i, d_j)) on edges, W[i, i] = 1 - the rest of the row; degrees exclude the node itself.
    Source: Xiao, Boyd, Fast linear iterations for distributed averaging, 2004, section 4.2.
    """
    assert not graph.is_directed(), "Metropolis-Hastings weights are for undirected graphs"
    edges = adjacency(graph).tocoo()
    degree_P = edges.sum(axis=1)
    weight = 1 / (1 + np.maximum(degree_P[edges.row], degree_P[edges.col]))
    off = csr_array((weight, (edges.row, edges.col)), shape=edges.shape)
    return (off + scipy.sparse.diags_array(1 - off.sum(axis=1))).tocsr()
