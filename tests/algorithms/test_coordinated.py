"""The means that close a round: exact weights, summed in float64."""

from __future__ import annotations

from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as some

from fedpeer.algorithms.coordinated import uniform_mean, weighted_mean

NUMBERS = some.floats(-1e6, 1e6, width=32)
ROWS = some.lists(some.tuples(NUMBERS, some.integers(1, 10**6)), min_size=1, max_size=12)


@given(ROWS)
def test_the_weighted_mean_is_the_fraction_rounded(rows: list[tuple[float, int]]) -> None:
    values_K1 = torch.tensor([[value] for value, _ in rows], dtype=torch.float64)
    weights_K = torch.tensor([weight for _, weight in rows])
    exact = sum(Fraction(value) * weight for value, weight in rows) / sum(weight for _, weight in rows)
    largest = max(abs(value) for value, _ in rows)
    assert abs(weighted_mean(values_K1, weights_K).item() - float(exact)) <= 1e-14 * largest
    assert abs(uniform_mean(values_K1).item() - float(values_K1.mean())) <= 1e-14 * largest


def test_float32_models_are_summed_in_float64() -> None:
    values_K1 = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])
    found = weighted_mean(values_K1, torch.ones(4))
    assert found.dtype == torch.float32
    assert found.item() == 0.5
