"""A large simulation with a clock and a meter, and the cells of a sweep."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from fedpeer.config.choice import parse_choice
from fedpeer.experiments.scalar_gossip import scale
from fedpeer.experiments.scalar_gossip.simulation import ScalarGossipOptions, simulate_scalar
from fedpeer.gossip.averaging import ACK_BYTES, SHARE_HEAD_BYTES

ASKED = ScalarGossipOptions(graph=parse_choice("k-regular:4"), peers=300)


def test_what_is_measured_of_gossip_at_scale() -> None:
    outcome = simulate_scalar(ASKED)
    assert outcome.agreed
    assert outcome.left[0] == 1
    assert outcome.left[-2] > 1e-6 >= outcome.left[-1]
    assert outcome.theory.usual is not None
    assert abs(outcome.exchanges - outcome.theory.usual) <= 3
    assert outcome.messages() == 4 * outcome.exchanges
    assert outcome.bytes_sent(100) == 4 * outcome.exchanges * (400 + SHARE_HEAD_BYTES)
    assert outcome.drift < 1e-12
    assert outcome.weight == pytest.approx(1)
    assert simulate_scalar(ASKED).left == outcome.left, "a crowd is its seed"
    assert simulate_scalar(replace(ASKED, seed=1)).left != outcome.left


def test_losses_are_repeated_and_answers_counted() -> None:
    outcome = simulate_scalar(replace(ASKED, loss=0.3))
    sent = outcome.traffic.shares + outcome.traffic.repeats
    assert outcome.traffic.answers / sent == pytest.approx(0.7, abs=0.01)
    amount = sent * SHARE_HEAD_BYTES + outcome.traffic.answers * ACK_BYTES
    assert outcome.bytes_sent(0) == pytest.approx(amount / 300)


def test_gossip_at_scale_stops_when_asked_to() -> None:
    stop, seen = threading.Event(), []

    def on_progress(left: float) -> None:
        seen.append(left)
        if len(seen) == 3:
            stop.set()

    outcome = simulate_scalar(ASKED, on_progress, stop)
    assert outcome.exchanges == 3
    assert list(outcome.left[1:]) == seen
    assert not outcome.agreed


def test_memory_is_that_of_arrays() -> None:
    outcome = simulate_scalar(ScalarGossipOptions(graph=parse_choice("ring"), peers=50_000, exchanges_max=1))
    assert 50_000 * 2 * 8 * 3 < outcome.peak_bytes < 50_000 * 1_000


@pytest.mark.parametrize(("peers", "limit"), [(10_000, 70e6), pytest.param(100_000, 400e6, marks=pytest.mark.soak)])
def test_many_with_losses_agree_in_the_memory_of_their_arrays(peers: int, limit: float) -> None:
    """Up to 4,000 bytes a peer are allowed, and with few peers 30 MB for modules that are imported meanwhile."""
    outcome = simulate_scalar(ScalarGossipOptions(graph=parse_choice("one-peer-exponential"), peers=peers, loss=0.1))
    assert outcome.agreed
    assert outcome.peak_bytes < limit
    if peers == 100_000:
        assert outcome.seconds < 15


def test_cells_of_a_sweep_are_told_apart_and_small_ones_come_first() -> None:
    cells = scale.cells(1_000_000, 0)
    assert len({scale.key(options) for _, options in cells}) == len(cells)
    sizes = np.array([options.peers for _, options in cells])
    assert (np.diff(sizes / 1.32) <= sizes[1:]).all()
    assert max(options.peers for _, options in scale.cells(1_000, 0)) == 1_024
    for peers in (100, 1_000, 10_000, 100_000, 1_000_000):
        assert any(options.peers == peers and options.loss for _, options in cells)
        assert any(options.peers == peers and options.churn for _, options in cells)
