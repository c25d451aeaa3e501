"""Graphs of large simulations: equal edge by edge to those of networkx where nothing is drawn, and of the same kind
where edges are drawn.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from fedpeer.topology.graphs import GRAPHS, TopologyError
from fedpeer.topology.mixing import adjacency, random_matching
from fedpeer.topology.overlay import overlay
from fedpeer.topology.samplers import inserted, pair_of, random_edges, regular_edges, small_world_edges
from fedpeer.topology.wide import EDGES_MAX, SAME_MEMBERS_MAX, WideGraph, matched, wide

FIXED: list[tuple[str, dict[str, Any]]] = [
    ("complete", {}),
    ("ring", {}),
    ("torus", {}),
    ("torus", {"rows": 2}),
    ("exponential", {}),
    ("one-peer-exponential", {}),
    ("star", {}),
    ("hierarchy", {}),
    ("hierarchy", {"branching": 1}),
]
DRAWN: list[tuple[str, dict[str, Any]]] = [
    ("k-regular", {}),
    ("k-regular", {"degree": 2}),
    ("k-regular", {"degree": 3}),
    ("erdos-renyi", {"probability": 0.008}),
    ("small-world", {}),
]


def made(name: str, members: int, settings: dict[str, Any], seed: int = 0) -> WideGraph:
    return wide(name, members, settings, np.random.default_rng(seed))


def with_networkx(name: str, members: int, settings: dict[str, Any]) -> list[csr_array]:
    ids = [f"peer{i}" for i in range(members)]
    found = overlay(partial(GRAPHS[name], **settings), ids, np.random.default_rng(0))
    return [adjacency(phase) for phase in found.phases]


@pytest.mark.parametrize(("name", "settings"), FIXED, ids=[f"{name}-{i}" for i, (name, _) in enumerate(FIXED)])
def test_graphs_without_draws_are_those_of_networkx_edge_by_edge(name: str, settings: dict[str, Any]) -> None:
    for members in (1, 2, 3, 4, 5, 6, 7, 12, 13, 16, 30):
        ours, theirs = made(name, members, settings).phases, with_networkx(name, members, settings)
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert (mine.toarray() == other.toarray()).all(), members
            assert mine.has_sorted_indices


@pytest.mark.parametrize(("name", "settings"), DRAWN, ids=[f"{name}-{i}" for i, (name, _) in enumerate(DRAWN)])
def test_a_small_graph_that_is_drawn_is_the_overlay_itself(name: str, settings: dict[str, Any]) -> None:
    ours = made(name, 40, settings)
    for mine, other in zip(ours.phases, with_networkx(name, 40, settings), strict=True):
        assert (mine.toarray() == other.toarray()).all()


@pytest.mark.parametrize(("name", "settings"), DRAWN, ids=[f"{name}-{i}" for i, (name, _) in enumerate(DRAWN)])
def test_drawn_graphs_are_simple_undirected_connected_and_follow_from_their_draws(
    name: str, settings: dict[str, Any]
) -> None:
    for members in (SAME_MEMBERS_MAX + 1, SAME_MEMBERS_MAX + 500):
        (graph,) = made(name, members, settings).phases
        (again,) = made(name, members, settings).phases
        (other,) = made(name, members, settings, seed=1).phases
        assert (graph.indices == again.indices).all()
        assert graph.nnz != other.nnz or (graph.indices != other.indices).any()
        assert (graph.data == 1).all()
        assert not graph.diagonal().any()
        assert not (graph - graph.T).nnz
        assert connected_components(graph)[0] == 1


@pytest.mark.parametrize(("members", "degree"), [(2001, 4), (2001, 3), (2000, 7), (1003, 51)])
def test_regular_graphs_have_their_degree_but_for_one_peer_where_parity_forbids(members: int, degree: int) -> None:
    (graph,) = made("k-regular", members, {"degree": degree}).phases
    found = np.sort(np.diff(graph.indptr))
    assert found[0] == degree - members * degree % 2
    assert (found[1:] == degree).all()


@pytest.mark.slow
def test_regular_graphs_have_as_many_triangles_as_random_ones_have() -> None:
    """The number of triangles is Poisson distributed with mean (degree - 1)^3 / 6 (Bollobas 1980)."""
    draws, counts = np.random.default_rng(0), []
    for _ in range(80):
        a_E, b_E = regular_edges(150, 4, draws)
        dense = np.zeros((150, 150))
        dense[a_E, b_E] = dense[b_E, a_E] = 1
        counts.append(np.trace(dense @ dense @ dense) / 6)
    assert np.mean(counts) == pytest.approx(27 / 6, abs=4 * np.sqrt(27 / 6 / 80))


@pytest.mark.slow
def test_every_pair_of_regular_graph_s_members_is_as_likely_an_edge() -> None:
    draws, seen = np.random.default_rng(0), np.zeros((8, 8))
    for _ in range(600):
        a_E, b_E = regular_edges(8, 3, draws)
        np.add.at(seen, (a_E, b_E), 1)
    pairs = seen[np.triu_indices(8, 1)] / 600
    assert pairs == pytest.approx(3 / 7, abs=0.09), "four standard errors"


def test_a_member_is_put_into_the_middle_of_edges() -> None:
    draws = np.random.default_rng(0)
    a_E, b_E = inserted(regular_edges(30, 5, draws), 30, 2, draws)
    degree_P = np.bincount(np.concatenate([a_E, b_E]), minlength=31)
    assert degree_P.tolist() == [5] * 30 + [4]


def test_pairs_have_numbers() -> None:
    numbers = np.arange(45)
    pairs = list(zip(*pair_of(numbers), strict=True))
    assert pairs == [(a, b) for b in range(10) for a in range(b)]
    last = 10_000_000 * 9_999_999 // 2 - 1
    assert [int(end[0]) for end in pair_of(np.array([last]))] == [9_999_998, 9_999_999]
    assert [int(end[0]) for end in pair_of(np.array([last - 9_999_998]))] == [0, 9_999_999]


@pytest.mark.slow
def test_each_pair_has_the_same_chance() -> None:
    draws, seen = np.random.default_rng(0), np.zeros((7, 7))
    for _ in range(600):
        a_E, b_E = random_edges(7, 0.4, draws)
        assert len(set(zip(a_E.tolist(), b_E.tolist(), strict=True))) == len(a_E)
        seen[a_E, b_E] += 1
    assert seen[np.triu_indices(7, 1)] / 600 == pytest.approx(0.4, abs=0.09)
    assert not np.tril(seen).any()


def test_a_small_world_is_a_ring_of_which_a_part_is_rewired() -> None:
    draws = np.random.default_rng(0)
    a_E, b_E = small_world_edges(1500, 4, 0.0, draws)
    assert nx.utils.graphs_equal(
        nx.Graph(list(zip(a_E.tolist(), b_E.tolist(), strict=True))), nx.watts_strogatz_graph(1500, 4, 0)
    )
    a_E, b_E = small_world_edges(1500, 4, 0.2, draws)
    near = np.minimum(b_E - a_E, 1500 - (b_E - a_E)) <= 2
    assert len(a_E) == 3_000
    assert (~near).mean() == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("name", ["ring", "k-regular", "one-peer-exponential", "exponential", "star", "complete"])
def test_the_matching_is_that_of_one_edge_after_the_other(name: str) -> None:
    graph, ids = made(name, 33, {}), [f"peer{i}" for i in range(33)]
    union = overlay(GRAPHS[name], ids, np.random.default_rng(0)).union
    for seed in range(5):
        partner_P = random_matching(union, np.random.default_rng(seed))
        edges = matched(graph, np.random.default_rng(seed))
        a_E, b_E = graph.union
        ours = sorted(zip(a_E[edges].tolist(), b_E[edges].tolist(), strict=True))
        assert ours == [(a, int(b)) for a, b in enumerate(partner_P) if a < b]


@pytest.mark.parametrize(
    ("name", "members", "settings", "words"),
    [
        ("erdos-renyi", 1_000_000, {}, "3e+11 directed edges, and at most 32,000,000 fit; use 10,328 peers or fewer"),
        ("k-regular", 1_000_000, {"degree": 40}, "use 800,000 peers or fewer, or a smaller degree"),
        ("exponential", 5_000_000, {}, "use 1,523,809 peers or fewer"),
        ("ring", 10_000_001, {}, "write a number from 1 to 10,000,000"),
        ("ring", 0, {}, "write a number from 1 to 10,000,000"),
        ("k-regular", 20, {"degree": 20}, "there are only 20 peers; use 19 or less"),
        ("small-world", 5000, {"rewire": 2.0}, "rewire = 2.0: write a number from 0 to 1"),
        ("edges", 20, {"edges": ("peer1-peer2",)}, "choose a graph such as k-regular:4"),
        ("k-regular", 1500, {"degree": 1200}, "too large for a random graph of 1,500 peers; use 187 or less, or"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_largest_size(
    name: str, members: int, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(TopologyError) as error:
        made(name, members, settings)
    assert words in str(error.value)


def test_the_largest_size_named_fits() -> None:
    assert 10_328 * 10_327 * 0.3 <= EDGES_MAX < 10_329 * 10_328 * 0.3
    assert 1_523_809 * 21 <= EDGES_MAX < 1_523_810 * 21


@pytest.mark.slow
def test_parts_are_joined_from_first_to_first() -> None:
    found = made("erdos-renyi", 2000, {"probability": 0.0})
    assert (found.phases[0].toarray() == nx.to_numpy_array(nx.path_graph(2000))).all()
    assert found.remarks == ("the graph was in 2,000 parts; added 1,999 edges",)
