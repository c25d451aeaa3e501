"""The graphs that a user can choose, by name: plain functions over networkx that know nothing of gossip.

A builder takes the ids of the members and a generator, and returns the *phases* of the graph: exchange e uses phase
e modulo their number. All graphs except time-varying ones have one phase. The builder of a graph that is drawn again
for each exchange returns a `Redraw`. Nodes are 0..P-1, in the order of `members`; shares travel along the edges of a
`DiGraph`, and both ways in a `Graph`. Every builder accepts one or two members, and fits its settings to a group
smaller than the federation (k-regular: degree min(4, members - 1)).

A builder may return a graph in several parts, which `overlay.py` connects. Only the user's own edges are never
completed, so `edges` raises an error if they do not connect a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

Phases = tuple[nx.Graph, ...]


@dataclass(frozen=True)
class Redraw:
    """A random graph that is drawn again for each exchange.

    draw       (members, generator) -> the graph of one exchange
    left       members -> fraction of the squared disagreement that an exchange of plain averages leaves, in the mean
               over the draws (beta_s of de Vos et al. 2023)
    directed   whether its edges have directions
    """

    draw: Callable[[int, np.random.Generator], nx.Graph]
    left: Callable[[int], float]
    directed: bool


Builder = Callable[[Sequence[str], np.random.Generator], Phases | Redraw]


class TopologyError(ValueError):
    """The user's topology is invalid; the message names the problem and the way out."""


def complete(members: Sequence[str], draws: np.random.Generator) -> Phases:
    """every peer with every other"""
    return (nx.complete_graph(len(members)),)


def ring(members: Sequence[str], draws: np.random.Generator) -> Phases:
    """two neighbors each, in the order of the peers"""
    count = len(members)
    return (nx.cycle_graph(count) if count > 2 else nx.path_graph(count),)


