"""Descriptions of graphs: the known numbers of known graphs, and well-formed drawings."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

import networkx as nx
import pytest

from fedpeer.topology.describe import describe_topology, layout_of_graph, topology_svg
from tests.topology.test_graphs import NAMES, made

SVG = "{http://www.w3.org/2000/svg}"


def test_a_ring_in_numbers() -> None:
    found = describe_topology(made("ring", 10), tolerances=(1e-2, 1e-4))
    assert (found.degree_min, found.degree_max, found.diameter, found.directed) == (2, 2, 5, False)
    assert found.edges[0] == (0, 1)
    assert len(found.edges) == 10
    assert found.exchanges[1e-2] is not None
    assert found.exchanges[1e-4] is not None
    assert found.exchanges[1e-2] < found.exchanges[1e-4]


@pytest.mark.parametrize("name", NAMES)
def test_diameter_and_degrees_as_networkx_has_them(name: str) -> None:
    drawn = made(name, 14)
    found = describe_topology(drawn)
    assert found.diameter == nx.diameter(drawn.union)
    out = [len(list(phase.neighbors(node))) for phase in drawn.phases for node in phase]
    assert (found.degree_min, found.degree_max) == (min(out), max(out))
    assert found.to_json()["phases"] == len(drawn.phases)


def test_the_gap_is_per_exchange() -> None:
    """With one peer a phase on 3 members, both phases are (I + a shift by one place) / 2, of second modulus 1/2."""
    assert describe_topology(made("one-peer-exponential", 3)).spectral_gap == pytest.approx(0.5, abs=1e-6)
    assert describe_topology(made("one-peer-exponential", 8)).spectral_gap == 1.0


@pytest.mark.slow
def test_no_hope_is_none_and_one_peer_is_no_trouble() -> None:
    assert describe_topology(made("ring", 300), tolerances=(1e-4,)).exchanges == {1e-4: None}
    alone = describe_topology(made("ring", 1), tolerances=(1e-4,))
    assert (alone.diameter, alone.spectral_gap, alone.exchanges) == (0, 1.0, {1e-4: 0})


#: Graphs that are drawn with many peers: on a circle, with the shortest edges, and with the most edges at one peer.
MANY = ("ring", "k-regular", "star")


@pytest.mark.parametrize(
    ("count", "name"),
    [
        *((count, name) for count in (1, 2, 12) for name in NAMES),
        *(pytest.param(120, name, marks=pytest.mark.slow if name in MANY else pytest.mark.soak) for name in NAMES),
    ],
)
def test_a_drawing_shows_every_peer_and_every_edge(count: int, name: str) -> None:
    graph = made(name, count).union
    labels = [f"<peer & {i}>" for i in range(count)]
    root = ElementTree.fromstring(topology_svg(graph, labels))
    assert [t.text for t in root.iter(f"{SVG}title")] == labels
    edges = next(g for g in root.iter(f"{SVG}g") if g.get("class") == "edge")
    assert len(list(edges)) == graph.number_of_edges()
    places = layout_of_graph(graph)
    assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in places)
    assert len({(round(x, 4), round(y, 4)) for x, y in places}) == count, "no two peers at one place"
    assert layout_of_graph(graph) == places


@pytest.mark.slow
def test_looking_at_graphs_needs_no_torch() -> None:
    code = "import sys, fedpeer.topology.describe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
