"""The metrics against sums by hand, example by example."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference.metrics import final_and_best, over_clients, pooled, scores


@st.composite
def clients_tested(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw (server's right answers, own right answers, examples) of each client; at least one client has examples."""
    sizes = [draw(st.integers(1, 40)), *draw(st.lists(st.integers(0, 40), max_size=5))]
    return [(draw(st.integers(0, size)), draw(st.integers(0, size)), size) for size in sizes]


@settings(deadline=None)
@given(clients_tested())
def test_each_score_example_by_example_or_client_by_client(clients: list[tuple[int, int, int]]) -> None:
    server, own, sizes = (torch.tensor(each) for each in zip(*clients, strict=True))
    found = scores(server, own, sizes)
    examples = [(i < s, i < o) for s, o, size in clients for i in range(size)]
    assert found.s == pytest.approx(sum(s for s, _ in examples) / len(examples))
    assert found.mt == pytest.approx(sum(o for _, o in examples) / len(examples))
    each = [(s / size, o / size) for s, o, size in clients if size]
    assert found.gm == pytest.approx(sum(s for s, _ in each) / len(each))
    assert found.pm == pytest.approx(sum(o for _, o in each) / len(each))


@settings(deadline=None)
@given(st.integers(1, 50), st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_both_means_agree_where_test_parts_are_of_one_size(size: int, right: list[int]) -> None:
    right_J = torch.tensor(right).clamp(max=size)
    size_J = torch.full_like(right_J, size)
    assert pooled(right_J, size_J) == pytest.approx(over_clients(right_J, size_J))


def test_nobody_tested_is_no_score() -> None:
    nobody = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(AssertionError, match="nobody was tested"):
        scores(nobody, nobody, nobody)


def test_final_and_best_are_two_columns_and_each_metric_has_its_own_best_round() -> None:
    s, mt = [0.2, 0.9, 0.5], [0.8, 0.1, 0.6]
    assert final_and_best(s) == (0.5, 0.9)
    assert final_and_best(mt) == (0.6, 0.8)