def torus(members: Sequence[str], draws: np.random.Generator, *, rows: int | None = None) -> Phases:
    """a grid closed at its edges; rows: rounded down to a divisor of the peers' number (default: nearly square)"""
    count = len(members)
    limit = math.isqrt(count) if rows is None else _at_least("torus: rows", rows, 1)
    height = max(r for r in range(1, min(limit, count) + 1) if count % r == 0)
    grid = nx.grid_2d_graph(height, count // height, periodic=True)
    return (nx.convert_node_labels_to_integers(grid, ordering="sorted"),)


def k_regular(members: Sequence[str], draws: np.random.Generator, *, degree: int = 4) -> Phases:
    """`degree` random neighbors each; if peers times degree is odd, one peer has one fewer"""
    degree = min(_at_least("k-regular: degree", degree, 1), len(members) - 1)
    graph = _random_regular(degree, len(members), draws)
    if degree >= 2:
        _connect_by_swaps(graph)
    return (graph,)


def erdos_renyi(members: Sequence[str], draws: np.random.Generator, *, probability: float = 0.3) -> Phases:
    """each pair with this probability"""
    _fraction("erdos-renyi: probability", probability)
    return (nx.gnp_random_graph(len(members), probability, seed=_seed(draws)),)


def small_world(members: Sequence[str], draws: np.random.Generator, *, degree: int = 4, rewire: float = 0.2) -> Phases:
    """a ring of `degree` nearest neighbors each, a fraction `rewire` of its edges rewired (Watts, Strogatz 1998)"""
    degree = min(_at_least("small-world: degree", degree, 2), len(members) - 1)
    _fraction("small-world: rewire", rewire)
    return (nx.watts_strogatz_graph(len(members), degree, rewire, seed=_seed(draws)),)


def exponential(members: Sequence[str], draws: np.random.Generator) -> Phases:
    """directed: each sends to the peers 1, 2, 4, 8, ... places further"""
    count = len(members)
    return (_hops(count, [1 << i for i in range(_doublings(count))]),)


def one_peer_exponential(members: Sequence[str], draws: np.random.Generator) -> Phases:
    """time-varying: each sends to one peer, 1 place further, then 2, 4, 8, ..., then 1 again; exact for 2^k peers"""
    count = len(members)
    return tuple(_hops(count, [1 << i]) for i in range(_doublings(count))) or (_hops(count, []),)


def el_oracle(members: Sequence[str], draws: np.random.Generator, *, peers: int = 2) -> Redraw:
    """drawn anew for each exchange: `peers` random neighbors each, as k-regular (EL-Oracle, de Vos et al. 2023)"""
    wanted = _at_least("el-oracle: peers", peers, 1)

    def draw(count: int, draws: np.random.Generator) -> nx.Graph:
        return _random_regular(min(wanted, count - 1), count, draws)

    def left(count: int) -> float:
        degree = min(wanted, count - 1)
        return 0.0 if count == 1 else (1 - degree / (count - 1)) / (degree + 1)

    return Redraw(draw, left, directed=False)


def el_local(members: Sequence[str], draws: np.random.Generator, *, peers: int = 2) -> Redraw:
    """drawn anew for each exchange, directed: each sends to `peers` random others (EL-Local, de Vos et al. 2023)"""
    wanted = _at_least("el-local: peers", peers, 1)

    def draw(count: int, draws: np.random.Generator) -> nx.Graph:
        graph = nx.empty_graph(count, create_using=nx.DiGraph)
        for place in range(count):
            to = draws.choice(count - 1, min(wanted, count - 1), replace=False) if count > 1 else ()
            graph.add_edges_from((place, int(other) + (int(other) >= place)) for other in to)
        return graph

    def left(count: int) -> float:
        if count == 1:
            return 0.0
        degree = min(wanted, count - 1)
        return (1 - (1 - degree / (count - 1)) ** count) / degree - 1 / (count - 1)

    return Redraw(draw, left, directed=True)


def star(members: Sequence[str], draws: np.random.Generator) -> Phases:
    """the first peer with each of the others"""
    return (nx.star_graph(len(members) - 1),)


def hierarchy(members: Sequence[str], draws: np.random.Generator, *, branching: int = 3) -> Phases:
    """a tree in the order of the peers, with `branching` children each"""
    return (nx.full_rary_tree(_at_least("hierarchy: branching", branching, 1), len(members)),)


def edges(members: Sequence[str], draws: np.random.Generator, *, edges: tuple[str, ...]) -> Phases:
    """your own edges, undirected: peer1-peer2+peer2-peer3+...; a group uses those between its members

    Raises:
        TopologyError: if they do not connect the members; the message names the parts.
    """
    place = {member: i for i, member in enumerate(members)}
    graph = nx.empty_graph(len(members))
    graph.add_edges_from((place[a], place[b]) for edge in edges for a, b in _ends(edge, place) if a != b)
    parts = sorted(nx.connected_components(graph), key=min)
    if len(parts) > 1:
        named = "; ".join(f"({listed([members[i] for i in sorted(part)])})" for part in parts)
        raise TopologyError(
            f"the edges leave {len(members)} peers in {len(parts)} parts: {named}; add edges between them"
        )
    return (graph,)


#: Values of `gossip.topology`.
GRAPHS: dict[str, Callable[..., Phases | Redraw]] = {
    "complete": complete,
    "ring": ring,
    "torus": torus,
    "k-regular": k_regular,
    "erdos-renyi": erdos_renyi,
    "small-world": small_world,
    "exponential": exponential,
    "one-peer-exponential": one_peer_exponential,
    "el-oracle": el_oracle,
    "el-local": el_local,
    "star": star,
    "hierarchy": hierarchy,
    "edges": edges,
}
#: Graphs that are drawn again for each exchange.
DRAWN_ANEW = ("el-oracle", "el-local")


def _ends(edge: str, known: Container[str]) -> list[tuple[str, str]]:
    """Return the ways to read `a-b` as two known ids: none, one, or more if ids that contain `-` make it ambiguous."""
    pieces = edge.split("-")
    halves = [("-".join(pieces[:i]).strip(), "-".join(pieces[i:]).strip()) for i in range(1, len(pieces))]
    return [(a, b) for a, b in halves if a in known and b in known]


def edge_problems(edges: Sequence[str], peers: Sequence[str]) -> list[str]:
    """Return every mistake in a federation's own edges, one sentence each.

    Groups smaller than the federation use the edges between their members, so only here, where all peers are known, can
    an unknown name be distinguished from a peer of another group.
    """
    known = set(peers)
    problems = []
    lonely = dict.fromkeys(peers)
    for edge in edges:
        readings = _ends(edge, known)
        if len(readings) == 1:
            a, b = readings[0]
            if a == b:
                problems.append(f'the edge "{edge}" joins a peer to itself; leave it out')
                continue
            lonely.pop(a, None)
            lonely.pop(b, None)
        elif readings:
            spelled = " or ".join(f"{a} and {b}" for a, b in readings)
            problems.append(f'the edge "{edge}" can be read as {spelled}; rename a peer')
        else:
            problems.append(
                f'the edge "{edge}" does not join two of the peers {listed(peers)}; write it as peer1-peer2'
            )
    if lonely and len(peers) > 1:
        problems.append(f"no edge reaches {listed(list(lonely))}; add one for each")
    return problems


def listed(names: Sequence[str]) -> str:
    """Join names for a message: all of them, or the first few and the number of the others."""
    shown = 6  # enough to recognise a group, and still one line
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _random_regular(degree: int, count: int, draws: np.random.Generator) -> nx.Graph:
    """Draw a graph in which all nodes have this degree; if degree times count is odd, the last node has one fewer."""
    odd = count * degree % 2
    graph = nx.random_regular_graph(degree, count - odd, seed=_seed(draws))
    if odd:
        _insert(graph, count - 1, degree // 2, draws)
    return graph


def _insert(graph: nx.Graph, node: int, pairs: int, draws: np.random.Generator) -> None:
    """Insert a node into the middle of `pairs` disjoint edges, so that no other degree changes."""
    edges = list(graph.edges)
    touched: set[int] = set()
    graph.add_node(node)
    for i in draws.permutation(len(edges)):
        a, b = edges[i]
        if len(touched) < 2 * pairs and not touched & {a, b}:
            touched |= {a, b}
            graph.remove_edge(a, b)
            graph.add_edges_from([(a, node), (b, node)])


def _connect_by_swaps(graph: nx.Graph) -> None:
    """Join the parts of a graph without changing degrees; every part must have a cycle, as with degrees of 2 or more.

    Removing an edge of a cycle does not disconnect its part; so edges a-b and c-d of two parts become a-c and b-d.
    """
    first, *others = sorted(nx.connected_components(graph), key=min)
    for part in others:
        a, b = nx.find_cycle(graph, min(first))[0][:2]
        c, d = next(iter(graph.edges(min(part))))
        graph.remove_edges_from([(a, b), (c, d)])
        graph.add_edges_from([(a, c), (b, d)])


def _hops(count: int, hops: Sequence[int]) -> nx.DiGraph:
    graph = nx.empty_graph(count, create_using=nx.DiGraph)
    graph.add_edges_from((i, (i + hop) % count) for hop in hops for i in range(count))
    return graph


def _doublings(count: int) -> int:
    """Return how many of 1, 2, 4, ... are below `count`."""
    return (count - 1).bit_length()


def _seed(draws: np.random.Generator) -> int:
    return int(draws.integers(2**32))


def _at_least(place: str, value: int, least: int) -> int:
    if value < least:
        raise TopologyError(f"{place} = {value}: write {least} or more")
    return value


def _fraction(place: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise TopologyError(f"{place} = {value}: write a number from 0 to 1")
