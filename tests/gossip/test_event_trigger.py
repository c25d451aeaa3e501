"""Averaging only where a slice has drifted.

An inactive peer keeps its whole mass, an active one gives, and nothing is lost whichever peers are inactive.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import issparse

from fedpeer.gossip.averaging import SHARE_EXTRA_BYTES, Averaging, AveragingProtocol, traffic, turn
from fedpeer.gossip.event_trigger import ActivePeers, active_peers, has_moved, triggered_matrix
from fedpeer.topology.graphs import DRAWN_ANEW, GRAPHS
from fedpeer.topology.mixing import Protocol
from fedpeer.topology.overlay import overlay
from tests.gossip.test_averaging import NAMES, PROTOCOLS, drawn
from tests.gossip.test_mass import values


def policy(
    name: str,
    count: int,
    protocol: AveragingProtocol,
    *,
    exchanges: int | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> Averaging:
    members = [f"peer{i + 1}" for i in range(count)]
    graph = overlay(GRAPHS[name], members, np.random.default_rng(seed))
    draws = partial(drawn, seed=seed)
    return Averaging.of(graph, protocol, exchanges=exchanges, tolerance=tolerance, drift=0.1, draws=draws)


def played(
    of: Averaging, round: int, masses_P2: NDArray[np.float64], active_P: ActivePeers
) -> tuple[Any, list[int], ActivePeers]:
    """Average slowly and obviously: peer by peer, by name, one exchange after the other.

    Return (masses, full messages of each peer, awake).
    """
    names = of.overlay.members
    held = {peer: masses_P2[i].copy() for i, peer in enumerate(names)}
    active = {peer for i, peer in enumerate(names) if active_P[i]}
    full = dict.fromkeys(names, 0)
    for exchange in range(of.exchanges):
        post = []
        for peer in sorted(active):
            plan = turn(of, peer, round, exchange)
            share = held[peer] * plan.fraction
            held[peer] -= share * len(plan.to)
            post += [(to, share) for to in plan.to]
            full[peer] += len(plan.to)
        for to, share in post:
            held[to] += share
        active |= {to for to, _ in post}
    return np.array([held[peer] for peer in names]), list(full.values()), np.array([peer in active for peer in names])


CASES = {
    "name": st.sampled_from(NAMES),
    "protocol": st.sampled_from(PROTOCOLS),
    "count": st.integers(1, 11),
    "exchanges": st.integers(2, 5),
    "round": st.integers(0, 4),
    "seed": st.integers(0, 9999),
    "sleepers": st.lists(st.booleans(), min_size=11, max_size=11),
}


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(**CASES)
def test_the_matrix_is_what_the_peers_do_one_by_one_and_loses_nothing(
    name: str, protocol: Protocol, count: int, exchanges: int, round: int, seed: int, sleepers: list[bool]
) -> None:
    of, active_P = policy(name, count, protocol, exchanges=exchanges, seed=seed), np.array(sleepers[:count])
    matrices = of.matrices(round)
    active = list(active_peers(matrices, active_P))
    matrix = triggered_matrix(matrices, active)
    masses_P2 = np.random.default_rng(seed).normal(size=(count, 2))
    expected_P2, full, awake_after = played(of, round, masses_P2, active_P)
    np.testing.assert_allclose(matrix @ masses_P2, expected_P2, atol=1e-12)
    np.testing.assert_array_equal(active[-1], awake_after)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-13, err_msg="values and weights are conserved")
    assert (matrix >= 0).all()
    assert (np.diag(matrix) > 0).all(), "nobody's weight is ever 0"
    heads = [messages for messages, _ in traffic(of, 10, round)]
    sent = traffic(of, 10, round, active=active)
    assert sent == [(count, count * SHARE_EXTRA_BYTES + 40 * shares) for count, shares in zip(heads, full, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", NAMES)
def test_nobody_and_everybody(name: str, protocol: Protocol) -> None:
    of = policy(name, 9, protocol, exchanges=4)
    for round in range(2):
        nobody = list(active_peers(of.matrices(round), np.zeros(9, bool)))
        assert not np.any(nobody)
        np.testing.assert_array_equal(triggered_matrix(of.matrices(round), nobody), np.eye(9))
        assert [size for _, size in traffic(of, 10**6, round, active=nobody)] == [
            SHARE_EXTRA_BYTES * messages for messages, _ in traffic(of, 10**6, round)
        ]
        everybody = list(active_peers(of.matrices(round), np.ones(9, bool)))
        usual: Any = of.matrix(round)
        usual = usual.toarray() if issparse(usual) else usual
        np.testing.assert_allclose(triggered_matrix(of.matrices(round), everybody), usual, atol=1e-15)
        assert traffic(of, 10, round, active=everybody) == traffic(of, 10, round)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("one-peer-exponential", *DRAWN_ANEW)])
def test_one_wakes_all_within_the_diameter_and_no_sooner(name: str) -> None:
    count = 12
    union = policy(name, count, "push-sum", exchanges=2).overlay.union
    for first in range(count):
        steps = nx.single_source_shortest_path_length(union, first)
        of = policy(name, count, "push-sum", exchanges=max(2, *steps.values()))
        alone = np.arange(count) == first
        for exchange, active_P in enumerate(active_peers(of.matrices(0), alone)):
            assert active_P.tolist() == [steps[peer] <= exchange for peer in range(count)]


def test_one_who_has_moved_gives_all_the_exact_mean() -> None:
    of = policy("ring", 7, "exact", exchanges=1)
    assert of.exchanges == 2
    active = list(active_peers(of.matrices(0), np.arange(7) == 3))
    np.testing.assert_allclose(triggered_matrix(of.matrices(0), active), np.full((7, 7), 1 / 7), atol=1e-15)
    sent = traffic(of, 10, active=active)
    assert [messages for messages, _ in sent] == [12] * 7
    assert [size - 12 * SHARE_EXTRA_BYTES for _, size in sent] == [480 if peer == 3 else 240 for peer in range(7)]


def test_who_gave_gets_weight_back_in_the_next_exchange() -> None:
    of = policy("k-regular", 16, "push-sum", exchanges=2)
    alone = np.arange(16) == 5
    first, second = of.matrices(0)
    active = list(active_peers([first, second], alone))
    after_one, after_two = (triggered_matrix([first, second][:k], active[: k + 1]) @ np.ones(16) for k in (1, 2))
    assert after_one[5] == pytest.approx(1 / 5)
    assert after_two[5] == pytest.approx(1 / 25 + 4 * 1.2 / 5)


def test_what_counts_as_moved() -> None:
    reference_D = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert not has_moved(reference_D, reference_D, 0.1)
    assert not has_moved(reference_D + torch.tensor([0.5, 0.0]), reference_D, 0.1), "just so far is not further"
    assert has_moved(reference_D + torch.tensor([0.0, -0.501]), reference_D, 0.1)
    nothing_D = torch.zeros(2, dtype=torch.float64)
    assert not has_moved(nothing_D, nothing_D, 5.0)
    assert has_moved(nothing_D + 1e-100, nothing_D, 5.0), "from nothing every step is far"
    value_PD, reference_PD = values(40, 6, 3), values(40, 6, 4)
    together = has_moved(value_PD, reference_PD, 1.3)
    assert 0 < together.sum() < 40
    assert together.tolist() == [bool(has_moved(v, r, 1.3)) for v, r in zip(value_PD, reference_PD, strict=True)]


def test_how_many_exchanges() -> None:
    assert policy("complete", 6, "push-sum", tolerance=1e-4).exchanges == 2, "one is the mean, and none gives back"
    assert policy("ring", 6, "push-sum", exchanges=7).exchanges == 7
    assert policy("ring", 1, "push-sum", tolerance=1e-4).exchanges == 0
    assert policy("ring", 1, "exact", exchanges=1).exchanges == 0
