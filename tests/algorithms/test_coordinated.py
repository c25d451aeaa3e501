"""The means that close a round: exact weights, float64, and the same bits for every order of arrival."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import Tensor

from fedpeer.algorithms.coordinated import in_peer_order, uniform_mean, weighted_mean

NUMBERS = some.floats(-1e6, 1e6, width=32)
ROWS = some.lists(some.tuples(NUMBERS, some.integers(1, 10**6)), min_size=1, max_size=12)


@dataclass(frozen=True)
class Sent:
    model_n: Tensor
    examples: Tensor


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


@given(some.permutations(range(7)), some.integers(0, 9))
def test_the_order_of_arrival_decides_no_bit(arrival: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sent = {
        f"peer{k}": Sent(torch.randn(5, generator=generator) * 10**k, torch.tensor(k + 1)) for k in range(len(arrival))
    }
    shuffled = in_peer_order({f"peer{k}": sent[f"peer{k}"] for k in arrival})
    for rows, name in ((shuffled.model_n, "model_n"), (shuffled.examples, "examples")):
        assert torch.equal(rows, torch.stack([getattr(each, name) for each in sent.values()]))
    found = weighted_mean(shuffled.model_n, shuffled.examples)
    assert torch.equal(found, weighted_mean(in_peer_order(sent).model_n, in_peer_order(sent).examples))
