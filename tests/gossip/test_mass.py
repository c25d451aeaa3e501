"""Single exchanges: nothing is lost, the mass that travels is the mass debited, and the average is the true one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedpeer.gossip.mass import Mass
from fedpeer.gossip.push_sum import absorb
from tests.reference import push_pull
from tests.reference.exact import disagreement, variance, weighted_mean
from tests.reference.push_sum import receive, share_of

WIRES = [torch.float64, torch.float32, torch.bfloat16]


def values(peers: int, length: int, seed: int) -> Tensor:
    return torch.randn(peers, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def total(masses: list[Mass]) -> Mass:
    return sum(masses[1:], masses[0])


acts = st.lists(
    st.tuples(
        st.sampled_from(["send", "arrive", "lose", "meet"]), st.integers(0, 99), st.integers(0, 99), st.floats(0.01, 1)
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(schedule=acts, wire=st.sampled_from(WIRES), seed=st.integers(0, 999))
def test_held_and_under_way_never_change_whatever_happens(
    schedule: list[tuple[str, int, int, float]], wire: torch.dtype, seed: int
) -> None:
    peers = [Mass.of(value_D) for value_D in values(4, 3, seed)]
    begun, flight = total(peers), list[tuple[int, int, Mass]]()
    for act, a, b, fraction in schedule:
        i, j = a % 4, b % 4
        if act == "send" and peers[i].weight > 1e-6:
            peers[i], sent = share_of(peers[i], fraction / 2, wire=wire)
            flight.append((i, j, sent))
        elif act == "meet" and i != j:
            peers[i], peers[j] = push_pull.exchange(peers[i], peers[j], wire=wire)
        elif flight and act != "send":
            source, target, sent = flight.pop(a % len(flight))
            owner = source if act == "lose" else target
            peers[owner] = receive(peers[owner], sent)
        now = total([*peers, *(sent for *_, sent in flight)])
        torch.testing.assert_close(now.value_D, begun.value_D, atol=1e-13, rtol=0)
        torch.testing.assert_close(now.weight, begun.weight, atol=1e-13, rtol=0)


@pytest.mark.parametrize("wire", WIRES)
def test_what_is_debited_is_what_travels(wire: torch.dtype) -> None:
    held = Mass.of(values(1, 50, 0)[0], 1.7)
    kept, sent = share_of(held, 0.3, wire=wire)
    assert torch.equal(sent.value_D, sent.value_D.to(wire).to(torch.float64)), "the receiver gets these very numbers"
    torch.testing.assert_close(kept.value_D + sent.value_D, held.value_D, atol=1e-15, rtol=0)
    torch.testing.assert_close(sent.value_D, 0.3 * held.value_D, atol=0, rtol=torch.finfo(wire).eps)


def test_copies_are_equal_shares_of_what_was_held_at_first() -> None:
    held = Mass.of(values(1, 5, 1)[0], 2.0)
    kept, sent = share_of(held, 0.25, copies=3)
    torch.testing.assert_close(sent.value_D, held.value_D / 4)
    torch.testing.assert_close(kept.value_D, held.value_D / 4)
    assert (float(kept.weight), float(sent.weight)) == (0.5, 0.5)


@pytest.mark.parametrize("weight", [1.0, 1e-6, 37.5])
def test_training_moves_the_estimate_by_what_was_trained_and_keeps_what_arrived(weight: float) -> None:
    start_D, change_D, other_D = values(3, 6, 2)
    held = Mass.of(start_D, weight)
    arrived = Mass.of(other_D, 0.5 * weight)
    after = absorb(receive(held, arrived), start_D, start_D + change_D)
    without = receive(held, arrived)
    torch.testing.assert_close(after.estimate_D, without.estimate_D + change_D)
    assert after.weight == without.weight


def test_many_peers_at_once_are_each_one_alone() -> None:
    estimate_PD, weight_P = values(4, 3, 3), torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64)
    start_PD, trained_PD = values(4, 3, 4), values(4, 3, 5)
    together = absorb(Mass.of(estimate_PD, weight_P), start_PD, trained_PD)
    kept, sent = share_of(together, 0.25, copies=2, wire=torch.float32)
    for p in range(4):
        alone = absorb(Mass.of(estimate_PD[p], weight_P[p]), start_PD[p], trained_PD[p])
        for one, row in zip(share_of(alone, 0.25, copies=2, wire=torch.float32), (kept, sent), strict=True):
            assert torch.equal(one.value_D, row.value_D[p])
            assert torch.equal(one.weight, row.weight[p])


def test_a_meeting_answers_with_what_was_held_before() -> None:
    mine, theirs = Mass.of(torch.tensor([8.0])), Mass.of(torch.tensor([0.0]))
    kept, request = push_pull.request(mine)
    merged, answer = push_pull.respond(theirs, request)
    assert (float(merged.estimate_D), float(receive(kept, answer).estimate_D)) == (4.0, 4.0)


def test_the_exact_mean_is_weighted() -> None:
    mass_PD = Mass.of(torch.tensor([[0.0, 1.0], [4.0, 5.0]]), torch.tensor([3.0, 1.0], dtype=torch.float64))
    assert weighted_mean(mass_PD).tolist() == [1.0, 2.0]


def test_spread_of_known_values() -> None:
    estimate_PD = torch.tensor([[3.0, 4.0], [-3.0, -4.0]])
    assert variance(estimate_PD) == 25.0
    assert disagreement(estimate_PD) == 1.0
    assert disagreement(torch.ones(5, 3)) == 0.0
    assert disagreement(torch.zeros(5, 3)) == 0.0
    assert disagreement(torch.tensor([[101.0], [99.0]])) == pytest.approx(0.01, rel=1e-4)


def test_our_own_mistakes_stop_at_once() -> None:
    held = Mass.of(torch.zeros(3))
    with pytest.raises(AssertionError, match="no one can give more"):
        share_of(held, 0.6, copies=2)
    with pytest.raises(AssertionError, match="float64"):
        Mass(torch.zeros(3), torch.tensor(1.0, dtype=torch.float64))


@given(seed=st.integers(0, 999), one=st.floats(1e-6, 1e3), other=st.floats(1e-6, 1e3))
def test_distance_and_length_are_those_of_the_estimates(seed: int, one: float, other: float) -> None:
    a_D, b_D = values(2, 7, seed)
    a, b = Mass.of(a_D, one), Mass.of(b_D, other)
    assert a.distance(b) == pytest.approx(float((a.estimate_D - b.estimate_D).norm()), rel=1e-9)
    assert a.length == pytest.approx(float(a_D.norm()), rel=1e-12)
