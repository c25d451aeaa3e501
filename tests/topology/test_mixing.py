"""Mixing matrices and matchings against their definitions."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.topology.mixing import (
    ExchangeDraws,
    Protocol,
    carrier,
    effective_matrix,
    exchange_matrices,
    push_sum_matrix,
    random_matching,
)
from tests.reference.mixing import limit_weights, metropolis_hastings, second_modulus, spectral_gap
from tests.topology.test_graphs import NAMES, made


def keyed(seed: int) -> ExchangeDraws:
    return lambda exchange: np.random.default_rng([seed, exchange])


graphs = st.builds(
    lambda count, probability, seed: made("erdos-renyi", count, seed, probability=probability).phases[0],
    st.integers(1, 20),
    st.floats(0, 1),
    st.integers(0, 2**31),
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(graph=graphs)
def test_metropolis_hastings_by_its_definition(graph: nx.Graph) -> None:
    count = len(graph)
    slow = np.zeros((count, count))
    for i, j in graph.edges:
        slow[i, j] = slow[j, i] = 1 / (1 + max(graph.degree(i), graph.degree(j)))
    for i in range(count):
        slow[i, i] = 1 - slow[i].sum()
    np.testing.assert_allclose(metropolis_hastings(graph).toarray(), slow, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 2, 9])
def test_shares_by_their_definition(name: str, count: int) -> None:
    for graph in made(name, count).phases:
        slow = np.zeros((count, count))
        for source in graph:
            for target in [source, *graph.neighbors(source)]:
                slow[target, source] = 1 / (len(list(graph.neighbors(source))) + 1)
        found = push_sum_matrix(graph).toarray()
        np.testing.assert_allclose(found, slow, atol=1e-15)
        np.testing.assert_allclose(found.sum(axis=0), 1, atol=1e-15)


def test_limit_weights_of_an_undirected_graph_follow_its_degrees() -> None:
    """The stationary distribution of a random walk that may stay is proportional to degree + 1."""
    graph = made("small-world", 12).phases[0]
    size = np.array([graph.degree(i) + 1 for i in range(12)])
    np.testing.assert_allclose(limit_weights(push_sum_matrix(graph)), 12 * size / size.sum(), atol=1e-12)


@pytest.mark.parametrize("count", [3, 8, 15])
def test_the_gap_of_a_ring_in_closed_form(count: int) -> None:
    """The eigenvalues of a ring's shares are (1 + 2 cos(2 pi k / P)) / 3."""
    moduli = sorted(abs(1 + 2 * np.cos(2 * np.pi * k / count)) / 3 for k in range(count))
    matrix = push_sum_matrix(made("ring", count).phases[0])
    assert second_modulus(matrix) == pytest.approx(moduli[-2], abs=1e-12)
    assert spectral_gap(matrix) == pytest.approx(1 - moduli[-2], abs=1e-12)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(graph=graphs, seed=st.integers(0, 2**31))
def test_a_matching_is_maximal_and_uses_edges_only(graph: nx.Graph, seed: int) -> None:
    partner = random_matching(graph, np.random.default_rng(seed)).tolist()
    assert all(partner[b] == a for a, b in enumerate(partner))
    assert all(graph.has_edge(a, b) for a, b in enumerate(partner) if a != b)
    assert not any(partner[a] == a and partner[b] == b for a, b in graph.edges)


def test_matchings_differ_and_reach_every_edge() -> None:
    graph = made("k-regular", 10).phases[0]
    found = [random_matching(graph, keyed(0)(exchange)).tolist() for exchange in range(200)]
    assert len({tuple(partner) for partner in found}) > 20
    met = {(a, b) for partner in found for a, b in enumerate(partner) if a < b}
    assert met == {(min(edge), max(edge)) for edge in graph.edges}


@pytest.mark.parametrize("protocol", ["push-sum", "push-pull", "exact"])
@pytest.mark.parametrize("count", [1, 2, 11])
def test_the_matrix_of_an_exchange_is_that_of_its_graph(protocol: Protocol, count: int) -> None:
    drawn = made("one-peer-exponential", count)
    matrices = exchange_matrices(drawn, protocol, 6, first=3, draws=keyed(2))
    for exchange, matrix in enumerate(matrices, 3):
        shares = push_sum_matrix(carrier(drawn, protocol, exchange, keyed(2)))
        np.testing.assert_allclose(matrix.toarray(), shares.toarray(), atol=1e-15)


@pytest.mark.parametrize("protocol", ["push-sum", "push-pull", "exact"])
@pytest.mark.parametrize("name", ["k-regular", "one-peer-exponential", "exponential"])
def test_averagings_in_a_row_are_one_long_one(name: str, protocol: Protocol) -> None:
    """Phases and matchings continue where the previous averaging stopped."""
    drawn = made(name, 11)
    whole = effective_matrix(drawn, protocol, 7, first=0, draws=keyed(1))
    head = effective_matrix(drawn, protocol, 3, first=0, draws=keyed(1))
    tail = effective_matrix(drawn, protocol, 4, first=3, draws=keyed(1))
    np.testing.assert_allclose(tail @ head, whole, atol=1e-14)
    np.testing.assert_allclose(whole.sum(axis=0), 1, atol=1e-14)


@pytest.mark.parametrize("power", range(6))
def test_one_peer_exponential_is_exact_after_log2_exchanges(power: int) -> None:
    """The product (I + S)(I + S^2)(I + S^4)... over 2^k, S being the shift, is the mean, from any first phase."""
    count = 2**power
    drawn = made("one-peer-exponential", count)
    for first in range(max(1, power)):
        product = effective_matrix(drawn, "push-sum", power, first=first, draws=keyed(0))
        np.testing.assert_array_equal(product, np.full((count, count), 1 / count))


def test_a_graph_that_comes_round_again_is_not_built_again() -> None:
    matrices = exchange_matrices(made("k-regular", 10), "push-sum", 5, first=2, draws=keyed(0))
    assert len({id(matrix) for matrix in matrices}) == 1
