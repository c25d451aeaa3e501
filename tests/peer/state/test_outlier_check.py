"""Outlier check by a peer's own training: a liar moves an average only within bounds, and honest peers are accepted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedpeer.gossip.mass import Mass
from fedpeer.peer.state.outlier_check import FACTOR, LENGTHS, RISE, STEPS, OutlierCheck, length_of

D = 10


def toward(length: float) -> torch.Tensor:
    """Return a vector of this length, always in the same direction."""
    vector_D = torch.zeros(D, dtype=torch.float64)
    vector_D[0] = length
    return vector_D


def refusal(reach: OutlierCheck, value_D: torch.Tensor, estimate_D: torch.Tensor) -> tuple[str, str] | None:
    """Return the refusal of a share with one estimate by a peer with the other, whatever their weights are."""
    return reach.refusal(Mass.of(value_D, 0.25), Mass.of(estimate_D, 1.5))


def furthest(reach: OutlierCheck, estimate_D: torch.Tensor) -> torch.Tensor:
    """Return the furthest value that is accepted, in the direction in which the bound is largest."""
    length = float(estimate_D.norm())
    most = toward(min(reach.far, length + reach.near(length)) * (1 - 1e-12))
    assert refusal(reach, most, estimate_D) is None
    assert refusal(reach, 1.001 * most, estimate_D) is not None
    return most


#: First length of a model, length of an honest step, and exchanges in a round.
START, STEP, EXCHANGES = 3.0, 0.5, 10


def pulled(rounds: int, *, honest: int = 0, restart_every: int = 0) -> tuple[list[float], float]:
    """Return the lengths of the average after each round, and the upper bound of its length.

    In each exchange one liar sends three honest peers the furthest value that is accepted, as heavy as their own. The
    liar is honest for the first `honest` rounds.

    Training pulls back toward where the honest peers began; no step counts for more than the first one, so the measure
    does not grow, however far the liar pulls.
    """
    reach, estimate_D, lengths = OutlierCheck(start=START), toward(START), []
    for round in range(1, rounds + 1):
        back_D = estimate_D - toward(START)
        trained_D = estimate_D - back_D * 0.9 + toward(STEP)
        reach, estimate_D = reach.after(float((trained_D - estimate_D).norm()), round), trained_D
        for _ in range(EXCHANGES if round > honest else 0):
            estimate_D = 0.75 * estimate_D + 0.25 * furthest(reach, estimate_D)
        lengths.append(float(estimate_D.norm()))
        if restart_every and round % restart_every == 0:  # only the fields on the disk are left
            kept = {name: getattr(reach, name) for name in ("start", "first", "steps", "path", "away", "round")}
            reach = OutlierCheck(**kept)
    return lengths, reach.far


@pytest.mark.slow
@pytest.mark.parametrize("restart_every", [0, 7])
def test_a_liar_pulls_an_average_no_further_than_by_a_hundred_first_steps_a_round(restart_every: int) -> None:
    """Through all rounds of the best lie the length grows in a line; by an earlier measure it was infinite after 29."""
    rounds = 200
    lengths, far = pulled(rounds, restart_every=restart_every)
    ceiling = [LENGTHS * START + FACTOR * STEP * round for round in range(1, rounds + 1)]
    assert all(length <= most * (1 + 1e-9) for length, most in zip(lengths, ceiling, strict=True))
    assert far == pytest.approx(LENGTHS * START + FACTOR * STEP * rounds)
    growth = np.diff(lengths)
    assert growth.max() <= 2 * FACTOR * STEP * EXCHANGES
    at = ", ".join(f"after {round} rounds {lengths[round - 1]:.0f}" for round in (100, rounds))
    print(f"{at}, of at most {far:.0f}; began with {START:g}, steps of {STEP:g}")


@pytest.mark.slow
def test_after_honest_training_a_liar_pulls_an_average_by_what_training_moved_of_late() -> None:
    """Training has come to rest, and no lie counts as training: an average is pulled to its bound at once, and from
    there by at most two first steps per round, not by a hundred, in the first 100 rounds of lies."""
    honest, lies = 1000, 100
    lengths, _ = pulled(honest + lies, honest=honest)
    rested, leapt, after = lengths[honest - 1], lengths[honest + 9], lengths[honest + 99]
    growth = np.diff(lengths[honest + 9 : honest + 100])
    print(f"came to rest at {rested:.1f}; after 10 rounds of lies {leapt:.0f}, after 100 {after:.0f}")
    assert growth.max() <= 2 * STEP


def test_no_step_counts_for_much_more_than_those_before() -> None:
    reach = OutlierCheck(start=1.0)
    for round in range(1, 31):
        reach = reach.after(0.5 if round <= 10 else 0.05, round)
    for round in range(31, 131):
        reach = reach.after(9.0, round)
        assert max(reach.steps) <= 0.05 * RISE**round
    assert reach.steps[-1] < 0.1, "after a hundred rounds of long steps"
    for round in range(131, 181):
        reach = reach.after(0.0, round)
    for round in range(181, 281):
        reach = reach.after(9.0, round)
    assert 0.5 / FACTOR < reach.steps[-1] < 0.1, "who stood still is not deaf for good"


def test_before_the_first_training_what_it_came_in_with_counts() -> None:
    reach = OutlierCheck(start=START)
    assert refusal(reach, toward(2 * START), toward(START)) is None
    found = refusal(reach, toward(FACTOR * START * 1.1), toward(START))
    assert found is not None
    assert found[0] == "out_of_reach"
    found = refusal(reach, toward(FACTOR * FACTOR * START * 1.1), toward(START))
    assert found is not None
    assert found[0] == "implausible"


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@example(0, 5.0, "warm-up")  # the other's steps are as long as they may be
@example(0, 5.0, "faster")
@example(0, 5.0, "rest")
@given(st.integers(0, 2**32), st.floats(1.0, 5.0), st.sampled_from(["warm-up", "faster", "rest"]))
def test_an_honest_neighbor_is_taken_when_steps_become_longer(seed: int, heavier: float, why: str) -> None:
    """Steps become longer by a learning rate that warms up from a hundredth, by one that is raised tenfold after 200
    rounds, or by new data after training has come to rest. The other peer's steps are up to five times as long as this
    one's.
    """
    draws = np.random.default_rng(seed)
    one_D = torch.from_numpy(draws.normal(size=D))
    one_D *= START / float(one_D.norm())
    reach, mean_D = OutlierCheck(start=START), one_D
    for round in range(1, 301):
        pace = {
            "warm-up": min(1.0, round / 100),
            "faster": 0.1 if round <= 200 else 1.0,
            "rest": 0.0 if 100 < round <= 200 else 1.0,
        }[why]
        step_D = torch.from_numpy(draws.normal(size=D))
        step_D *= 0.1 * START * pace / float(step_D.norm())
        reach = reach.after(float(step_D.norm()), round)
        one_D, other_D = mean_D + step_D, mean_D + heavier * step_D
        assert refusal(reach, other_D, one_D) is None
        mean_D = (one_D + other_D) / 2


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@example(0, 1.0, 1, 200, 20.0)  # away for as long as it may be, after one round
@example(0, 1.0, 60, 200, 20.0)
@given(
    st.integers(0, 2**32),
    st.floats(0.01, 100.0),
    st.integers(1, 60),
    st.integers(0, 200),
    st.floats(0.05, 20.0),
)
def test_an_honest_neighbor_is_taken_whatever_its_data_and_wherever_this_peer_was(
    seed: int, start: float, together: int, apart: int, heavier: float
) -> None:
    """Both train by steps of varying lengths that become shorter, the other peer's `heavier` times as long; then this
    peer is cut off for `apart` rounds, and receives a share of the other when it has trained once more."""
    draws = np.random.default_rng(seed)
    one_D = torch.from_numpy(draws.normal(size=D))
    one_D *= start / float(one_D.norm())
    other_D, reach = one_D.clone(), OutlierCheck(start=start)
    length = start * float(draws.uniform(0.01, 1.0))
    for round in range(1, together + 1):
        step_D = torch.from_numpy(draws.normal(size=D))
        step_D *= length * float(draws.uniform(0.5, 1.0)) / round**0.5 / float(step_D.norm())
        reach = reach.after(float(step_D.norm()), round)
        mean_D = (one_D + step_D + other_D + heavier * step_D) / 2
        one_D, other_D = one_D + step_D, other_D + heavier * step_D
        assert refusal(reach, other_D, one_D) is None
        one_D = other_D = mean_D
    alone_RD = torch.from_numpy(draws.normal(size=(apart, D)))
    rounds_R1 = torch.arange(together + 1, together + apart + 1, dtype=torch.float64)[:, None]
    other_D = other_D + (alone_RD * (heavier * length / rounds_R1.sqrt() / alone_RD.norm(dim=1, keepdim=True))).sum(0)
    last = length / (together + apart + 1) ** 0.5
    reach = reach.after(last, together + apart + 1)
    assert refusal(reach, other_D, one_D) is None


def test_steps_count_no_more_than_the_first_and_the_last_ten() -> None:
    reach = OutlierCheck(start=1.0)
    for round, step in enumerate([0.5, *[9.0] * 20], start=1):
        reach = reach.after(step, round)
    assert reach.first == 0.5
    assert reach.steps == (0.5,) * STEPS
    assert reach.path == pytest.approx(0.5 * 21)
    assert reach.after(0.1, 31).path == pytest.approx(reach.path + 0.1 + 9 * 0.5), "rounds that were missed"


def test_what_begins_with_zeros_is_as_long_as_its_part_of_the_whole() -> None:
    whole_n = torch.cat([torch.zeros(4), torch.ones(12)])
    assert length_of(whole_n[:4], whole_n) == pytest.approx((12 * 4 / 16) ** 0.5)
    assert length_of(whole_n[4:], whole_n) == pytest.approx(12**0.5)
