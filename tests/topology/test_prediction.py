"""The predicted number of exchanges suffices, and fewer do not."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from fedpeer.topology.graphs import TopologyError
from fedpeer.topology.mixing import Protocol, effective_matrix, push_sum_matrix
from fedpeer.topology.overlay import Overlay
from fedpeer.topology.prediction import contraction, predicted_rounds, relative_disagreement
from tests.reference.mixing import second_modulus
from tests.topology.test_graphs import NAMES, made
from tests.topology.test_mixing import keyed

TOLERANCE = 1e-4


def worst_left(drawn: Overlay, exchanges: int, first: int = 0) -> float:
    """Return the largest ||z - mean|| / ||x - mean|| over all starts: every unit start run with values and weights."""
    count = len(drawn.members)
    matrices = [push_sum_matrix(phase).toarray() for phase in drawn.phases]
    value, weight = np.eye(count), np.ones((count, 1))
    for exchange in range(first, first + exchanges):
        matrix = matrices[exchange % len(matrices)]
        value, weight = matrix @ value, matrix @ weight
    return float(np.linalg.svd(value / weight - 1 / count, compute_uv=False)[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [2, 3, 8, 13, 16])
def test_push_sum_suffices_from_every_phase_and_one_less_does_not(name: str, count: int) -> None:
    drawn = made(name, count)
    needed = predicted_rounds(drawn, "push-sum", TOLERANCE)
    phases = range(len(drawn.phases))
    assert all(worst_left(drawn, needed, first) <= TOLERANCE * (1 + 1e-9) for first in phases)
    assert any(worst_left(drawn, needed - 1, first) > TOLERANCE for first in phases)


def test_closed_forms() -> None:
    assert predicted_rounds(made("k-regular", 1), "push-sum", TOLERANCE) == 0
    assert predicted_rounds(made("complete", 9), "push-sum", TOLERANCE) == 1
    assert predicted_rounds(made("ring", 9), "exact", TOLERANCE) == 1
    assert predicted_rounds(made("ring", 2), "push-pull", TOLERANCE) == 1
    assert predicted_rounds(made("one-peer-exponential", 32), "push-sum", 1e-12) == 5
    second = (1 + 2 * np.cos(2 * np.pi / 12)) / 3
    assert predicted_rounds(made("ring", 12), "push-sum", TOLERANCE) == np.ceil(np.log(TOLERANCE) / np.log(second))


def test_disagreement_of_nothing_done_and_of_the_mean() -> None:
    assert relative_disagreement(np.eye(5)) == pytest.approx(1)
    assert relative_disagreement(np.full((5, 5), 0.2)) == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ring", "k-regular", "star", "one-peer-exponential"])
def test_push_pull_suffices_in_root_mean_square(name: str) -> None:
    """The prediction is an upper bound: the mean square of what is left, over many matchings, is below tolerance^2."""
    drawn = made(name, 6)
    needed = predicted_rounds(drawn, "push-pull", 1e-2)
    assert _mean_square_left(drawn, needed) <= 1e-4
    assert _mean_square_left(drawn, needed // 5) > 1e-4, "the bound is not off by a factor of five"


def _mean_square_left(drawn: Overlay, exchanges: int) -> float:
    """Return the mean over matchings and starts: ||T - mean||_F^2 / (P - 1) is the mean over isotropic starts."""
    count = len(drawn.members)
    products = [effective_matrix(drawn, "push-pull", exchanges, first=0, draws=keyed(seed)) for seed in range(20)]
    return float(np.mean([np.linalg.norm(product - 1 / count) ** 2 / (count - 1) for product in products]))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [96, pytest.param(90, marks=pytest.mark.soak)])
def test_above_the_dense_limit_the_gap_gives_nearly_the_same(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = made(name, count)
    exact = predicted_rounds(drawn, "push-sum", TOLERANCE)
    prediction = importlib.import_module("fedpeer.topology.prediction")
    monkeypatch.setattr(prediction, "DENSE_MEMBERS_MAX", 10)
    estimate = predicted_rounds(drawn, "push-sum", TOLERANCE)
    # the estimate counts whole periods, and is a little high on graphs of unequal degrees
    assert exact <= estimate <= 1.6 * exact + len(drawn.phases)


@pytest.mark.parametrize("name", NAMES)
def test_contraction_is_the_second_modulus_of_one_period(name: str) -> None:
    drawn = made(name, 23)
    period = effective_matrix(drawn, "push-sum", len(drawn.phases), first=0, draws=keyed(0))
    assert contraction(drawn) == pytest.approx(second_modulus(period), abs=1e-7)


@pytest.mark.slow
def test_what_nobody_wants_to_wait_for_is_refused_with_a_way_out() -> None:
    with pytest.raises(TopologyError, match=r"300 peers .* more than 10000 exchanges .* choose a better connected"):
        predicted_rounds(made("ring", 300), "push-sum", TOLERANCE)
    with pytest.raises(TopologyError, match="more than 10000"):
        predicted_rounds(made("ring", 2000), "push-sum", TOLERANCE)
    with pytest.raises(TopologyError, match="tolerance = 1e-15: write a number from 1e-12 to below 1"):
        predicted_rounds(made("ring", 3), "push-sum", 1e-15)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", ["push-sum", "push-pull", "exact"])
def test_a_bound_is_the_number_unless_fewer_suffice(name: str, protocol: Protocol) -> None:
    drawn = made(name, 9)
    unbounded = predicted_rounds(drawn, protocol, TOLERANCE)
    for most in (1, 3, 4, 500):
        assert predicted_rounds(drawn, protocol, TOLERANCE, most=most) == min(unbounded, most)


@pytest.mark.slow
def test_with_a_bound_no_graph_is_refused() -> None:
    assert predicted_rounds(made("ring", 300), "push-sum", TOLERANCE, most=4) == 4
    assert predicted_rounds(made("ring", 2000), "push-sum", TOLERANCE, most=4) == 4
