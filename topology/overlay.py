"""Overlays: the connected graph on which the members of one averaging group exchange.

An overlay is a sequence of graphs, its phases, through which the exchanges cycle; a graph that does not change is one
phase. A graph that is drawn again for each exchange has one phase, too: all edges that a draw may have. The union of
the phases must be connected: every member has to reach every other within one period. Nothing here knows which model a
group averages, or how.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np

from fedpeer.topology.graphs import GRAPHS, Builder, Redraw, TopologyError, edge_problems, listed


@dataclass(frozen=True, eq=False)
class Overlay:
    """The graphs on which the members of one group exchange.

    members   ids in peer order; node i of every phase is members[i]
    phases    frozen networkx graphs; exchange e, counted over all averagings, uses phases[e % len(phases)]
    remarks   notes for the user, such as edges that were added
    redraw    draws the graph of each exchange instead, among the edges of the only phase; None (default): no graph is
              drawn again
    """

    members: tuple[str, ...]
    phases: tuple[nx.Graph, ...]
    remarks: tuple[str, ...] = ()
    redraw: Redraw | None = None

    @cached_property
    def union(self) -> nx.Graph:
        """All edges of all phases."""
        return self.phases[0] if len(self.phases) == 1 else nx.compose_all(self.phases)


def overlay(build: Builder, members: Sequence[str], draws: np.random.Generator) -> Overlay:
    """Build the graph of one group and connect it.

    Unconnected parts are joined in the order of the members, each by an edge from its first member to the first member
    of the next part; a remark names those edges. `build` is a function of `GRAPHS` with its settings bound. The result
    depends on the arguments alone, so that all peers with equal draws get the same overlay.

    Raises:
        TopologyError: a setting is out of range, or a user's own edges do not connect the members.
    """
    assert members, "a group has at least one member"
    phases = build(members, draws)
    if isinstance(phases, Redraw):
        whole = nx.complete_graph(len(members), nx.DiGraph if phases.directed else nx.Graph)
        remark = "the graph is drawn anew for each exchange; these are all edges that it may have"
        return Overlay(tuple(members), (nx.freeze(whole),), (remark,), phases)
    remarks: tuple[str, ...] = ()
    if len(phases) == 1 and not phases[0].is_directed():
        firsts = sorted(min(part) for part in nx.connected_components(phases[0]))
        added = list(pairwise(firsts))
        phases[0].add_edges_from(added)
        if added:
            named = listed([f"{members[a]}-{members[b]}" for a, b in added])
            remarks = (f"the graph was in {len(firsts)} parts; added {named}",)
    made = Overlay(tuple(members), tuple(nx.freeze(phase) for phase in phases), remarks)
    assert nx.is_strongly_connected(made.union.to_directed()), "a directed graph of the registry connects its peers"
    return made


def kept_apart(overlay: Overlay, apart: Collection[str]) -> Overlay:
    """Return the same graphs with other nodes for the members, so that few edges join two members of `apart`.

    Members of `apart` get nodes without edges between them, as far as there are such nodes, beginning with nodes of few
    edges; all other members keep their order. Nothing changes if `apart` has at most one member here, or if the graph
    is drawn again for each exchange.
    """
    members = overlay.members
    if sum(member in apart for member in members) < 2 or overlay.redraw is not None:
        return overlay
    free: list[int] = []
    by_degree = sorted(overlay.union, key=lambda node: (overlay.union.degree[node], node))
    for node in by_degree:
        if not any(overlay.union.has_edge(node, other) or overlay.union.has_edge(other, node) for other in free):
            free.append(node)
    nodes = iter([*free, *(node for node in by_degree if node not in free)])
    place = {member: next(nodes) for member in members if member in apart}
    rest = iter(sorted(set(overlay.union) - set(place.values())))
    place |= {member: next(rest) for member in members if member not in apart}
    number = {node: members.index(member) for member, node in place.items()}
    return Overlay(members, tuple(_renumbered(phase, number) for phase in overlay.phases), overlay.remarks)


def _renumbered(phase: nx.Graph, number: Mapping[int, int]) -> nx.Graph:
    made = phase.__class__()
    made.add_nodes_from(range(len(phase)))
    made.add_edges_from(sorted((number[a], number[b]) for a, b in phase.edges))
    return nx.freeze(made)


def overlay_mistakes(name: str, settings: Mapping[str, Any], peers: Sequence[str]) -> list[str]:
    """Return the mistakes in a choice of `GRAPHS` for a whole federation, one sentence each.

    Groups smaller than the federation get a smaller degree silently; a degree that not even all peers together allow is
    the user's mistake.
    """
    own = settings.get("edges")
    if isinstance(own, Sequence):
        return edge_problems(own, peers)
    for key in ("degree", "peers"):
        degree = settings.get(key)
        if isinstance(degree, int) and degree >= len(peers) > 1:
            return [f"{name}: {key} = {degree}: there are only {len(peers)} peers; use {len(peers) - 1} or less"]
    try:
        GRAPHS[name](peers[:3], np.random.default_rng(0), **settings)  # three peers suffice to check the ranges
    except TopologyError as error:
        return [str(error)]
    return []
