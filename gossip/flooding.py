"""Spreading: each of some members has something that all are to hold, and passes on whatever is new to it.

Flooding along an overlay in exchanges. In the first a member tells all whom it may what it has; in each later one it
tells them what was new to it in the exchange before, but not to those who told it. So everything takes the shortest
ways, is told along each edge at most once in each direction, and after as many exchanges as the longest of these ways
everybody holds everything, without anybody who collects it. Until then a member waits: it cannot know what it misses,
but who is to send and how far away that one is, all know from the overlay alone.

What is sent is counted, not carried: the simulations know what everybody holds in the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from fedpeer.gossip.averaging import MESSAGE_HEAD_BYTES
from fedpeer.topology.overlay import Overlay

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Flooding:
    """What it takes until all members hold what some of them began with.

    exchanges    until then
    messages_P   that each member sends: one to a neighbour in an exchange, with all that it tells it
    items_P      how many things it tells, each time to one neighbour
    """

    exchanges: int
    messages_P: _Ints
    items_P: _Ints

    def bytes_of(self, item_bytes: int) -> _Ints:
        """(P,) bytes that each member sends."""
        return self.items_P * item_bytes + self.messages_P * MESSAGE_HEAD_BYTES


def flood_along(overlay: Overlay, sources: Collection[int] | None = None) -> Flooding:
    """Of these members' things, one each; None: everybody's. `sources` are numbers of members.

    Every phase's edges are used in every exchange. A connected overlay is asked for; all overlays are.
    """
    graph = overlay.union
    members = len(overlay.members)
    chosen = sorted(range(members) if sources is None else set(sources))
    edges_PP = nx.to_scipy_sparse_array(graph, nodelist=range(members), weight=None, format="csr")
    away_SP = shortest_path(edges_PP, unweighted=True, indices=chosen).astype(np.int64).reshape(len(chosen), members)
    messages_P, items_P = np.zeros(members, np.int64), np.zeros(members, np.int64)
    for member, neighbour in _directed(graph):
        told = away_SP[:, member]
        if graph.has_edge(neighbour, member):  # who is nearer to the source has told us in the exchange before
            told = told[away_SP[:, neighbour] >= told]
        items_P[member] += len(told)
        messages_P[member] += len(np.unique(told))
    return Flooding(int(away_SP.max(initial=0)), messages_P, items_P)


def _directed(graph: nx.Graph) -> Iterator[tuple[int, int]]:
    """Who may tell whom."""
    edges: Iterable[tuple[int, int]] = graph.edges
    for a, b in edges:
        yield a, b
        if not graph.is_directed():
            yield b, a
