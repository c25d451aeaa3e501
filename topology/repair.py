"""An overlay when some of its members are gone: the rest of it, connected again. Nothing here knows who is gone.

All peers with the same view of who lives get the same overlay, without a word: edges that death did not touch stay,
and where it cut the graph, the parts are joined in a ring. When the dead return, the overlay is the old one again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import networkx as nx

from fedpeer.topology.graphs import listed
from fedpeer.topology.overlay import Overlay


def repaired(overlay: Overlay, alive: Collection[str]) -> Overlay:
    """The overlay of the living among its members, in their order; the very same object if all of them live.

    Each phase keeps the edges whose two ends live. If the union of the phases no longer lets everyone reach everyone,
    its parts (strongly connected ones where edges have a direction) are put in the order of their first members, and
    each first member gets an edge to that of the next part, the last one's to the first: at most two more edges a
    peer, in the first phase. Ids in `alive` that are no members do not count; at least one member has to live.
    """
    places = [place for place, member in enumerate(overlay.members) if member in alive]
    assert places, "a group without a living member has no overlay"
    if len(places) == len(overlay.members):
        return overlay
    members = tuple(overlay.members[place] for place in places)
    phases = [_restricted(phase, places) for phase in overlay.phases]
    added = _missing(nx.compose_all(phases))
    phases[0].add_edges_from(added)
    remarks = overlay.remarks
    if added:
        named = listed([f"{members[a]}-{members[b]}" for a, b in added])
        remarks = (*remarks, f"without {listed(sorted(set(overlay.members) - set(members)))}: added {named}")
    return Overlay(members, tuple(nx.freeze(phase) for phase in phases), remarks)


def _restricted(phase: nx.Graph, places: list[int]) -> nx.Graph:
    """The edges between these places, as a graph on 0..len(places) - 1."""
    new = {place: i for i, place in enumerate(places)}
    graph = nx.empty_graph(len(places), create_using=type(phase))
    graph.add_edges_from((new[a], new[b]) for a, b in phase.edges if a in new and b in new)
    return graph


def _missing(union: nx.Graph) -> list[tuple[int, int]]:
    """The edges of a ring through the first members of the parts; none where there is one part."""
    parts: Iterable[set[int]] = (
        nx.strongly_connected_components(union) if union.is_directed() else nx.connected_components(union)
    )
    firsts = sorted(min(part) for part in parts)
    if len(firsts) == 1:
        return []
    if len(firsts) == 2 and not union.is_directed():
        return [(firsts[0], firsts[1])]
    return list(zip(firsts, firsts[1:] + firsts[:1], strict=True))
