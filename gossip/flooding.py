"""Flooding along an overlay: some members have one item each, and all pass on new items until every member has all.

In the first exchange a member sends its item to all its neighbors; in each later one it sends them the items that were
new to it in the exchange before, but not to the neighbors from which they came. So each item takes the shortest paths
and crosses each edge at most once in each direction. After as many exchanges as the longest of these paths has edges,
all members hold all items, though nobody collects them. Until then a member waits: it cannot know the items that it
lacks, but the overlay alone shows which members send one and how far away they are.

Messages are counted, not carried: the simulations know what each member holds in the end.
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
    """The cost of flooding until all members hold all items.

    exchanges    number of exchanges until then
    messages_P   messages that each member sends; all items to one neighbor in one exchange are one message
    items_P      items that each member sends, counted once for each neighbor that it sends them to
    """

    exchanges: int
    messages_P: _Ints
    items_P: _Ints

    def bytes_of(self, item_bytes: int) -> _Ints:
        """Return the bytes that each member sends, (P,)."""
        return self.items_P * item_bytes + self.messages_P * MESSAGE_HEAD_BYTES


def flood_along(overlay: Overlay, sources: Collection[int] | None = None) -> Flooding:
    """Return the cost of flooding one item of each source along a connected overlay, as all overlays are.

    The edges of all phases are used in every exchange.

    Args:
        sources: indices of the members that have an item; None: all have.
    """
    graph = overlay.union
    members = len(overlay.members)
    chosen = sorted(range(members) if sources is None else set(sources))
    edges_PP = nx.to_scipy_sparse_array(graph, nodelist=range(members), weight=None, format="csr")
    away_SP = shortest_path(edges_PP, unweighted=True, indices=chosen).astype(np.int64).reshape(len(chosen), members)
    messages_P, items_P = np.zeros(members, np.int64), np.zeros(members, np.int64)
    for member, neighbor in _directed(graph):
        away_S = away_SP[:, member]
        if graph.has_edge(neighbor, member):  # a neighbor nearer to the source sent us the item an exchange earlier
            away_S = away_S[away_SP[:, neighbor] >= away_S]
        items_P[member] += len(away_S)
        messages_P[member] += len(np.unique(away_S))
    return Flooding(int(away_SP.max(initial=0)), messages_P, items_P)


def _directed(graph: nx.Graph) -> Iterator[tuple[int, int]]:
    """Yield each edge in the directions in which items may travel."""
    edges: Iterable[tuple[int, int]] = graph.edges
    for a, b in edges:
        yield a, b
        if not graph.is_directed():
            yield b, a
