"""Order of candidates: an accelerator decides; more memory, bandwidth or examples each put a peer earlier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.peer.consensus.capability import Capability
from fedpeer.peer.consensus.polls import ElectionTiming

USUAL = Capability(examples=500)


@pytest.mark.parametrize(
    "more", [{"accelerator": True}, {"memory": 2 * USUAL.memory}, {"bandwidth": 1000.0}, {"examples": 5000}]
)
def test_more_of_one_thing_stands_earlier(more: dict[str, Any]) -> None:
    assert replace(USUAL, **more).patience < USUAL.patience


anyone = st.builds(
    Capability,
    examples=st.integers(1, 10**9),
    memory=st.integers(1, 2**50),
    bandwidth=st.floats(1e-6, 1e9),
)


@given(anyone, anyone)
def test_an_accelerator_stands_before_all_without_one(one: Capability, other: Capability) -> None:
    assert 0 <= replace(one, accelerator=True).patience <= 0.5 <= other.patience <= 1


def test_what_tells_peers_apart_is_more_than_chance() -> None:
    """The candidate with more memory and bandwidth is nearly always first, whatever random numbers both draw."""
    timing, rng = ElectionTiming(), np.random.default_rng(1)
    strong = replace(USUAL, memory=2**37, bandwidth=10_000.0)
    weak = replace(USUAL, memory=2**30, bandwidth=1.0)
    strongs, weaks = (
        round(each.patience * timing.spread) + rng.integers(timing.jitter, size=1000) for each in (strong, weak)
    )
    assert np.mean(strongs < weaks) > 0.9
