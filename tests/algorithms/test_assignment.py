"""Sketches, trees and trials against slow, plain counterparts; a search finds the kinds hidden in masked peers."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.metrics import adjusted_rand_score

from fedpeer.algorithms import assignment
from fedpeer.algorithms.assignment import (
    CHANCE,
    AssignmentError,
    CountSketch,
    Gain,
    below,
    groups,
    groups_by_parts,
    merges,
    merges_by_likelihood,
    merges_taken,
    missed,
    moments_in_parts,
    normalised_sketches,
    similar_peers,
    without_common,
)

Floats = NDArray[np.float64]


def sketch(length: int, size: int, seed: int = 0) -> CountSketch:
    return CountSketch.drawn(length, size, np.random.default_rng(seed))


# ------------------------------------------------------------------------------------------------------------ sketches


def test_a_sketch_adds_each_number_to_one_place_or_subtracts_it() -> None:
    made, change_PD = sketch(50, 16), np.random.default_rng(1).normal(size=(3, 50))
    expected_PS = np.zeros((3, 16))
    for peer in range(3):
        for d in range(50):
            expected_PS[peer, made.place_D[d]] += made.sign_D[d] * change_PD[peer, d]
    assert np.allclose(made(change_PD), expected_PS, rtol=0, atol=1e-12)
    assert np.allclose(made(change_PD[1]), expected_PS[1], rtol=0, atol=1e-12)  # one peer gives its row of the block
    assert set(made.sign_D) == {-1.0, 1.0}
    assert len(set(made.place_D.tolist())) > 12


@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_sketches_add_up(seed: int) -> None:
    made, (a_D, b_D) = sketch(300, 32), np.random.default_rng(seed).normal(size=(2, 300))
    assert np.allclose(made(a_D) + 2 * made(b_D), made(a_D + 2 * b_D), rtol=0, atol=1e-10)


def test_what_is_short_is_its_own_sketch() -> None:
    change_PD = np.random.default_rng(2).normal(size=(4, 64))
    assert np.array_equal(sketch(64, 64)(change_PD), change_PD)


def test_inner_products_are_right_in_the_mean_and_spread_as_is_said() -> None:
    a_D, b_D = np.random.default_rng(3).normal(size=(2, 400))
    a_D, b_D = a_D / np.linalg.norm(a_D), (a_D + b_D) / np.linalg.norm(a_D + b_D)
    size, draws = 32, 500
    found = np.array([sketch(400, size, seed)(np.stack([a_D, b_D])).prod(0).sum() for seed in range(draws)])
    assert abs(found.mean() - a_D @ b_D) < 4 * np.sqrt(2 / size / draws)
    assert found.var() < 2 / size


def test_only_directions_are_told() -> None:
    sketch_PS = np.array([[3.0, 4.0], [3e9, 4e9], [0.0, 0.0]])
    assert normalised_sketches(sketch_PS).dtype == np.float16
    assert np.allclose(normalised_sketches(sketch_PS), [[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]], atol=1e-3)


# ------------------------------------------------------------------------------------------------------------ the tree


def slow_merges(sketch_PS: Floats) -> list[set[frozenset[int]]]:
    """Return the two sets joined in each step: the sets whose peers are nearest by the mean of 1 - cosine."""
    unit = sketch_PS / np.linalg.norm(sketch_PS, axis=1, keepdims=True)
    sets = [frozenset({peer}) for peer in range(len(unit))]
    steps = []
    while len(sets) > 1:
        nearest = min(
            combinations(sets, 2), key=lambda pair: np.mean([1 - unit[p] @ unit[q] for p in pair[0] for q in pair[1]])
        )
        steps.append(set(nearest))
        sets = [each for each in sets if each not in nearest] + [nearest[0] | nearest[1]]
    return steps


@pytest.mark.slow
@settings(max_examples=20)
@given(peers=st.integers(2, 9), seed=st.integers(0, 1000))
def test_the_most_alike_are_joined_first(peers: int, seed: int) -> None:
    sketch_PS = normalised_sketches(np.random.default_rng(seed).normal(size=(peers, 20)))
    tree = merges(sketch_PS)
    nodes = [frozenset(each) for each in below(tree)]
    assert [{nodes[a], nodes[b]} for a, b in tree] == slow_merges(sketch_PS.astype(np.float64))


@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_the_tree_does_not_depend_on_who_has_which_number(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sketch_PS, order = normalised_sketches(rng.normal(size=(8, 20))), rng.permutation(8)
    found = {frozenset(order[list(each)].tolist()) for each in below(merges(sketch_PS[order]))}
    assert found == set(map(frozenset, below(merges(sketch_PS))))


def test_one_peer_has_no_tree_and_who_never_disagreed_is_like_nobody() -> None:
    assert merges(normalised_sketches(np.ones((1, 4)))) == ()
    sketch_PS = normalised_sketches(np.array([[0.0, 0.0], [1.0, 0.2], [1.0, 0.1]]))
    assert below(merges(sketch_PS))[3] == (1, 2)


# ------------------------------------------------------------------------------------------------- the trials, the cut


@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_a_gain_is_a_sum_and_its_variance(seed: int) -> None:
    before, after = np.random.default_rng(seed).normal(size=(2, 3, 7))
    gained = (before - after).ravel()
    together = Gain.all(Gain.of(b, a) for b, a in zip(before, after, strict=True))
    assert together.count == 21
    assert np.isclose(together.total, gained.sum())
    assert np.isclose(together.variance, 21 * gained.var(ddof=1))
    assert Gain.of(before[0, :1], after[0, :1]).variance == 0


def test_what_is_missed_is_bounded_and_in_no_unit() -> None:
    loss_M = np.array([0.0, 0.5, 1.0, 1000.0])
    assert np.allclose(missed(loss_M, 0.5), [0, 1 - 1 / np.e, 1 - np.exp(-2), 1], rtol=0, atol=1e-12)
    assert np.allclose(missed(1e6 * loss_M, 0.5e6), missed(loss_M, 0.5))
    assert missed(np.array([1e-12]), 1.0) == pytest.approx(1e-12)  # a tiny loss is not rounded away next to 1
    assert missed(loss_M, 0.0).tolist() == [0, 1, 1, 1]  # the usual loss is 0 for a peer that was always right


def test_the_worst_example_does_not_decide() -> None:
    """One example that is hopeless before and after does not outweigh many that have become worse."""
    before_M, after_M = np.array([90.0] + [0.2] * 19), np.array([40.0] + [0.6] * 19)
    usual = float(np.median(before_M))
    assert Gain.of(before_M, after_M).total > 0
    assert Gain.of(missed(before_M, usual), missed(after_M, usual)).total < 0


def gain(total: float, error: float = 1.0) -> Gain:
    """Return a gain over four examples, with this standard error of the sum."""
    return Gain(4, total, total**2 / 4 + error**2 * 3 / 4)


@pytest.mark.parametrize(
    ("totals", "taken"),
    [
        # By chance one merge may lose 1.64 standard errors, one of two 1.96, of three 2.13, of four 2.24.
        ([], 0),
        ([3, 2, 1], 3),
        ([3, 2, -4, -4], 2),
        ([3, -0.9, 2, -5], 3),  # one that lost by chance among others that gained
        ([3, -6, 2, -5], 1),  # what follows does not make up for it
        ([3, -5, 3, -5], 3),  # here it does, except for a loss of 2, which may be chance
        ([3, -2.1, -5], 2),
        ([3, -2.2, -5], 1),
        ([3, -2.2, -5, 0], 2),  # with more merges, one of them may lose more by chance
        ([3, -1.6, -1.5, -5], 3),  # two lose 3.1, which is within 2.24 times their standard error of 1.41
        ([3, -1.6, -1.6, -5], 2),  # two lose 3.2, which is not
        ([-4, -4], 0),
        ([-1.6], 1),
        ([-1.7], 0),
    ],
    ids=str,
)
def test_the_tree_is_cut_where_chance_explains_no_more(totals: list[float], taken: int) -> None:
    assert merges_taken([gain(total) for total in totals]) == taken


def test_peers_that_are_alike_are_kept_apart_by_chance_as_rarely_as_is_said() -> None:
    """If the gains of all merges of 12 peers are pure chance, the tree is whole except in a share `CHANCE` of draws."""
    rng, draws = np.random.default_rng(5), 2000
    totals_DM = rng.normal(size=(draws, 11))
    whole = np.mean([merges_taken([gain(total) for total in totals_M]) == 11 for totals_M in totals_DM.tolist()])
    assert 1 - CHANCE - 3 * np.sqrt(CHANCE * (1 - CHANCE) / draws) < whole


def test_without_chance_every_loss_counts() -> None:
    assert merges_taken([gain(1, 0), gain(-0.01, 0)]) == 1


def test_groups_are_what_is_below_the_cut() -> None:
    tree = ((4, 5), (0, 1), (2, 3), (7, 8), (6, 9))  # ((0 1) (2 3)) (4 5)
    assert below(tree)[6:] == ((4, 5), (0, 1), (2, 3), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5))
    assert [groups(tree, taken) for taken in range(6)] == [
        (),
        ((4, 5),),
        ((0, 1), (4, 5)),
        ((0, 1), (2, 3), (4, 5)),
        ((0, 1, 2, 3), (4, 5)),
        ((0, 1, 2, 3, 4, 5),),
    ]
    assert groups((), 0) == ()


@settings(max_examples=20)
@given(seed=st.integers(0, 500), kinds=st.integers(1, 5))
def test_hidden_kinds_are_found_whatever_the_numbers_of_the_peers(seed: int, kinds: int) -> None:
    rng = np.random.default_rng(seed)
    kind_P = rng.integers(kinds, size=12)
    centre_KS = np.linalg.qr(rng.normal(size=(30, 5)))[0].T
    tree = merges(normalised_sketches(centre_KS[kind_P] + 0.05 * rng.normal(size=(12, 30))))
    gains = [gain(1.0 if len(set(kind_P[list(members)])) == 1 else -5.0) for members in below(tree)[12:]]
    hidden = [tuple(np.flatnonzero(kind_P == kind).tolist()) for kind in range(kinds)]
    assert groups(tree, merges_taken(gains)) == tuple(sorted(each for each in hidden if len(each) > 1))


def in_clusters(apart: float, count: int = 4, seed: int = 0) -> NDArray[np.float16]:
    """Return the sketches of twelve peers, peer k near centre k mod count; centres are this far from one another."""
    draws = np.random.default_rng(seed)
    centre_CS = apart * draws.normal(size=(count, 64))
    return normalised_sketches(np.stack([centre_CS[peer % count] + draws.normal(size=64) for peer in range(12)]))


def slow_evidence(sketch_PS: Floats, group_P: list[int]) -> float:
    """Return the log-likelihood of the distances less what their means and the groups cost, pair by pair."""
    unit_PS = sketch_PS / np.linalg.norm(sketch_PS, axis=1, keepdims=True)
    pairs = [(p, q) for p in range(len(group_P)) for q in range(p)]
    apart = {(p, q): 1 - unit_PS[p] @ unit_PS[q] for p, q in pairs}
    block = {pair: frozenset(group_P[peer] for peer in pair) for pair in pairs}
    mean = {each: np.mean([apart[pair] for pair in pairs if block[pair] == each]) for each in block.values()}
    scale = math.sqrt(np.mean([(apart[pair] - mean[block[pair]]) ** 2 for pair in pairs]))
    likelihood = sum(float(norm.logpdf(apart[pair], mean[block[pair]], scale)) for pair in pairs)
    groups = len(set(group_P))
    means = groups * (groups + 1) / 2
    return likelihood - means / 2 * math.log(len(pairs)) - (groups - 1) * math.log(len(group_P))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_cut_is_the_most_likely_of_all(count: int) -> None:
    sketch_PS = in_clusters(1.0, count)
    tree = merges(sketch_PS)
    scores = {}
    for taken in range(6, 11):
        group_P = list(range(12))
        for number, members in enumerate(groups(tree, taken), 12):
            for peer in members:
                group_P[peer] = number
        scores[taken] = slow_evidence(sketch_PS.astype(np.float64), group_P)
    taken = merges_by_likelihood(sketch_PS, np.random.default_rng(0))
    assert taken == max(scores, key=lambda each: scores[each])
    assert groups(tree, taken) == tuple(tuple(range(number, 12, count)) for number in range(count))


def test_groups_that_resemble_one_another_stay_apart() -> None:
    """Images that are turned by half resemble upright ones; as one group they would be better apart from the others."""
    draws = np.random.default_rng(3)
    pair_CS, own_CS = draws.normal(size=(2, 64)), draws.normal(size=(4, 64))
    centre_CS = 1.5 * pair_CS[[0, 0, 1, 1]] + own_CS
    sketch_PS = normalised_sketches(np.stack([centre_CS[peer % 4] + draws.normal(size=64) for peer in range(16)]))
    taken = merges_by_likelihood(sketch_PS, np.random.default_rng(0))
    assert groups(merges(sketch_PS), taken) == tuple(tuple(range(number, 16, 4)) for number in range(4))


@pytest.mark.parametrize("seed", range(6))
def test_there_are_no_more_groups_than_half_the_peers(seed: int) -> None:
    """Without the bound, four pairs and eight single peers would be cut into twelve groups."""
    draws = np.random.default_rng(seed)
    centre_PS = draws.normal(size=(12, 64))[[*range(4), *range(12)]]
    sketch_PS = normalised_sketches(centre_PS + 0.1 * draws.normal(size=centre_PS.shape))
    taken = merges_by_likelihood(sketch_PS, np.random.default_rng(0))
    assert taken == 0 or 2 * taken >= len(sketch_PS)


def test_what_all_have_in_common_is_taken_away() -> None:
    own_PS, common_S = np.random.default_rng(4).normal(size=(5, 30)), 9.0 * np.ones(30)
    found_PS = without_common(np.stack([own_S + common_S for own_S in own_PS]).astype(np.float16))
    wanted_PS = normalised_sketches(own_PS - own_PS.mean(axis=0))
    assert np.allclose(found_PS, wanted_PS, atol=0.01), "half precision of the sketches that came"
    assert np.allclose(without_common(np.ones((3, 4), np.float16)), 0.0), "nothing is left of what is the same"


@pytest.mark.slow
def test_where_there_are_no_clusters_none_is_found() -> None:
    found = [merges_by_likelihood(in_clusters(0.0, seed=seed), np.random.default_rng(seed)) for seed in range(20)]
    # At one in 20 each, more than 4 of 20 are found by chance in 3 of 1,000 cases.
    assert sum(taken > 0 for taken in found) <= 4
    assert merges_by_likelihood(in_clusters(0.0)[:3], np.random.default_rng(0)) == 0, "three peers are no two groups"


def test_a_known_number_of_groups_is_taken() -> None:
    sketch_PS = in_clusters(0.5)
    for wanted in (2, 5, 12, 20):
        taken = merges_by_likelihood(sketch_PS, np.random.default_rng(0), wanted)
        assert taken == max(0, 12 - wanted)


# --------------------------------------------------------------------------------------------- agreement of the halves


def in_parts(noise: float, seed: int = 0) -> NDArray[np.float16]:
    """Return sketches of twelve peers of three kinds, (12, 4, 64): each part has noise of its own."""
    draws = np.random.default_rng(seed)
    centre_CS = draws.normal(size=(3, 64))
    kind_PKS = np.repeat(centre_CS[np.arange(12) % 3][:, None], 4, axis=1)
    part_PKS = kind_PKS + noise * draws.normal(size=kind_PKS.shape)
    return normalised_sketches(part_PKS.reshape(12, -1)).reshape(part_PKS.shape)


THREE_KINDS = tuple(tuple(range(number, 12, 3)) for number in range(3))


def test_groups_that_all_parts_show_are_found() -> None:
    assert groups_by_parts(in_parts(1.0), np.random.default_rng(0)) == THREE_KINDS


def with_noise_of_one_part(seed: int) -> NDArray[np.float16]:
    """Return sketches, in one part of which chance makes groups that are stronger than the true ones."""
    draws = np.random.default_rng(seed)
    part_PKS = in_parts(1.0, seed).astype(np.float64)
    wrong_CS = draws.normal(size=(3, 64))[draws.permutation(np.arange(12) // 4)]
    part_PKS[:, 0] += 3.0 * wrong_CS * np.linalg.norm(part_PKS[0, 0]) / np.linalg.norm(wrong_CS[0])
    return normalised_sketches(part_PKS.reshape(12, -1)).reshape(part_PKS.shape)


@pytest.mark.parametrize("seed", range(4))
def test_groups_that_one_half_shows_and_the_other_does_not_are_chance(seed: int) -> None:
    part_PKS = with_noise_of_one_part(seed)
    whole_PS = without_common(normalised_sketches(part_PKS.astype(np.float64).sum(axis=1)))
    taken = merges_by_likelihood(whole_PS, np.random.default_rng(0))
    assert groups(merges(whole_PS), taken) not in ((), THREE_KINDS), "as one, the sketches show wrong groups"
    assert groups_by_parts(part_PKS, np.random.default_rng(0)) == ()
    assert len(groups_by_parts(part_PKS, np.random.default_rng(0), 3)) == 3, "whose number is known, are taken"


@pytest.mark.parametrize("neurons", [1, 2, 3])
def test_few_neurons_are_a_part_each_and_one_alone_is_not_checked(neurons: int) -> None:
    draws = np.random.default_rng(3)
    centre_CS = draws.normal(size=(3, 8))
    changes = centre_CS[np.arange(12) % 3][:, None] + 0.1 * draws.normal(size=(12, neurons, 8))
    part_PKS = np.stack([moments_in_parts(change_RC) for change_RC in changes])
    assert part_PKS.shape == (12, neurons, 64)
    sent = normalised_sketches(part_PKS.reshape(12, -1)).reshape(part_PKS.shape)
    whole_PS = without_common(normalised_sketches(sent.astype(np.float64).sum(axis=1)))
    taken = merges_by_likelihood(whole_PS, np.random.default_rng(0))
    assert taken > 0
    assert groups_by_parts(sent, np.random.default_rng(0)) == groups(merges(whole_PS), taken)


def test_the_agreement_is_that_of_all_six_halves() -> None:
    part_PKS = in_parts(2.5, 1)
    found = groups_by_parts(part_PKS, np.random.default_rng(0), 3)
    scores = []
    for pair in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)):
        half_PS = without_common(normalised_sketches(part_PKS.astype(np.float64)[:, pair].sum(axis=1)))
        taken, _ = assignment._best_cut(half_PS)
        scores.append(adjusted_rand_score(labelled(found), labelled(groups(merges(half_PS), taken))))
    assert assignment._agreement(part_PKS, found) == pytest.approx(np.mean(scores))
    assert 0 < np.mean(scores) < 1


def labelled(found: tuple[tuple[int, ...], ...]) -> list[int]:
    number = {peer: place for place, members in enumerate(found) for peer in members}
    return [number.get(peer, 100 + peer) for peer in range(12)]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"after": 0}, "after = 0"),
        ({"kept_back": 0.0}, "kept_back = 0"),
        ({"kept_back": 0.6}, "0.6"),
        ({"by": "input"}, "by = input: write updates, inputs, outputs"),
        ({"by": "inputs", "groups": 1}, "groups = 1"),
        ({"groups": 3}, "with by=inputs or by=outputs"),
        ({"sketch": 8}, "8"),
    ],
)
def test_a_number_out_of_its_range_is_refused(wrong: dict[str, float], word: str) -> None:
    with pytest.raises(AssignmentError, match=word):
        similar_peers(**wrong)  # type: ignore[arg-type]
