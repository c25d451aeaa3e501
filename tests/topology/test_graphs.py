"""Every graph of the registry is connected, has the degrees that it promises, and is a function of its draws."""

from __future__ import annotations

from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.topology.graphs import DRAWN_ANEW, GRAPHS, Builder, TopologyError, edge_problems
from fedpeer.topology.overlay import Overlay, kept_apart, overlay, overlay_mistakes

NAMES = [name for name in GRAPHS if name not in ("edges", *DRAWN_ANEW)]
#: Graphs that depend on random draws.
DRAWN = ("k-regular", "erdos-renyi", "small-world")


def ids(count: int) -> tuple[str, ...]:
    return tuple(f"peer{i + 1}" for i in range(count))


def made(name: str, count: int, seed: int = 0, **given: Any) -> Overlay:
    build: Builder = partial(GRAPHS[name], **given)
    return overlay(build, ids(count), np.random.default_rng(seed))


def degrees(graph: nx.Graph) -> list[int]:
    return [degree for _, degree in graph.degree()]


def strongly_connected(drawn: Overlay) -> bool:
    """Return whether every peer reaches every other, by following edges."""
    reach = np.eye(len(drawn.members), dtype=bool)
    step = reach.copy()
    for phase in drawn.phases:
        for a, b in phase.edges:
            step[a, b] = True
            step[b, a] |= not phase.is_directed()
    for _ in range(len(drawn.members).bit_length()):
        step = step @ step
    return bool(step.all())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_graph_is_simple_and_connects_its_members(name: str) -> None:
    for count in range(1, 34):
        for seed in range(3 if name in DRAWN else 1):
            drawn = made(name, count, seed)
            assert strongly_connected(drawn), (count, seed)
            for phase in drawn.phases:
                assert list(phase) == list(range(count)), "nodes are the places of the members"
                assert nx.number_of_selfloops(phase) == 0


def beside(drawn: Overlay, apart: set[str]) -> int:
    """Return the number of edges between two of these members."""
    named = [{drawn.members[a], drawn.members[b]} for a, b in drawn.union.edges]
    return sum(edge <= apart for edge in named)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=15)
@given(count=st.integers(1, 24), seed=st.integers(0, 9), data=st.data())
def test_members_that_are_kept_apart_have_fewer_edges_and_the_graph_stays_the_same(
    name: str, count: int, seed: int, data: st.DataObject
) -> None:
    drawn = made(name, count, seed)
    apart = data.draw(st.sets(st.sampled_from(drawn.members), max_size=count))
    dealt = kept_apart(drawn, apart)
    assert dealt.members == drawn.members
    assert all(nx.is_isomorphic(*phases) for phases in zip(dealt.phases, drawn.phases, strict=True))
    assert all(list(phase) == list(range(count)) for phase in dealt.phases)
    assert strongly_connected(dealt)
    most = max(degrees(drawn.union.to_undirected()), default=0)
    if len(apart) * (most + 1) <= count or len(apart) < 2:
        assert beside(dealt, apart) == 0
    if len(apart) < 2:
        assert dealt is drawn


def test_the_middle_of_a_star_is_none_of_those_kept_apart() -> None:
    star = made("star", 6)
    assert beside(star, {"peer1", "peer2", "peer3"}) == 2
    assert beside(kept_apart(star, {"peer1", "peer2", "peer3"}), {"peer1", "peer2", "peer3"}) == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_same_draws_give_the_same_graph(name: str) -> None:
    first, again = (made(name, 20, seed=5) for _ in range(2))
    assert [sorted(p.edges) for p in first.phases] == [sorted(p.edges) for p in again.phases]


@pytest.mark.parametrize("name", DRAWN)
def test_other_draws_give_another_graph(name: str) -> None:
    assert sorted(made(name, 20, 1).phases[0].edges) != sorted(made(name, 20, 2).phases[0].edges)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(count=st.integers(2, 24), degree=st.integers(2, 23), seed=st.integers(0, 2**31))
def test_k_regular_has_its_degree_but_for_one_peer_where_parity_forbids(count: int, degree: int, seed: int) -> None:
    drawn = made("k-regular", count, seed, degree=degree)
    degree = min(degree, count - 1)
    found = sorted(degrees(drawn.phases[0]))
    assert found == sorted([degree] * (count - 1) + [degree - count * degree % 2])
    assert drawn.remarks == ()


