"""An overlay in numbers and as a picture, for `fedpeer topology` and the report.

The picture is SVG text, made without a plotting library: lines and labels are in `currentColor`, so that it is readable
on light and dark pages. Nothing here writes a file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import networkx as nx
import numpy as np
from scipy.sparse.csgraph import shortest_path

from fedpeer.topology.graphs import TopologyError
from fedpeer.topology.mixing import Protocol, adjacency
from fedpeer.topology.overlay import Overlay
from fedpeer.topology.prediction import contraction, predicted_rounds

#: Most nodes that Kamada-Kawai places, in cubic time (0.3 s for this many); a spring layout places more nodes.
_KAMADA_KAWAI_NODES_MAX = 100
#: More labels than this would cover one another.
_LABELS_MAX = 64


@dataclass(frozen=True, kw_only=True)
class TopologyDescription:
    """One overlay in numbers.

    members        ids in peer order
    edges          edges of the union of the phases, as indices of members
    directed       whether the edges have directions
    phases         number of phases
    degree_min     smallest out-degree over all phases and members
    degree_max     largest out-degree over all phases and members
    diameter       steps between the two members furthest apart, over the union of the phases
    spectral_gap   fraction of the disagreement that one exchange of push-sum removes in the long run
    exchanges      for each tolerance, the number of exchanges that reach it; None: more than are allowed
    remarks        notes for the user, such as edges that were added
    """

    members: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    directed: bool
    phases: int
    degree_min: int
    degree_max: int
    diameter: int
    spectral_gap: float
    exchanges: dict[float, int | None]
    remarks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def describe_topology(
    overlay: Overlay, protocol: Protocol = "push-sum", tolerances: Sequence[float] = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6)
) -> TopologyDescription:
    """Return the numbers of an overlay, and the exchanges that `protocol` needs on it for some tolerances."""
    union, phases = overlay.union, overlay.phases
    if overlay.redraw is not None:
        phases = (overlay.redraw.draw(len(overlay.members), np.random.default_rng(0)),)
    degrees = [int(d) for phase in phases for d in adjacency(phase).sum(axis=1)]
    return TopologyDescription(
        members=overlay.members,
        edges=tuple((int(a), int(b)) for a, b in sorted(union.edges)),
        directed=union.is_directed(),
        phases=len(overlay.phases),
        degree_min=min(degrees),
        degree_max=max(degrees),
        diameter=int(shortest_path(adjacency(union), unweighted=True).max()),
        spectral_gap=1 - contraction(overlay) ** (1 / len(overlay.phases)),
        exchanges={tolerance: _predicted(overlay, protocol, tolerance) for tolerance in tolerances},
        remarks=overlay.remarks,
    )


def layout_of_graph(graph: nx.Graph) -> list[tuple[float, float]]:
    """Return a place for each node 0..P-1, x and y from 0 to 1; the same graph gets the same places."""
    simple = nx.Graph(graph)
    if len(simple) == 1:
        return [(0.5, 0.5)]
    if nx.density(simple) > 0.9:
        places = nx.circular_layout(simple)
    elif len(simple) <= _KAMADA_KAWAI_NODES_MAX:
        places = nx.kamada_kawai_layout(simple, pos=nx.circular_layout(simple))
    else:
        places = nx.spring_layout(simple, seed=0)
    points = [(float(places[node][0]), float(places[node][1])) for node in range(len(simple))]
    low_x, low_y = min(x for x, _ in points), min(y for _, y in points)
    span = max(max(x for x, _ in points) - low_x, max(y for _, y in points) - low_y)
    return [((x - low_x) / span, (y - low_y) / span) for x, y in points]


def topology_svg(graph: nx.Graph, labels: Sequence[str]) -> str:
    """Draw a graph as self-contained SVG text; labels[i] names node i on hovering, and beside it if there is room.

    The nodes have the class `node`, the edges `edge`, so that a page can colour them.
    """
    size, margin = 640, 64
    radius = 9 if len(labels) <= _LABELS_MAX else 3
    points = [(margin + x * (size - 2 * margin), margin + y * (size - 2 * margin)) for x, y in layout_of_graph(graph)]
    marker = ' marker-end="url(#head)"' if graph.is_directed() else ""
    lines = [_line(points[a], points[b], radius, marker) for a, b in sorted(graph.edges)]
    nodes = [
        _node(x, y, radius, label, len(labels) <= _LABELS_MAX) for (x, y), label in zip(points, labels, strict=True)
    ]
    arrow = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>'
    )
    title = f"graph of {len(labels)} peers and {graph.number_of_edges()} edges"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" role="img" aria-label="{title}">',
            *([arrow] if marker else []),
            '<g class="edge" stroke="currentColor" stroke-opacity="0.4" fill="none">',
            *lines,
            '</g>\n<g class="node" fill="currentColor" font-family="sans-serif" font-size="12" text-anchor="middle">',
            *nodes,
            "</g>\n</svg>",
        ]
    )


def _predicted(overlay: Overlay, protocol: Protocol, tolerance: float) -> int | None:
    try:
        return predicted_rounds(overlay, protocol, tolerance)
    except TopologyError:
        return None


def _line(start: tuple[float, float], end: tuple[float, float], radius: float, marker: str) -> str:
    """Draw an edge from rim to rim, so that an arrow's head is not under the node."""
    (ax, ay), (bx, by) = start, end
    length = math.dist(start, end) or 1.0
    dx, dy = (bx - ax) / length * radius, (by - ay) / length * radius
    return f'<path d="M{ax + dx:.1f} {ay + dy:.1f} {bx - dx:.1f} {by - dy:.1f}"{marker}/>'


def _node(x: float, y: float, radius: float, label: str, shown: bool) -> str:
    text = f'<text x="{x:.1f}" y="{y - radius - 4:.1f}">{escape(label)}</text>' if shown else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"><title>{escape(label)}</title></circle>{text}'
