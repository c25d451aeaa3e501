"""Robust rules against slow twins, closed forms, their guarantees for f liars, and attacks during learning."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from fedpeer.algorithms.byzantine import RobustError, check_liars
from fedpeer.algorithms.coordinated import uniform_mean
from fedpeer.algorithms.robust import (
    clip_centred,
    coordinate_median,
    finite_rows,
    krum_scores,
    mean_of_krum,
    mean_trimmed,
    select_krum,
    weiszfeld_median,
)

Rule = Callable[[Tensor, int], Tensor]
SEEDS = st.integers(0, 10_000)


def rules(radius: float = 1.0) -> dict[str, Rule]:
    """Return every rule, at its first round, as a function of updates (K, D) and the number of liars to tolerate."""
    before: list[Tensor] = []

    def clipping(updates_KD: Tensor, liars: int) -> Tensor:
        start_D = before[-1] if before else torch.zeros_like(updates_KD[0])
        before.append(clip_centred(updates_KD, start_D, radius=radius))
        return before[-1]

    return {
        "median": lambda updates_KD, liars: coordinate_median(updates_KD),
        "trimmed mean": lambda updates_KD, liars: mean_trimmed(updates_KD, trim=liars),
        "krum": lambda updates_KD, liars: select_krum(updates_KD, liars=liars),
        "multi-krum": lambda updates_KD, liars: mean_of_krum(updates_KD, liars=liars),
        "geometric median": lambda updates_KD, liars: weiszfeld_median(updates_KD),
        "centred clipping": clipping,
    }


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(1, 12))
def test_median_is_numpy_s(seed: int, peers: int) -> None:
    updates_KD = normal(peers, 5, seed=seed)
    np.testing.assert_allclose(coordinate_median(updates_KD), np.median(updates_KD, axis=0), rtol=1e-12)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(0, 4), st.integers(0, 5))
def test_trimmed_mean_is_scipy_s(seed: int, trim: int, more: int) -> None:
    peers = 2 * trim + 3 + more
    updates_KD = normal(peers, 5, seed=seed)
    wanted = scipy.stats.trim_mean(updates_KD.numpy(), (trim + 1e-6) / peers, axis=0)
    np.testing.assert_allclose(mean_trimmed(updates_KD, trim=trim), wanted, rtol=1e-12)


def slow_scores(rows: list[list[float]], liars: int) -> list[float]:
    """Return the scores as Blanchard et al. 2017, section 4, define them."""
    scores = []
    for i, one in enumerate(rows):
        others = [sum((a - b) ** 2 for a, b in zip(one, two, strict=True)) for j, two in enumerate(rows) if j != i]
        scores.append(sum(sorted(others)[: len(rows) - liars - 2]))
    return scores


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(0, 2), st.integers(0, 3))
def test_krum_and_multi_krum_as_they_read(seed: int, liars: int, more: int) -> None:
    updates_KD = normal(2 * liars + 3 + more, 4, seed=seed)
    scores = slow_scores(updates_KD.tolist(), liars)
    np.testing.assert_allclose(krum_scores(updates_KD, liars=liars), scores, rtol=1e-12)
    by_score = sorted(range(len(scores)), key=scores.__getitem__)
    assert torch.equal(select_krum(updates_KD, liars=liars), updates_KD[by_score[0]])
    for kept in range(1, len(updates_KD) - liars - 1):
        wanted = updates_KD[by_score[:kept]].mean(0)
        torch.testing.assert_close(mean_of_krum(updates_KD, liars=liars, kept=kept), wanted)


def test_of_equal_scores_krum_takes_the_first_peer() -> None:
    updates_KD = torch.tensor([[9.0], [0.0], [1.0], [2.0], [1.0]])
    assert krum_scores(updates_KD, liars=1).tolist() == [113.0, 2.0, 1.0, 2.0, 1.0]
    corners_KD = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    assert torch.equal(select_krum(corners_KD, liars=0), torch.zeros(2, dtype=torch.float64))


def test_krum_sees_small_differences_far_from_the_origin() -> None:
    updates_KD = 1e8 + torch.tensor([[0.0], [1e-4], [2e-4], [5e-3], [9e-3]], dtype=torch.float64)
    assert torch.equal(select_krum(updates_KD, liars=1), updates_KD[1])


def distances(at_D: Tensor, updates_KD: Tensor, weight_K: Tensor) -> float:
    return float((weight_K * torch.linalg.vector_norm(updates_KD - at_D, dim=1)).sum())


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(SEEDS, st.integers(1, 9), st.integers(1, 3))
def test_geometric_median_is_what_a_general_optimiser_finds(seed: int, peers: int, size: int) -> None:
    updates_KD, weight_K = normal(peers, size, seed=seed), normal(peers, seed=seed + 1).exp()
    found_D = weiszfeld_median(updates_KD, weight_K, tolerance=1e-9)
    twin = scipy.optimize.minimize(
        lambda at: distances(torch.from_numpy(at), updates_KD, weight_K),
        updates_KD.mean(0).numpy(),
        method="Nelder-Mead",  # takes no derivative, which does not exist at a row
        options={"xatol": 1e-7, "fatol": 1e-10, "maxiter": 2000},
    )
    least = min([float(twin.fun), *(distances(row_D, updates_KD, weight_K) for row_D in updates_KD)])
    assert distances(found_D, updates_KD, weight_K) <= least * (1 + 1e-6)


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0.5, 0.5]),  # a square: its middle
        ([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.1]], [0.0, 0.0]),  # an angle of more than 120 degrees: that corner
        ([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]], [0.5, 3**0.5 / 6]),  # equal sides: the centre
        ([[3.0, 1.0], [3.0, 1.0], [3.0, 1.0], [1e6, 0.0], [0.0, -1e6]], [3.0, 1.0]),  # most rows are one point
        ([[2.0, 5.0]], [2.0, 5.0]),
    ],
)
def test_geometric_medians_that_are_known(rows: list[list[float]], wanted: list[float]) -> None:
    found_D = weiszfeld_median(torch.tensor(rows, dtype=torch.float64), tolerance=1e-9)
    torch.testing.assert_close(found_D, torch.tensor(wanted, dtype=torch.float64), atol=1e-8, rtol=0)


def test_geometric_median_leaves_a_row_that_it_starts_on() -> None:
    """The median of the coordinates is the middle row, which is not the answer: its angle is less than 120 degrees."""
    updates_KD = torch.tensor([[0.0, 0.0], [0.5, 0.1], [1.0, 10.0]], dtype=torch.float64)
    assert torch.equal(coordinate_median(updates_KD), updates_KD[1])
    pull_KD = functional.normalize(updates_KD - weiszfeld_median(updates_KD, tolerance=1e-9), dim=1)
    torch.testing.assert_close(pull_KD.sum(0), torch.zeros(2, dtype=torch.float64), atol=1e-6, rtol=0)


def test_weights_of_the_geometric_median_are_copies_of_a_row() -> None:
    updates_KD, copies = normal(4, 3), [1, 3, 2, 2]
    repeated_KD = updates_KD.repeat_interleave(torch.tensor(copies), dim=0)
    found_D = weiszfeld_median(updates_KD, torch.tensor(copies), tolerance=1e-9)
    torch.testing.assert_close(found_D, weiszfeld_median(repeated_KD, tolerance=1e-9), atol=1e-7, rtol=0)
    half = torch.tensor([[0.0], [0.0], [0.0], [7.0]])
    assert weiszfeld_median(half, torch.tensor([1.0, 1.0, 1.0, 10.0])).item() == pytest.approx(7.0)


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(1, 8), st.floats(0.01, 10), st.integers(1, 4))
def test_centred_clipping_row_by_row(seed: int, peers: int, radius: float, steps: int) -> None:
    updates_KD, wanted_D = normal(peers, 3, seed=seed), normal(3, seed=seed + 1)
    found_D = clip_centred(updates_KD, wanted_D, radius=radius, steps=steps)
    for _ in range(steps):
        moved_D = torch.zeros(3, dtype=torch.float64)
        for row_D in updates_KD:
            length = float(torch.linalg.vector_norm(row_D - wanted_D))
            moved_D += (row_D - wanted_D) * (min(radius, length) / length if length else 1.0) / peers
        wanted_D = wanted_D + moved_D
    torch.testing.assert_close(found_D, wanted_D)


def test_a_wide_radius_is_the_plain_mean() -> None:
    updates_KD = normal(6, 3)
    torch.testing.assert_close(clip_centred(updates_KD, normal(3, seed=1), radius=1e9), updates_KD.mean(0))


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(SEEDS, st.integers(1, 3), st.sampled_from([1e-3, 1.0, 1e6, 1e150]), st.integers(1, 4))
def test_what_liars_can_do_is_bounded(seed: int, liars: int, size: float, steps: int) -> None:
    """Each rule keeps its guarantee for any values of f of 2 f + 3 rows."""
    honest_KD, lies_KD = normal(liars + 3, 4, seed=seed), size * normal(liars, 4, seed=seed + 1)
    other_KD = size * normal(liars, 4, seed=seed + 2)
    updates_KD = torch.cat((honest_KD, lies_KD))
    least_D, most_D = honest_KD.amin(0) - 1e-12, honest_KD.amax(0) + 1e-12
    for rule in ("median", "trimmed mean"):
        found_D = rules()[rule](updates_KD, liars)
        assert ((least_D <= found_D) & (found_D <= most_D)).all(), rule
    wide = float(torch.pdist(honest_KD).max())
    nearest = torch.cdist(select_krum(updates_KD, liars=liars)[None], honest_KD).min()
    # The score of the selected row is at most that of an honest row, whose K - f - 2 nearest rows may all be honest;
    # and one of the rows nearest to the selected row is honest.
    assert nearest <= (liars + 1) ** 0.5 * wide
    nearest = torch.cdist(mean_of_krum(updates_KD, liars=liars)[None], honest_KD).min()
    # Each kept row is near an honest row, and all honest rows are close together.
    assert nearest <= ((liars + 1) ** 0.5 + 1) * wide
    # The estimator has breakdown point 1/2: it stays within 2 (n - f) / (n - 2 f) times the honest rows' distance.
    centre_D = honest_KD.mean(0)
    reach = float(torch.linalg.vector_norm(honest_KD - centre_D, dim=1).max())
    found_D = weiszfeld_median(updates_KD)
    assert torch.linalg.vector_norm(found_D - centre_D) <= 2 * (liars + 3) / 3 * reach * (1 + 1e-6)
    clipped = [
        clip_centred(torch.cat((honest_KD, each)), centre_D, radius=0.5, steps=steps) for each in (lies_KD, other_KD)
    ]
    assert torch.linalg.vector_norm(clipped[0] - clipped[1]) <= 2 * steps * 0.5 * liars / len(updates_KD) + 1e-9


@pytest.mark.parametrize("rule", rules())
def test_rules_are_exact_in_float64_and_move_with_the_updates(rule: str) -> None:
    updates_KD = normal(9, 6)
    apply = rules(radius=1e3)[rule]
    found_D = apply(updates_KD, 2)
    assert apply(updates_KD.float(), 2).dtype == found_D.dtype == torch.float64
    torch.testing.assert_close(apply(updates_KD + 3, 2), found_D + 3, atol=1e-5, rtol=0)
    torch.testing.assert_close(apply(5 * updates_KD, 2), 5 * found_D, atol=1e-4, rtol=0)
    torch.testing.assert_close(apply(updates_KD.flip(0), 2), found_D, atol=1e-5, rtol=0)
    same_KD = updates_KD[:1].expand(9, 6)
    torch.testing.assert_close(apply(same_KD, 2), updates_KD[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("rule", rules())
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_no_rule_takes_what_is_not_finite(rule: str, wrong: float) -> None:
    updates_KD = normal(9, 3)
    updates_KD[4, 1] = wrong
    assert finite_rows(updates_KD).tolist() == [True] * 4 + [False] + [True] * 4
    with pytest.raises(AssertionError, match="refused before"):
        rules()[rule](updates_KD, 2)


@pytest.mark.parametrize("rule", ["trimmed mean", "krum", "multi-krum"])
def test_more_liars_than_a_rule_can_stand_are_the_user_s_mistake(rule: str) -> None:
    rules()[rule](normal(9, 2), 3)
    wanted = (
        r"liars = 4 needs 2 \* liars \+ 3 = 11 updates in a round, and there are 9; lower liars to 3, or let more peers"
    )
    with pytest.raises(RobustError, match=wanted):
        rules()[rule](normal(9, 2), 4)
    with pytest.raises(RobustError, match="write 0 or more"):
        rules()[rule](normal(9, 2), -1)


def test_what_else_cannot_be_is_said() -> None:
    with pytest.raises(RobustError, match="and there are 2; take the plain mean"):
        check_liars("the median", 2, 1)
    for kept in (0, 6):
        with pytest.raises(RobustError, match=f"kept = {kept}: write 1 to K - f - 2 = 5, for 9 updates"):
            mean_of_krum(normal(9, 2), liars=2, kept=kept)


# Learning under attack: softmax regression on data of one distribution; 4 of 11 peers lie and know the other updates.

PEERS, LIARS, F, C, ROUNDS = 11, 4, 6, 3, 12
#: Approximate distance of an honest update from the mean of all honest updates in the last rounds.
RADIUS = 0.1


def sign_flip(honest_KD: Tensor) -> Tensor:
    return -10 * honest_KD[:LIARS]


def constant(honest_KD: Tensor) -> Tensor:
    return torch.full_like(honest_KD[:LIARS], 1e6)


def not_a_number(honest_KD: Tensor) -> Tensor:
    return torch.full_like(honest_KD[:LIARS], torch.nan)


def a_little_is_enough(honest_KD: Tensor) -> Tensor:
    """Return updates as far from the mean as enough honest ones (Baruch, Baruch, Goldberg 2019, algorithm 3)."""
    supporters = PEERS // 2 + 1 - LIARS
    z_max = NormalDist().inv_cdf((PEERS - LIARS - supporters) / (PEERS - LIARS))
    return (honest_KD.mean(0) - z_max * honest_KD.std(0)).expand(LIARS, -1)


Attack = Callable[[Tensor], Tensor]
ATTACKS: list[Attack] = [sign_flip, constant, not_a_number, a_little_is_enough]


def logits(x_NF: Tensor, model_FC: Tensor) -> Tensor:
    """Return logits (..., N, C); class 0 has 0, so that a constant added to all numbers of a model is no symmetry."""
    return functional.pad(x_NF @ model_FC, (1, 0))


def learnt(seed: int, rule: Rule, attack: Attack | None) -> float:
    """Return the accuracy in [0, 1] after all rounds: a few full-batch steps per peer, then the rule over updates."""
    y_KN = torch.randint(C, (PEERS + 20, 50), generator=torch.Generator().manual_seed(seed))
    x_KNF = 1.2 * normal(C, F, seed=seed)[y_KN] + normal(PEERS + 20, 50, F, seed=seed + 1)
    model_D = torch.zeros(F * (C - 1), dtype=torch.float64)
    for _ in range(ROUNDS):
        local_KFC = model_D.reshape(F, C - 1).expand(PEERS, F, C - 1)
        for _ in range(4):
            delta_KNC = logits(x_KNF[:PEERS], local_KFC).softmax(-1) - functional.one_hot(y_KN[:PEERS], C)
            local_KFC = local_KFC - 0.3 * x_KNF[:PEERS].mT @ delta_KNC[..., 1:] / 50
        updates_KD = local_KFC.reshape(PEERS, -1) - model_D
        if attack is not None:
            updates_KD = torch.cat((attack(updates_KD[LIARS:]), updates_KD[LIARS:]))
        finite_K = finite_rows(updates_KD)
        liars = 0 if attack is None else LIARS - int((~finite_K).sum())
        model_D = model_D + rule(updates_KD[finite_K], liars)
    guess = logits(x_KNF[PEERS:], model_D.reshape(F, C - 1)).argmax(-1)
    return float((guess == y_KN[PEERS:]).double().mean())


def fresh(rule: str) -> Rule:
    return rules(RADIUS)[rule] if rule != "mean" else lambda updates_KD, liars: uniform_mean(updates_KD)


@cache
def without_liars(seed: int, rule: str) -> float:
    return learnt(seed, fresh(rule), None)


def lost(rule: str, attack: Attack, seeds: range) -> float:
    """Return the accuracy without liars minus the accuracy with them, averaged over seeds."""
    return sum(without_liars(seed, rule) - learnt(seed, fresh(rule), attack) for seed in seeds) / len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("rule", rules())
def test_attacks_cost_less_than_two_points(rule: str, attack: Attack) -> None:
    assert lost(rule, attack, range(1)) < 0.02


@pytest.mark.soak
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("rule", rules())
def test_attacks_cost_less_than_two_points_over_ten_seeds(rule: str, attack: Attack) -> None:
    assert lost(rule, attack, range(10)) < 0.02


@pytest.mark.parametrize("attack", [sign_flip, constant])
def test_the_plain_mean_does_not_stand_them(attack: Attack) -> None:
    assert lost("mean", attack, range(2)) > 0.2
