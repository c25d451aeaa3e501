"""The mean of a group by its coordinator, compared with exact sums, and the updates that it must not contain."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpeer.gossip.averaging import Averaging
from fedpeer.peer.consensus.capability import Capability
from fedpeer.peer.consensus.means import mean_result, patience_in, spec_of
from fedpeer.peer.state.events import AggregateUpdates
from fedpeer.peer.wire.leaf_bytes import split_leaves
from fedpeer.peer.wire.mean_bytes import mean_from_bytes, update_of, values_of
from fedpeer.peer.wire.tails import content_digest
from fedpeer.topology.graphs import complete
from fedpeer.topology.overlay import overlay

NUMBERS = st.floats(-1e6, 1e6, width=32)
SPEC = spec_of(torch.tensor([1.0, 2.0, 3.0]), weight_max=10.0, patience=0.5)


@settings(max_examples=25)
@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=NUMBERS),
    st.lists(st.floats(0.5, 1e6), min_size=6, max_size=6),
)
def test_the_mean_is_that_of_exact_sums(values_MD: np.ndarray, weights: list[float]) -> None:
    updates = [update_of(w, torch.from_numpy(row)) for w, row in zip(weights, values_MD, strict=False)]
    found_D = values_of(mean_from_bytes(updates), values_MD.shape[1])
    whole = math.fsum(weights[: len(updates)])
    for place, found in enumerate(found_D.tolist()):
        terms = [w * float(row[place]) for w, row in zip(weights, values_MD, strict=False)]
        slack = 1e-7 * math.fsum(map(abs, terms)) / whole
        assert found == pytest.approx(math.fsum(terms) / whole, rel=1e-7, abs=slack + 1e-40)


def test_the_mean_is_summed_in_float64() -> None:
    """In float32 the small values would be lost beside the large ones, which cancel."""
    values = [2.0**24, 1.0, 1.0, -(2.0**24)]
    assert values_of(mean_from_bytes([update_of(1.0, torch.tensor([each])) for each in values]), 1).tolist() == [0.5]


def test_examples_weigh() -> None:
    updates = [update_of(30.0, torch.tensor([1.0, 0.0])), update_of(10.0, torch.tensor([5.0, 8.0]))]
    assert values_of(mean_from_bytes(updates), 2).tolist() == [2.0, 2.0]


def test_the_largest_numbers_have_a_mean() -> None:
    most = torch.finfo(torch.float32).max
    assert values_of(mean_from_bytes([update_of(1e12, torch.tensor([most]))] * 3), 1).tolist() == [most]


def test_it_is_what_the_matrix_of_a_coordinator_gives() -> None:
    drawn = overlay(complete, ["a", "b", "c"], np.random.default_rng(0))
    policy = Averaging.of(drawn, "coordinator", exchanges=1, draws=lambda round, at: np.random.default_rng(0))
    values_MD, weights_M = np.array([[1.0, 2.0], [3.0, 7.0], [-4.0, 0.5]]), np.array([3.0, 1.0, 2.0])
    matrix = np.asarray(policy.matrix(0) @ np.eye(3))
    expected_D = (matrix @ (weights_M[:, None] * values_MD))[0] / (matrix @ weights_M)[0]
    updates = [update_of(w, torch.tensor(row).float()) for w, row in zip(weights_M, values_MD, strict=True)]
    assert values_of(mean_from_bytes(updates), 2).numpy() == pytest.approx(expected_D, rel=1e-6)


def test_a_round_ends_with_its_mean_and_who_counted() -> None:
    updates = {"a": update_of(1.0, torch.tensor([1.0])), "c": update_of(1.0, torch.tensor([2.0]))}
    done = mean_result(AggregateUpdates(3, 7, b"", {"a": 6, "b": 5}, updates, ("a", "b", "c"), group="left"))
    assert (done.term, done.round, done.group) == (3, 7, "left")
    assert done.content is not None
    assert done.digest == content_digest(done.content)
    assert split_leaves(done.content, 4) == ({"a": 7, "b": 5, "c": 7}, np.float32(1.5).tobytes())


@pytest.mark.parametrize(
    ("update", "code"),
    [
        (update_of(1.0, torch.ones(3)), None),
        (update_of(10.0, torch.ones(3)), None),
        (update_of(10.1, torch.ones(3)), "bad_weight"),
        (update_of(0.0, torch.ones(3)), "bad_weight"),
        (update_of(-1.0, torch.ones(3)), "bad_weight"),
        (update_of(math.nan, torch.ones(3)), "bad_weight"),
        (update_of(math.inf, torch.ones(3)), "bad_weight"),
        (update_of(1.0, torch.tensor([0.0, math.nan, 0.0])), "not_finite"),
        (update_of(1.0, torch.tensor([0.0, 0.0, -math.inf])), "not_finite"),
    ],
)
def test_what_is_wrong_with_an_update_has_a_name(update: bytes, code: str | None) -> None:
    assert len(update) == SPEC.update_bytes
    fault = SPEC.fault(update)
    assert (None if fault is None else fault.code) == code


def test_a_mean_is_made_of_numbers() -> None:
    assert SPEC.sound(torch.ones(3).numpy().tobytes())
    assert not SPEC.sound(torch.tensor([1.0, math.nan, 1.0]).numpy().tobytes())
    assert SPEC.server == torch.tensor([1.0, 2.0, 3.0]).numpy().tobytes()


def test_among_equals_each_group_has_another_one_who_stands_first() -> None:
    members = [f"peer{number}" for number in range(1, 11)]
    first = Counter(
        min(members, key=lambda me: patience_in(f"group {group}", me, members, 0.9)) for group in range(200)
    )
    assert len(first) == len(members)
    assert max(first.values()) < 60, "about twenty each"
    waits = sorted(patience_in("group", me, members, 0.9) for me in members)
    assert waits[0] < waits[1] == waits[-1] <= 1.0


def test_who_has_an_accelerator_stands_before_who_has_none() -> None:
    members = [f"peer{number}" for number in range(1, 11)]
    slow, fast = (Capability(examples=100, accelerator=has).patience for has in (False, True))
    assert all(
        patience_in("group", one, members, fast) <= patience_in("group", other, members, slow) + 1e-12
        for one in members
        for other in members
    )
