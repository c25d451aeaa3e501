"""Graphs that are drawn anew for each exchange: their degrees, what an exchange leaves, and peers that are gone."""

from __future__ import annotations

from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pytest
from numpy.typing import NDArray

from fedpeer.topology.describe import describe_topology
from fedpeer.topology.graphs import DRAWN_ANEW, GRAPHS, TopologyError
from fedpeer.topology.mixing import carrier, exchange_matrices, push_sum_matrix
from fedpeer.topology.overlay import Overlay, kept_apart, overlay, overlay_mistakes
from fedpeer.topology.prediction import contraction, predicted_rounds
from fedpeer.topology.repair import repaired
from fedpeer.topology.wide import wide
from tests.topology.test_mixing import keyed

EACH = pytest.mark.parametrize("name", DRAWN_ANEW)


def made(name: str, count: int, **settings: Any) -> Overlay:
    ids = [f"peer{i + 1}" for i in range(count)]
    return overlay(partial(GRAPHS[name], **settings), ids, np.random.default_rng(0))


def drawn(of: Overlay, exchange: int, seed: int = 0) -> nx.Graph:
    return carrier(of, "push-sum", exchange, keyed(seed))


def plain_mean(graph: nx.Graph) -> NDArray[np.float64]:
    """Return the matrix (P, P) of the plain mean of what a peer has and receives."""
    into_PP = nx.to_numpy_array(graph).T + np.eye(len(graph))
    return np.asarray(into_PP / into_PP.sum(1, keepdims=True))


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("peers", [1, 2, 3, 20])
def test_each_has_as_many_random_others(count: int, peers: int) -> None:
    wanted = min(peers, count - 1)
    for exchange in range(5):
        oracle, local = (drawn(made(name, count, peers=peers), exchange) for name in DRAWN_ANEW)
        assert sorted(degree for _, degree in oracle.degree()) == sorted(
            [wanted] * (count - 1) + [wanted - count * wanted % 2]
        )
        assert [degree for _, degree in local.out_degree()] == [wanted] * count
        for graph in (oracle, local):
            assert list(graph) == list(range(count))
            assert nx.number_of_selfloops(graph) == 0
        assert local.is_directed()
        assert not oracle.is_directed()


@EACH
def test_every_exchange_has_another_graph_and_every_peer_draws_the_same(name: str) -> None:
    of = made(name, 12)
    graphs = [frozenset(drawn(of, exchange).edges) for exchange in range(20)]
    assert len(set(graphs)) > 15
    assert graphs == [frozenset(drawn(made(name, 12), exchange).edges) for exchange in range(20)]
    assert all({*drawn(of, exchange).edges} <= {*of.union.edges} for exchange in range(20))
    matrices = exchange_matrices(of, "push-sum", 3, first=4, draws=keyed(0))
    for matrix, exchange in zip(matrices, (4, 5, 6), strict=True):
        assert (matrix != push_sum_matrix(drawn(of, exchange))).nnz == 0
        np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-15, err_msg="mass is conserved")
    if name == "el-oracle":
        np.testing.assert_allclose(matrices[0].sum(axis=1), 1, atol=1e-15, err_msg="the plain mean is, too")


@pytest.mark.slow
@EACH
@pytest.mark.parametrize(("count", "peers"), [(8, 2), (9, 4), (5, 4), (7, 1)])
def test_an_exchange_leaves_on_average_what_the_closed_form_says(name: str, count: int, peers: int) -> None:
    """The mean over isotropic starts of ||R x||^2 / ||x||^2, for x of mean 0, is ||R (1 - J)||_F^2 / (P - 1)."""
    if name == "el-oracle" and count * peers % 2:
        peers += 1
    of, apart = made(name, count, peers=peers), np.eye(count) - 1 / count
    left = [np.linalg.norm(plain_mean(drawn(of, exchange)) @ apart) ** 2 / (count - 1) for exchange in range(400)]
    assert of.redraw is not None
    assert np.mean(left) == pytest.approx(of.redraw.left(count), rel=0.05, abs=1e-12)
    assert contraction(of) == pytest.approx(of.redraw.left(count) ** 0.5)


def test_the_number_of_exchanges_follows_from_it() -> None:
    of = made("el-oracle", 8)
    left = (1 - 2 / 7) / 3
    assert predicted_rounds(of, "push-sum", 1e-4) == np.ceil(np.log(1e-8) / np.log(left))
    assert predicted_rounds(of, "push-sum", 1e-4, most=3) == 3
    assert predicted_rounds(made("el-oracle", 3), "push-sum", 1e-4) == 1
    found = describe_topology(made("el-local", 8, peers=3))
    assert (found.degree_min, found.degree_max, found.directed) == (3, 3, True)
    assert "drawn anew" in found.remarks[0]


@EACH
def test_the_living_draw_among_themselves(name: str) -> None:
    whole = made(name, 8)
    rest = repaired(whole, {"peer1", "peer3", "peer4", "peer6", "peer8"})
    assert rest.members == ("peer1", "peer3", "peer4", "peer6", "peer8")
    assert [*drawn(rest, 2).edges] == [*drawn(made(name, 5), 2).edges]
    assert kept_apart(whole, {"peer1", "peer2"}) is whole


@EACH
def test_what_does_not_fit_is_said(name: str) -> None:
    assert overlay_mistakes(name, {"peers": 5}, ["a", "b", "c"]) == [
        f"{name}: peers = 5: there are only 3 peers; use 2 or less"
    ]
    (problem,) = overlay_mistakes(name, {"peers": 0}, ["a", "b", "c"])
    assert problem == f"{name}: peers = 0: write 1 or more"
    with pytest.raises(TopologyError, match="drawn anew for each exchange"):
        wide(name, 1000, {}, np.random.default_rng(0))
