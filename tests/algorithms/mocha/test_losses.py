"""The losses against their definitions: conjugates, slopes, and the minimum over one dual variable."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.algorithms.mocha.losses import SQUARED, DualLoss, coordinate
from tests.algorithms.mocha.problem_factory import LOSSES

SIGNS = st.sampled_from([-1.0, 1.0])
MARGINS = st.floats(-20, 20)


def one(number: float) -> torch.Tensor:
    return torch.tensor([number], dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@given(y=SIGNS, z=MARGINS)
@settings(max_examples=40, deadline=None)  # the first example compiles
def test_the_conjugate_meets_the_loss_where_alpha_is_minus_the_slope(loss: DualLoss, y: float, z: float) -> None:
    """Fenchel and Young: loss(z) + conjugate(-alpha) + alpha z is 0 for alpha = -slope(z)."""
    alpha_S = -loss.slope(one(z), one(y))
    total = loss.value(one(z), one(y)) + loss.conjugate(alpha_S, one(y)) + alpha_S * z
    assert abs(total.item()) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@given(y=SIGNS, z=MARGINS, b=st.floats(0, 1))
@settings(max_examples=40, deadline=None)  # the first example compiles
def test_and_is_never_below_zero_elsewhere(loss: DualLoss, y: float, z: float, b: float) -> None:
    total = loss.value(one(z), one(y)) + loss.conjugate(one(y * b), one(y)) + y * b * z
    assert total.item() > -1e-12


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_slopes_are_those_of_finite_differences(loss: DualLoss) -> None:
    z_S = torch.linspace(-3, 3, 41, dtype=torch.float64) + 0.011  # off the corners
    for y in (-1.0, 1.0):
        y_S = torch.full_like(z_S, y)
        numeric_S = (loss.value(z_S + 1e-6, y_S) - loss.value(z_S - 1e-6, y_S)) / 2e-6
        torch.testing.assert_close(loss.slope(z_S, y_S), numeric_S, atol=1e-7, rtol=0)


def test_values_by_hand() -> None:
    hinge, smooth, logistic, squared = (loss.value(one(0.75), one(1.0)).item() for loss in LOSSES)
    assert hinge == 0.25
    assert smooth == 0.25**2 / (2 * 0.5)
    assert logistic == pytest.approx(np.log1p(np.exp(-0.75)), rel=1e-15)
    assert squared == 0.25**2 / 2
    assert LOSSES[1].value(one(-1.0), one(1.0)).item() == 2 - 0.5 / 2


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss is not SQUARED], ids=lambda loss: loss.name)
@pytest.mark.parametrize("b", [-1e-9, 1 + 1e-9])
def test_dual_variables_out_of_bounds_cost_infinitely_much(loss: DualLoss, b: float) -> None:
    assert torch.isinf(loss.conjugate(one(-b), one(-1.0))).item()


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@given(y=SIGNS, b=st.floats(0, 1), score=MARGINS, curvature=st.one_of(st.just(0.0), st.floats(1e-3, 1e3)))
@settings(max_examples=40, deadline=None)  # the first example compiles
def test_no_other_alpha_is_better_than_that_of_a_coordinate_step(
    loss: DualLoss, y: float, b: float, score: float, curvature: float
) -> None:
    alpha = y * b
    found = coordinate(loss.code, loss.smoothing, alpha, y, score, curvature)
    others = y * np.linspace(-30, 30, 601) if loss is SQUARED else y * np.linspace(0, 1, 501)
    near = found + np.array([-1e-5, 0, 1e-5])
    tried_S = torch.from_numpy(np.concatenate([others, near]))
    objective_S = (
        loss.conjugate(tried_S, torch.full_like(tried_S, y))
        + (tried_S - alpha) * score
        + curvature / 2 * (tried_S - alpha).square()
    )
    best = objective_S[-2]
    assert torch.isfinite(best)
    assert best <= objective_S.min() + 1e-10 * (1 + best.abs())


@pytest.mark.parametrize(("score", "curvature"), [(1e3, 1e8), (-1e3, 1e8), (-1e3, 0.0), (1e5, 1.0), (0.0, 1e12)])
def test_the_logistic_search_ends_at_a_root_however_steep(score: float, curvature: float) -> None:
    b = coordinate(1, 0.0, 0.3, 1.0, score, curvature)
    assert 0 <= b <= 1
    if 0 < b < 1:
        excess = np.log(b / (1 - b)) + score + curvature * (b - 0.3)
        assert abs(excess) < 1e-12 * (1 + abs(score) + curvature)


def test_an_example_without_features_gets_the_whole_of_its_label() -> None:
    for y in (-1.0, 1.0):
        assert coordinate(0, 0.0, 0.25 * y, y, 0.0, 0.0) == y
