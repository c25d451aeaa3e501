"""Random graphs of a million members in seconds: edges are arrays, drawn in bulk, and invalid ones are drawn again.

networkx draws edge by edge into dictionaries, which takes minutes and gigabytes at this size. The distributions here
are the same: exactly for Erdos-Renyi, and up to terms that vanish with the number of members for the other two graphs.

Every function returns the two ends of each undirected edge, (E,) int64 each, the smaller end first; no edge occurs
twice or joins a member to itself. The graphs need not be connected; `wide.py` connects them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_Ends = NDArray[np.int64]
Edges = tuple[_Ends, _Ends]


def regular_edges(members: int, degree: int, draws: np.random.Generator) -> Edges:
    """Draw a graph in which all members have this degree; members times degree must be even.

    Stubs are paired at random; pairs that are loops or duplicates are dissolved together with as many randomly chosen
    other pairs, and their stubs are paired again. Source: the pairing model, Bollobas 1980; switchings as in McKay,
    Wormald, Uniform generation of random regular graphs of moderate degree, 1990, so uniform up to o(1). The degree
    must be well below the number of members, or new pairs would be invalid again.
    """
    assert members * degree % 2 == 0, "stubs are paired"
    stubs = draws.permutation(np.repeat(np.arange(members, dtype=np.int64), degree))
    a_E, b_E = np.minimum(stubs[0::2], stubs[1::2]), np.maximum(stubs[0::2], stubs[1::2])
    while len(bad := np.flatnonzero(_unfit(a_E, b_E, members))):
        chosen = np.unique(np.concatenate([bad, draws.integers(len(a_E), size=len(bad))]))
        ends = draws.permutation(np.concatenate([a_E[chosen], b_E[chosen]]))
        half = len(chosen)
        a_E[chosen], b_E[chosen] = np.minimum(ends[:half], ends[half:]), np.maximum(ends[:half], ends[half:])
    return a_E, b_E


def inserted(edges: Edges, node: int, pairs: int, draws: np.random.Generator) -> Edges:
    """Insert a member into the middle of `pairs` disjoint edges, so that no other degree changes."""
    a_E, b_E = edges
    order = draws.permutation(len(a_E))
    touched: set[int] = set()
    split: list[int] = []
    for edge in order:
        if len(split) == pairs:
            break
        ends = {int(a_E[edge]), int(b_E[edge])}
        if not ends & touched:
            touched |= ends
            split.append(int(edge))
    rest = np.delete(np.arange(len(a_E)), split)
    near = np.array(sorted(touched), dtype=np.int64)
    return np.concatenate([a_E[rest], near]), np.concatenate([b_E[rest], np.full(len(near), node, dtype=np.int64)])


def random_edges(members: int, probability: float, draws: np.random.Generator) -> Edges:
    """Draw each pair with this probability: a binomial number of distinct pairs, chosen uniformly.

    Source: Gilbert, Random graphs, 1959.
    """
    pairs = members * (members - 1) // 2
    wanted = int(draws.binomial(pairs, probability))
    chosen = np.unique(draws.integers(pairs, size=wanted))
    while len(chosen) < wanted:
        chosen = np.unique(np.concatenate([chosen, draws.integers(pairs, size=wanted - len(chosen))]))
    return pair_of(chosen)


def pair_of(number: _Ends) -> Edges:
    """Return the pair (a, b), a < b, whose number is b (b - 1) / 2 + a; exact up to 2^50."""
    b_E = ((1 + np.sqrt(8.0 * number + 1)) / 2).astype(np.int64)
    b_E -= b_E * (b_E - 1) // 2 > number  # the rounded root is off by one at most
    b_E += (b_E + 1) * b_E // 2 <= number
    return number - b_E * (b_E - 1) // 2, b_E


def small_world_edges(members: int, degree: int, rewire: float, draws: np.random.Generator) -> Edges:
    """Draw a ring with degree // 2 near neighbors on each side, in which a fraction of the edges is rewired.

    A rewired edge keeps its first end; its second end is drawn until the edge is neither a loop nor a duplicate. The
    degree must be well below the number of members. Source: Watts, Strogatz, Collective dynamics of small-world
    networks, 1998.
    """
    place_P = np.arange(members, dtype=np.int64)
    first_E = np.tile(place_P, degree // 2)
    second_E = np.concatenate([(place_P + step) % members for step in range(1, degree // 2 + 1)])
    moved_E = draws.random(len(first_E)) < rewire
    again = moved_E
    while again.any():
        second_E[again] = draws.integers(members, size=int(again.sum()))
        a_E, b_E = np.minimum(first_E, second_E), np.maximum(first_E, second_E)
        again = _unfit(a_E, b_E, members, stays=~moved_E)
    return np.minimum(first_E, second_E), np.maximum(first_E, second_E)


def _unfit(a_E: _Ends, b_E: _Ends, members: int, stays: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """Return which edges are loops, or duplicates of earlier edges or of edges that stay, (E,) bool."""
    key_E = a_E * members + b_E
    order = np.argsort(key_E, kind="stable") if stays is None else np.lexsort((~stays, key_E))
    unfit: NDArray[np.bool_] = a_E == b_E
    unfit[order[1:]] |= key_E[order[1:]] == key_E[order[:-1]]
    return unfit
