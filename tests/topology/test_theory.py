"""Predictions for large simulations: exact for federations, else from dense eigenvalues."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from fedpeer.topology.graphs import GRAPHS, TopologyError
from fedpeer.topology.mixing import eigenvalues, shares_of
from fedpeer.topology.overlay import overlay
from fedpeer.topology.prediction import predicted_rounds
from fedpeer.topology.theory import Theory, first_exchange, kesten_mckay, theory, waves
from fedpeer.topology.wide import WideGraph, wide

INVARIANT: list[tuple[str, dict[str, Any]]] = [
    ("ring", {}),
    ("torus", {}),
    ("exponential", {}),
    ("one-peer-exponential", {}),
    ("complete", {}),
]


def made(name: str, members: int, **settings: Any) -> WideGraph:
    return wide(name, members, settings, np.random.default_rng(0))


@pytest.mark.parametrize(("name", "settings"), INVARIANT, ids=[name for name, _ in INVARIANT])
@pytest.mark.parametrize("members", [2, 3, 12, 16, 21])
def test_the_worst_start_is_that_of_the_predictions(name: str, settings: dict[str, Any], members: int) -> None:
    ids = [f"peer{i}" for i in range(members)]
    found = overlay(partial(GRAPHS[name], **settings), ids, np.random.default_rng(0))
    assert theory(made(name, members, **settings), "push-sum", 1e-6).worst == predicted_rounds(found, "push-sum", 1e-6)


@pytest.mark.parametrize("name", ["ring", "torus", "exponential", "one-peer-exponential"])
def test_what_is_usual_is_the_root_mean_square_over_starts(name: str) -> None:
    """The mean square error of independent starts is ||T - mean||_F^2 / (P - 1), T the product of the exchanges."""
    graph, members = made(name, 12), 12
    matrices = [shares_of(phase).toarray() for phase in graph.phases]
    product, exchanges = np.eye(members), 0
    while np.linalg.norm(product - 1 / members) / math.sqrt(members - 1) > 1e-5:
        product, exchanges = matrices[exchanges % len(matrices)] @ product, exchanges + 1
    assert theory(graph, "push-sum", 1e-5).usual == exchanges


def test_waves_are_the_eigenvalues() -> None:
    for name in ("ring", "torus"):
        graph = made(name, 12)
        (found,) = waves(graph)
        assert np.sort(found.real) == pytest.approx(eigenvalues(shares_of(graph.phases[0]))[:0:-1])
    (ring,) = waves(made("ring", 9))
    assert ring.real == pytest.approx((1 + 2 * np.cos(2 * np.pi * np.arange(1, 9) / 9)) / 3)


def test_regular_graphs_follow_kesten_and_mckay() -> None:
    """The moments of the law count the walks on a tree that return: d, and d (2 d - 1)."""
    for degree in (3, 4, 10):
        x_J, chance_J = kesten_mckay(degree)
        assert chance_J.sum() == pytest.approx(1)
        assert chance_J @ x_J**2 == pytest.approx(degree, rel=1e-6)
        assert chance_J @ x_J**4 == pytest.approx(degree * (2 * degree - 1), rel=1e-6)


@pytest.mark.slow
def test_regular_graphs_small_and_large_are_foretold_alike() -> None:
    all_eigenvalues = theory(made("k-regular", 500), "push-sum", 1e-6)
    by_law = theory(made("k-regular", 1_200), "push-sum", 1e-6)
    assert by_law.usual == pytest.approx(all_eigenvalues.usual, abs=3)
    assert by_law.worst == pytest.approx(all_eigenvalues.worst, rel=0.08), "the edge comes like P^(-2/3)"
    assert by_law.gap == pytest.approx(1 - (1 + 2 * math.sqrt(3)) / 5)


@pytest.mark.slow
def test_stars_and_others_are_bounded_from_above() -> None:
    ids = [f"peer{i}" for i in range(40)]
    for name in ("star", "hierarchy", "small-world"):
        exact = predicted_rounds(overlay(GRAPHS[name], ids, np.random.default_rng(0)), "push-sum", 1e-6)
        found = theory(made(name, 40), "push-sum", 1e-6)
        assert found.usual is None
        assert found.worst is not None
        assert exact <= found.worst <= 1.3 * exact + 3
    assert theory(made("star", 3_000), "push-sum", 1e-6).gap == 0.5


@pytest.mark.slow
def test_push_pull_on_all_pairs_is_exact_and_elsewhere_at_most_the_bound_of_the_predictions() -> None:
    for members in (8, 9):
        partner, left = np.arange(members), []
        draws = np.random.default_rng(0)
        start = draws.standard_normal(members)
        start -= start.mean()
        for _ in range(4_000):
            pairs = draws.permutation(members)[: members // 2 * 2].reshape(-1, 2)
            partner = np.arange(members)
            partner[pairs[:, 0]], partner[pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
            left.append(((start + start[partner]) ** 2).sum() / 4)
        gap = theory(made("complete", members), "push-pull", 1e-6).gap
        assert gap is not None
        assert np.mean(left) / (start @ start) == pytest.approx((1 - gap) ** 2, rel=0.03)
    ids = [f"peer{i}" for i in range(16)]
    for name in ("ring", "torus", "exponential"):
        bound = predicted_rounds(overlay(GRAPHS[name], ids, np.random.default_rng(0)), "push-pull", 1e-6)
        assert theory(made(name, 16), "push-pull", 1e-6).worst == bound
    assert theory(made("k-regular", 1_200), "push-pull", 1e-6).worst == pytest.approx(708)


def test_never_is_infinite_and_what_is_unknown_is_none() -> None:
    assert first_exchange([np.ones(1)], lambda left: float(left.max()), 0.5) == math.inf
    assert theory(made("ring", 1), "push-sum", 0.1).worst == 0
    assert theory(made("complete", 5), "push-sum", 0.1).worst == 1
    assert theory(made("hierarchy", 100_001), "push-sum", 1e-6) == Theory(
        None, None, None, "no closed form, and Lanczos takes 100,000 peers at most"
    )
    assert theory(made("star", 12), "push-pull", 1e-6).worst is None
    with pytest.raises(TopologyError, match="tolerance = 2"):
        theory(made("ring", 5), "push-sum", 2.0)


@pytest.mark.slow
def test_a_ring_is_foretold() -> None:
    """1 - gap is (1 + 2 cos(2 pi / P)) / 3, so the worst start takes 3 P^2 ln(1e6) / (4 pi^2) exchanges."""
    found = theory(made("ring", 10_000), "push-sum", 1e-6)
    assert found.worst == pytest.approx(3e8 * math.log(1e6) / (4 * math.pi**2), rel=1e-3)
