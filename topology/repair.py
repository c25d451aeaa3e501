"""Repair of an overlay without its dead members: the subgraph of the living, connected again.

All peers with the same set of living members get the same overlay without exchanging a message: edges between living
members stay, and if the graph is cut, its parts are joined in a ring. When the dead members return, the overlay is the
original one again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import networkx as nx

from fedpeer.topology.graphs import listed
from fedpeer.topology.overlay import Overlay


def repaired(overlay: Overlay, alive: Collection[str]) -> Overlay:
    """Return the overlay of the living members, in their order; the same object if all members live.

    Each phase keeps the edges between living members. If the union of the phases is no longer connected, its parts
    (strongly connected ones if edges have directions) are sorted by their first members and joined in a ring: each
    first member gets an edge to the first member of the next part. A peer gets at most two more edges, in the first
    phase. A graph that is drawn again for each exchange is drawn among the living members. Ids in `alive` that are not
    members are ignored; at least one member must live.
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
    return Overlay(members, tuple(nx.freeze(phase) for phase in phases), remarks, overlay.redraw)


def _restricted(phase: nx.Graph, places: list[int]) -> nx.Graph:
    """Return the subgraph of these places, renumbered 0..len(places) - 1."""
    new = {place: i for i, place in enumerate(places)}
    graph = nx.empty_graph(len(places), create_using=type(phase))
    graph.add_edges_from((new[a], new[b]) for a, b in phase.edges if a in new and b in new)
    return graph


def _missing(union: nx.Graph) -> list[tuple[int, int]]:
    """Return the edges of a ring through the first members of the parts; no edges for a single part."""
    parts: Iterable[set[int]] = (
        nx.strongly_connected_components(union) if union.is_directed() else nx.connected_components(union)
    )
    firsts = sorted(min(part) for part in parts)
    if len(firsts) == 1:
        return []
    if len(firsts) == 2 and not union.is_directed():
        return [(firsts[0], firsts[1])]
    return list(zip(firsts, firsts[1:] + firsts[:1], strict=True))
