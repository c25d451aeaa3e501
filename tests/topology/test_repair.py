"""A repaired overlay is connected whichever peers are gone, the same for all, and unchanged where nothing was cut."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.topology.graphs import DRAWN_ANEW, GRAPHS, edges
from fedpeer.topology.mixing import push_sum_matrix
from fedpeer.topology.overlay import Overlay, overlay
from fedpeer.topology.prediction import predicted_rounds
from fedpeer.topology.repair import repaired
from tests.reference.mixing import limit_weights

NAMES = [name for name in GRAPHS if name not in ("edges", *DRAWN_ANEW)]


def ids(count: int) -> tuple[str, ...]:
    return tuple(f"peer{i + 1}" for i in range(count))


def made(name: str, count: int, seed: int = 0) -> Overlay:
    return overlay(GRAPHS[name], ids(count), np.random.default_rng(seed))


def all_reach_all(drawn: Overlay) -> bool:
    """Return whether every peer reaches every other, by following edges over all phases."""
    step = np.eye(len(drawn.members), dtype=bool)
    for phase in drawn.phases:
        for a, b in phase.edges:
            step[a, b] = True
            step[b, a] |= not phase.is_directed()
    for _ in range(len(drawn.members).bit_length()):
        step = step @ step
    return bool(step.all())


def named_edges(drawn: Overlay, phase: int) -> set[tuple[str, ...]]:
    graph = drawn.phases[phase]
    pairs = [(drawn.members[a], drawn.members[b]) for a, b in graph.edges]
    return {pair if graph.is_directed() else tuple(sorted(pair)) for pair in pairs}


def most_gained(whole: Overlay, rest: Overlay) -> int:
    """Return the most edges that one peer has in phases of `rest` and lacks in the same phases of `whole`."""
    gained = dict.fromkeys(rest.members, 0)
    for phase in range(len(rest.phases)):
        for edge in named_edges(rest, phase) - named_edges(whole, phase):
            for end in edge:
                gained[end] += 1
    return max(gained.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [2, 3, 5, 8, 13, 16])
def test_whoever_dies_the_rest_is_connected(name: str, count: int) -> None:
    whole = made(name, count)
    for dead in whole.members:
        rest = repaired(whole, set(whole.members) - {dead})
        assert rest.members == tuple(m for m in whole.members if m != dead)
        assert all_reach_all(rest), dead
        assert most_gained(whole, rest) <= 2, dead


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(3, 24))
def test_every_articulation_peer_of_a_random_tree_with_shortcuts(seed: int, count: int) -> None:
    draws = np.random.default_rng(seed)
    members = ids(count)
    tree = [(i, int(draws.integers(i))) for i in range(1, count)]
    shortcuts = [tuple(sorted(draws.choice(count, 2, replace=False).tolist())) for _ in range(count // 4)]
    own = tuple(f"{members[a]}-{members[b]}" for a, b in [*tree, *shortcuts])
    whole = overlay(lambda m, d: edges(m, d, edges=own), members, draws)
    cutting = set(nx.articulation_points(whole.union))
    for i, dead in enumerate(members):
        rest = repaired(whole, set(members) - {dead})
        assert all_reach_all(rest), dead
        kept = {edge for edge in named_edges(whole, 0) if dead not in edge}
        assert kept <= named_edges(rest, 0), "edges of the living stay"
        assert (kept == named_edges(rest, 0)) is (i not in cutting), "edges come only where death cut the graph"


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(name=st.sampled_from(NAMES), count=st.integers(2, 24), seed=st.integers(0, 2**32 - 1))
def test_any_number_of_deaths_in_any_order(name: str, count: int, seed: int) -> None:
    draws = np.random.default_rng(seed)
    whole = made(name, count, seed)
    living = [m for m in whole.members if draws.random() < 0.6] or [whole.members[-1]]
    rest = repaired(whole, [*reversed(living), "a stranger"])
    assert rest.members == tuple(living)
    assert all_reach_all(rest)
    assert most_gained(whole, rest) <= 2
    again = repaired(made(name, count, seed), frozenset(living))
    assert [list(phase.edges) for phase in rest.phases] == [list(phase.edges) for phase in again.phases]
    assert len(rest.phases) == len(whole.phases), "all peers are in the same phase in the same exchange"


@pytest.mark.parametrize("name", NAMES)
def test_where_all_live_it_is_the_same_object(name: str) -> None:
    whole = made(name, 9)
    assert repaired(whole, set(whole.members)) is whole


def test_the_leaves_of_a_star_become_a_ring_and_are_named() -> None:
    rest = repaired(made("star", 5), {"peer2", "peer3", "peer4", "peer5"})
    assert named_edges(rest, 0) == {("peer2", "peer3"), ("peer3", "peer4"), ("peer4", "peer5"), ("peer2", "peer5")}
    assert rest.remarks == ("without peer1: added peer2-peer3, peer3-peer4, peer4-peer5, peer5-peer2",)


def test_a_path_is_joined_by_the_first_of_its_two_parts() -> None:
    whole = overlay(
        lambda m, d: edges(m, d, edges=("peer1-peer2", "peer2-peer3", "peer3-peer4")), ids(4), np.random.default_rng(0)
    )
    assert named_edges(repaired(whole, {"peer1", "peer3", "peer4"}), 0) == {("peer1", "peer3"), ("peer3", "peer4")}


def test_the_last_one_talks_to_nobody() -> None:
    rest = repaired(made("one-peer-exponential", 6), {"peer4"})
    assert rest.members == ("peer4",)
    assert all(not phase.edges for phase in rest.phases)


@pytest.mark.parametrize("name", NAMES)
def test_push_sum_on_what_is_left_has_a_number_of_exchanges_and_weights_above_zero(name: str) -> None:
    rest = repaired(made(name, 12), set(ids(12)) - {"peer1", "peer6", "peer7"})
    assert predicted_rounds(rest, "push-sum", 1e-6) < 1_000
    if len(rest.phases) == 1:
        assert limit_weights(push_sum_matrix(rest.phases[0])).min() > 0
