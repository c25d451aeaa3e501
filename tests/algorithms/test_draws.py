"""Streams of random numbers: the name alone determines the stream."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.algorithms.draws import Draws, branch, guarded

#: (seed, purpose, peer, round)
NAMES = st.tuples(
    st.integers(0, 2**63 - 1),
    st.sampled_from(["order", "start", "dropout"]),
    st.text(max_size=5),
    st.integers(0, 10**6),
)


@given(NAMES, NAMES)
def test_a_key_is_its_name(a: tuple[int, str, str, int], b: tuple[int, str, str, int]) -> None:
    first, second = Draws(a[0]).key(*a[1:]), Draws(b[0]).key(*b[1:])
    assert (first == second) == (a == b)
    assert 0 <= first < 2**128


def test_the_parts_of_a_name_do_not_run_into_each_other() -> None:
    names = [
        ("order", "peer1", 11),
        ("order", "peer11", 1),
        ("1order", "peer1", 1),
        ("order", "", 1),
        ("order", "1", 0),
    ]
    assert len({Draws(seed).key(*name) for name in names for seed in (1, 11)}) == 10


def test_the_parts_of_what_a_key_names_have_keys_of_their_own() -> None:
    keys = [Draws(0).key("dropout", peer) for peer in ("peer1", "peer2")]
    branches = {branch(key, number) for key in keys for number in range(3)}
    assert len(branches | set(keys)) == 8
    assert all(0 <= key < 2**128 for key in branches)


def test_the_same_name_gives_the_same_numbers_whatever_was_drawn_before() -> None:
    draws = Draws(7)
    draws.numpy("order", "peer9").random(100)
    assert draws.numpy("order", "peer1", 3).random(5).tolist() == Draws(7).numpy("order", "peer1", 3).random(5).tolist()
    found = torch.rand(5, generator=draws.torch("start", "peer1"))
    assert torch.equal(found, torch.rand(5, generator=Draws(7).torch("start", "peer1")))


@pytest.mark.parametrize(
    "other", [Draws(1).numpy("a", "p", 2), Draws(0).numpy("b", "p", 2), Draws(0).numpy("a", "q", 2)]
)
def test_near_names_give_unrelated_streams(other: np.random.Generator) -> None:
    numbers = Draws(0).numpy("a", "p", 2).standard_normal(10_000)
    # Standard error of a correlation of 10,000 independent pairs: 0.01.
    assert abs(np.corrcoef(numbers, other.standard_normal(10_000))[0, 1]) < 0.05


def test_torch_streams_of_near_rounds_are_unrelated() -> None:
    rows = torch.stack([torch.randn(10_000, generator=Draws(0).torch("start", "", number)) for number in range(4)])
    assert float((torch.corrcoef(rows) - torch.eye(4)).abs().max()) < 0.05


def test_guarded_seeds_inside_and_restores_the_global_generator() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    with guarded(123 << 70):
        first = torch.rand(3)
    assert torch.equal(torch.rand(3), wanted)
    with guarded(123 << 70):
        assert torch.equal(torch.rand(3), first)
    with guarded(124 << 70):
        assert not torch.equal(torch.rand(3), first)


def test_guarded_draws_what_torch_draws_from_that_seed() -> None:
    with guarded(123 << 70):
        found = torch.rand(3)
    assert torch.equal(found, torch.rand(3, generator=torch.Generator().manual_seed(123 << 5)))


def test_guarded_restores_after_an_error_too() -> None:
    before = torch.get_rng_state()
    with pytest.raises(KeyError), guarded(1):
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)