def test_degrees_of_the_others() -> None:
    assert degrees(made("complete", 7).phases[0]) == [6] * 7
    assert degrees(made("ring", 7).phases[0]) == [2] * 7
    assert degrees(made("torus", 12).phases[0]) == [4] * 12
    assert sorted(degrees(made("star", 7).phases[0])) == [1] * 6 + [6]
    assert degrees(made("hierarchy", 13).phases[0]) == [3] + [4] * 3 + [1] * 9
    assert [d for _, d in made("exponential", 16).phases[0].out_degree()] == [4] * 16
    one_peer = made("one-peer-exponential", 16)
    assert len(one_peer.phases) == 4
    assert all(d == 1 for phase in one_peer.phases for _, d in phase.out_degree())
    assert sum(degrees(made("small-world", 20).phases[0])) == 80


def test_torus_rows_are_the_largest_divisor_up_to_the_setting() -> None:
    assert nx.is_isomorphic(made("torus", 12).phases[0], nx.grid_2d_graph(3, 4, periodic=True))
    assert nx.is_isomorphic(made("torus", 12, rows=2).phases[0], nx.grid_2d_graph(2, 6, periodic=True))
    assert nx.is_isomorphic(made("torus", 7, rows=3).phases[0], nx.cycle_graph(7)), "a prime number is a ring"


def test_parts_are_joined_in_the_order_of_the_ids_and_named() -> None:
    drawn = made("erdos-renyi", 4, probability=0.0)
    assert sorted(drawn.phases[0].edges) == [(0, 1), (1, 2), (2, 3)]
    assert drawn.remarks == ("the graph was in 4 parts; added peer1-peer2, peer2-peer3, peer3-peer4",)
    assert made("k-regular", 10, degree=1).remarks


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("k-regular", {"degree": 0}, "k-regular: degree = 0: write 1 or more"),
        ("small-world", {"degree": 1}, "small-world: degree = 1: write 2 or more"),
        ("small-world", {"rewire": 1.5}, "small-world: rewire = 1.5: write a number from 0 to 1"),
        ("erdos-renyi", {"probability": -0.1}, "erdos-renyi: probability = -0.1: write a number from 0 to 1"),
        ("torus", {"rows": 0}, "torus: rows = 0: write 1 or more"),
        ("hierarchy", {"branching": 0}, "hierarchy: branching = 0: write 1 or more"),
    ],
)
def test_a_setting_out_of_range_is_named(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError) as error:
        made(name, 8, **given)
    assert str(error.value) == message
    assert message in overlay_mistakes(name, given, ids(8))


def test_own_edges_are_restricted_to_the_group_and_refused_if_they_leave_parts() -> None:  # C08
    own = ("peer1-peer2", "peer2-peer3", "peer3-peer4", "peer4-peer5")
    build: Builder = partial(GRAPHS["edges"], edges=own)
    draws = np.random.default_rng(0)
    assert sorted(overlay(build, ids(5), draws).phases[0].edges) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert sorted(overlay(build, ("peer2", "peer3"), draws).phases[0].edges) == [(0, 1)]
    with pytest.raises(TopologyError, match=r"leave 4 peers in 2 parts: \(peer1, peer2\); \(peer4, peer5\); add edges"):
        overlay(build, ("peer1", "peer2", "peer4", "peer5"), draws)


def test_every_mistake_in_own_edges_is_named() -> None:  # C07
    own = ("peer1-peer2", "peer2-peer2", "peer1-peer9", "nonsense")
    assert edge_problems(own, ids(4)) == [
        'the edge "peer2-peer2" joins a peer to itself; leave it out',
        'the edge "peer1-peer9" does not join two of the peers peer1, peer2, peer3, peer4; write it as peer1-peer2',
        'the edge "nonsense" does not join two of the peers peer1, peer2, peer3, peer4; write it as peer1-peer2',
        "no edge reaches peer3, peer4; add one for each",
    ]
    assert edge_problems(("peer1-peer2",), ids(2)) == []
    assert edge_problems(("a-b-c",), ("a", "b-c", "a-b", "c"))[0] == (
        'the edge "a-b-c" can be read as a and b-c or a-b and c; rename a peer'
    )
    assert edge_problems(("my-pc-your-pc",), ("my-pc", "your-pc")) == [], "ids may hold a dash"
    assert overlay_mistakes("edges", {"edges": ("x-y",)}, ids(2)) == edge_problems(("x-y",), ids(2))


def test_a_degree_that_not_even_all_peers_allow_is_refused_before_the_start() -> None:
    assert overlay_mistakes("k-regular", {"degree": 20}, ids(16)) == [
        "k-regular: degree = 20: there are only 16 peers; use 15 or less"
    ]
    assert overlay_mistakes("k-regular", {"degree": 15}, ids(16)) == []
