"""The graphs of `graphs.py` for large-scale simulation: neighbors as arrays, for up to ten million members.

Graphs without random edges are made by index arithmetic; a test compares each of them with networkx, edge by edge. If
edges are random, a graph of up to SAME_MEMBERS_MAX members is exactly the overlay of a federation of that size and
seed, and `samplers.py` draws larger graphs. A graph with more than EDGES_MAX directed edges raises an error that names
the largest size that fits.

A phase is a scipy.sparse CSR array (P, P) with 1.0 at [src, dst] for each directed edge; an undirected edge is two. The
complete graph has no phase above COMPLETE_MEMBERS_MAX: sums over all members need no edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from fedpeer.topology.graphs import DRAWN_ANEW, GRAPHS, TopologyError
from fedpeer.topology.mixing import adjacency
from fedpeer.topology.overlay import overlay
from fedpeer.topology.samplers import (
    Edges,
    inserted,
    random_edges,
    regular_edges,
    small_world_edges,
)

#: Members up to which networkx draws the same overlay as in a federation, in half a second at most.
SAME_MEMBERS_MAX = 500
_MEMBERS_MAX = 10_000_000
#: Directed edges of all phases: 12 bytes each, and with lost messages some 60 more for transfers under way.
EDGES_MAX = 32_000_000
COMPLETE_MEMBERS_MAX = math.isqrt(EDGES_MAX)
#: Graphs with random edges.
DRAWN = ("k-regular", "erdos-renyi", "small-world")
#: Least number of members for each unit of degree: in a denser graph, edges that are drawn again would be invalid, too.
_SPARSE_PART = 8
#: Most draws of a random graph of degree 3 and more, which is drawn again if it is not connected; in practice fewer do.
_DRAWN_MAX = 100


Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class WideGraph:
    """A graph as arrays.

    name      key of `GRAPHS`
    members   number of members
    phases    (P, P) CSR each; exchange e uses phases[e % len(phases)]; empty: a complete graph without stored edges
    complete  whether all members are neighbors
    shape     shape of the torus on which the members are placed in order, if the graph looks the same from every
              member, so that its eigenvalues are a Fourier transform; else None
    degree    degree of a random regular graph of more than SAME_MEMBERS_MAX members; else None
    remarks   notes for the user, such as edges that were added
    """

    name: str
    members: int
    phases: tuple[csr_array, ...]
    complete: bool = False
    shape: tuple[int, ...] | None = None
    degree: int | None = None
    remarks: tuple[str, ...] = ()

    @property
    def channels(self) -> int:
        """Number of directed edges of all phases."""
        return sum(phase.nnz for phase in self.phases) if self.phases else self.members * (self.members - 1)

    @cached_property
    def union(self) -> tuple[Indices, Indices]:
        """Both ends of all edges of all phases without directions, (E,) each, the smaller end first.

        The order of edges is that of `mixing.random_matching`.
        """
        both = sum(self.phases[1:], self.phases[0])
        both = (both + both.T).tocsr()
        both.sort_indices()
        edges = both.tocoo()
        forward = edges.row < edges.col
        return edges.row[forward].astype(np.int64), edges.col[forward].astype(np.int64)


def wide(name: str, members: int, settings: Mapping[str, Any], draws: np.random.Generator) -> WideGraph:
    """Build a graph of `GRAPHS` for this number of members; `settings` are those of its function.

    Raises:
        TopologyError: a setting is out of range, or there are more members or edges than fit; the message names the
            largest size.
    """
    if not 1 <= members <= _MEMBERS_MAX:
        raise TopologyError(f"{members:,} peers: write a number from 1 to {_MEMBERS_MAX:,}")
    if name == "edges":
        raise TopologyError(
            "your own edges are for a federation only; choose a graph such as k-regular:4 for a large-scale simulation"
        )
    if name in DRAWN_ANEW:
        raise TopologyError(
            f"{name} is drawn anew for each exchange, and is for a federation only; choose a graph such as k-regular:4 "
            "for a large-scale simulation"
        )
    GRAPHS[name](("a", "b", "c"), np.random.default_rng(0), **settings)  # three peers suffice to check the ranges
    degree = settings.get("degree", 0)
    if degree >= members > 1:
        raise TopologyError(f"{name}: degree = {degree}: there are only {members} peers; use {members - 1} or less")
    if name in _EDGES_OF:
        _check_size(name, members, settings)
    if members == 1:
        return WideGraph(name, 1, (csr_array((1, 1)),), complete=name == "complete")
    if name in DRAWN and members <= SAME_MEMBERS_MAX:
        ids = [f"peer{i + 1}" for i in range(members)]
        made = overlay(lambda m, d: GRAPHS[name](m, d, **settings), ids, draws)
        return WideGraph(name, members, tuple(map(adjacency, made.phases)), remarks=made.remarks)
    if degree > members // _SPARSE_PART:
        raise TopologyError(
            f"{name}: degree = {degree} is too large for a random graph of {members:,} peers; use "
            f"{members // _SPARSE_PART} or less, or at most {SAME_MEMBERS_MAX:,} peers"
        )
    if name == "complete":
        phases = (_complete(members),) if members <= COMPLETE_MEMBERS_MAX else ()
        return WideGraph(name, members, phases, complete=True, shape=(members,))
    if name in _HOPS:
        return WideGraph(name, members, tuple(_hops(members, each) for each in _HOPS[name](members)), shape=(members,))
    edges, known = _EDGES[name](members, draws, **settings)
    graph, remark = _joined(_both_ways(members, edges))
    return WideGraph(name, members, (graph,), **known, remarks=remark)


def matched(graph: WideGraph, draws: np.random.Generator) -> Indices:
    """Draw a maximal matching; return the indices in `graph.union` of its edges.

    `mixing.random_matching` takes the same edges from the same draws, one after the other. Here each pass takes at once
    all edges that come first at both of their ends, and removes the edges that touch them.
    """
    a_E, b_E = graph.union
    edge_K = draws.permutation(len(a_E))
    a_K, b_K = a_E[edge_K], b_E[edge_K]
    busy_P = np.zeros(graph.members, dtype=bool)
    first_P = np.empty(graph.members, dtype=np.int64)
    taken = []
    while len(edge_K):
        place_K = np.arange(len(edge_K))
        ends = np.stack([a_K, b_K], axis=1).ravel()[::-1]
        first_P[ends] = np.repeat(place_K, 2)[::-1]  # the last write, which is the first place, wins
        now = (first_P[a_K] == place_K) & (first_P[b_K] == place_K)
        taken.append(edge_K[now])
        busy_P[a_K[now]] = busy_P[b_K[now]] = True
        free = ~(busy_P[a_K] | busy_P[b_K])
        edge_K, a_K, b_K = edge_K[free], a_K[free], b_K[free]
    return np.concatenate(taken) if taken else np.empty(0, dtype=np.int64)


# -------------------------------------------------------------------------------------------------- by name, undirected

_Made = tuple[Edges, dict[str, Any]]


def _ring(members: int, draws: np.random.Generator) -> _Made:
    place_P = np.arange(members, dtype=np.int64)
    return (place_P, (place_P + 1) % members), {"shape": (members,)}


def _torus(members: int, draws: np.random.Generator, *, rows: int | None = None) -> _Made:
    limit = math.isqrt(members) if rows is None else rows
    height = max(r for r in range(1, min(limit, members) + 1) if members % r == 0)
    width = members // height
    place_HW = np.arange(members, dtype=np.int64).reshape(height, width)
    steps = [(place_HW, np.roll(place_HW, -1, axis)) for axis in (0, 1) if place_HW.shape[axis] > 1]
    a_E, b_E = (np.concatenate([step[end].ravel() for step in steps]) for end in (0, 1))
    return (a_E, b_E), {"shape": (height, width)}


def _k_regular(members: int, draws: np.random.Generator, *, degree: int = 4) -> _Made:
    if degree == 2:  # connected, all with two neighbors: one ring
        order_P = draws.permutation(members)
        return (order_P, np.roll(order_P, 1)), {"degree": 2}
    odd = members * degree % 2
    for _ in range(_DRAWN_MAX):
        edges = regular_edges(members - odd, degree, draws)
        if odd:
            edges = inserted(edges, members - 1, degree // 2, draws)
        if degree == 1 or connected_components(_both_ways(members, edges), directed=False)[0] == 1:
            break
    return edges, {"degree": degree}


def _erdos_renyi(members: int, draws: np.random.Generator, *, probability: float = 0.3) -> _Made:
    return random_edges(members, probability, draws), {}


def _small_world(members: int, draws: np.random.Generator, *, degree: int = 4, rewire: float = 0.2) -> _Made:
    return small_world_edges(members, degree, rewire, draws), {}


def _star(members: int, draws: np.random.Generator) -> _Made:
    others = np.arange(1, members, dtype=np.int64)
    return (np.zeros_like(others), others), {}


def _hierarchy(members: int, draws: np.random.Generator, *, branching: int = 3) -> _Made:
    below = np.arange(1, members, dtype=np.int64)
    return ((below - 1) // branching, below), {}


_EDGES: dict[str, Callable[..., _Made]] = {
    "ring": _ring,
    "torus": _torus,
    "k-regular": _k_regular,
    "erdos-renyi": _erdos_renyi,
    "small-world": _small_world,
    "star": _star,
    "hierarchy": _hierarchy,
}


def _doubling(members: int) -> list[int]:
    return [1 << i for i in range((members - 1).bit_length())]


#: The distances, in places, to the recipients in each phase.
_HOPS: dict[str, Callable[[int], list[list[int]]]] = {
    "exponential": lambda members: [_doubling(members)],
    "one-peer-exponential": lambda members: [[hop] for hop in _doubling(members)],
}

#: Expected number of directed edges, from members and settings, for the graphs that may have too many edges.
_EDGES_OF: dict[str, Callable[..., float]] = {
    "k-regular": lambda members, degree=4: members * degree,
    "small-world": lambda members, degree=4, rewire=0.2: members * degree,
    "erdos-renyi": lambda members, probability=0.3: members * (members - 1) * probability,
    "exponential": lambda members: members * (members - 1).bit_length(),
    "one-peer-exponential": lambda members: members * (members - 1).bit_length(),
}


def _check_size(name: str, members: int, settings: Mapping[str, Any]) -> None:
    """Raise a `TopologyError` that names the largest number of members if a graph has too many edges."""
    edges = _EDGES_OF[name]
    if edges(members, **settings) <= EDGES_MAX:
        return
    low, high = 1, members
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if edges(middle, **settings) <= EDGES_MAX else (low, middle)
    smaller = {"erdos-renyi": ", or a smaller probability", "k-regular": ", or a smaller degree"}.get(name, "")
    raise TopologyError(
        f"{name} of {members:,} peers has about {edges(members, **settings):.2g} directed edges, and at most "
        f"{EDGES_MAX:,} fit; use {low:,} peers or fewer{smaller}"
    )


# -------------------------------------------------------------------------------------------------------------- arrays


def _both_ways(members: int, edges: Edges) -> csr_array:
    """Return the adjacency matrix of undirected edges, (P, P); an edge listed twice (a ring of two) counts once."""
    a_E, b_E = edges
    ends = (np.concatenate([a_E, b_E]).astype(np.int32), np.concatenate([b_E, a_E]).astype(np.int32))
    graph = coo_array((np.ones(len(ends[0])), ends), shape=(members, members)).tocsr()
    graph.data[:] = 1.0
    graph.sort_indices()
    return graph


def _hops(members: int, hops: list[int]) -> csr_array:
    place_P = np.arange(members, dtype=np.int32)
    dst_PH = np.sort(np.stack([(place_P + hop) % members for hop in hops], axis=1).astype(np.int32), axis=1)
    first_P = np.arange(members + 1, dtype=np.int32) * np.int32(len(hops))
    return csr_array((np.ones(dst_PH.size), dst_PH.ravel(), first_P), shape=(members, members))


def _complete(members: int) -> csr_array:
    place_P = np.arange(members, dtype=np.int32)
    others = np.tile(np.arange(members - 1, dtype=np.int32), members)
    others += others >= np.repeat(place_P, members - 1)
    first_P = np.arange(members + 1, dtype=np.int32) * np.int32(members - 1)
    return csr_array((np.ones(len(others)), others, first_P), shape=(members, members))


def _joined(graph: csr_array) -> tuple[csr_array, tuple[str, ...]]:
    """Connect the graph as `overlay` does: each part by an edge from its first member to the first of the next part."""
    count, label_P = connected_components(graph, directed=False)
    if count == 1:
        return graph, ()
    firsts = np.sort(np.unique(label_P, return_index=True)[1])
    added = np.array(list(pairwise(firsts.tolist())), dtype=np.int64)
    more = _both_ways(graph.shape[0], (added[:, 0], added[:, 1]))
    return (graph + more).tocsr(), (f"the graph was in {count:,} parts; added {count - 1:,} edges",)
