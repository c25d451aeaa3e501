"""Splits: laws that every split keeps, and the numbers that the papers give for their splits."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fedpeer.config.choice import call_choice, parse_choice
from fedpeer.data.dataset import NO_TOKEN, DataError, Dataset, Split
from fedpeer.data.splits import MODIFIERS, SPLITS, default_split, make_split, pieces, summary
from fedpeer.data.splits.cuts import cut_examples, deal, fill, random_cuts


def _generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _digits() -> Dataset:
    found = load_digits()
    return Dataset(
        name="digits",
        x=(found.data / 16).astype(np.float32),
        y=found.target.astype(np.int64),
        task="classification",
        input_kind="features",
        classes=tuple("0123456789"),
    )


DIGITS = _digits()


def _made(examples: int, classes: int, users: int = 7, official: bool = False, seed: int = 0) -> Dataset:
    """Return examples of random classes, users and subclasses (three a class); `x` is the example's number."""
    draws = _generator(seed)
    y = draws.permutation(np.arange(examples) % classes)
    return Dataset(
        name="made",
        x=np.arange(examples, dtype=np.float32)[:, None] * np.ones((1, 4), dtype=np.float32),
        y=y,
        task="classification",
        input_kind="features",
        classes=tuple(f"class{c}" for c in range(classes)),
        user_N=draws.integers(0, users, examples),
        user_names=tuple(f"u{u}" for u in range(users)),
        subclass_N=3 * y + draws.integers(0, 3, examples),
        subclass_names=tuple(f"sub{s}" for s in range(3 * classes)),
        test_N=np.arange(examples) % 4 == 3 if official else None,
    )


def _regression() -> Dataset:
    y = _generator().normal(size=200).astype(np.float32)
    return Dataset(name="numbers", x=np.zeros((200, 3), np.float32), y=y, task="regression", input_kind="features")


def _split(rule: str, dataset: Dataset, peers: int | None = 16, seed: int = 0) -> Split:
    """Split a data set as the command line does: parse the choices, then call their functions."""
    base, *changes = [parse_choice(piece) for piece in pieces(rule)]
    bound = [call_choice(base, SPLITS, "split"), *(call_choice(each, MODIFIERS, "split") for each in changes)]
    return make_split(bound, dataset, peers, _generator(seed))


def _same(a: Split, b: Split) -> bool:
    return all(
        np.array_equal(one.train_M, other.train_M) and np.array_equal(one.test_M, other.test_M)
        for one, other in zip(a.shares, b.shares, strict=True)
    )


# Laws


RULES = st.sampled_from(
    [
        "user",
        "user,test_fraction=0.3",
        "user,users=random",
        "blocks",
        "blocks,shuffle=true",
        "iid",
        "iid,test_fraction=0.4",
        "labels:2",
        "labels:3",
        "dirichlet:0.1",
        "dirichlet:1e-9",
        "slicing",
        "slicing:1,cuts=shared",
        "slicing:2,cuts=per-class",
        "drift",
        "drift,cuts=shared",
        "drift,cuts=equal",
        "blocks/swap:0+2,on=1-2/cycle:3,on=2/pixels,on=1",
        "iid/truncate:1,test=1",
    ]
)


@settings(max_examples=150, deadline=None)
@given(RULES, st.integers(40, 400), st.integers(3, 6), st.integers(2, 30), st.booleans(), st.integers(0, 2**32))
def test_shares_are_disjoint_valid_and_never_empty(
    rule: str, examples: int, classes: int, peers: int, official: bool, seed: int
) -> None:
    dataset = _made(examples, classes, official=official, seed=seed)
    try:
        split = _split(rule, dataset, peers, seed)
    except DataError:
        assume(False)  # too few examples for these peers; the text of the error is tested below
    assert len(split.shares) == peers
    trained = np.concatenate([share.train_M for share in split.shares])
    tested = np.unique(np.concatenate([share.test_M for share in split.shares]))
    assert len(np.unique(trained)) == len(trained)
    assert not np.intersect1d(trained, tested).size
    assert min(map(len, [share.train_M for share in split.shares])) >= 1
    assert min(map(len, [share.test_M for share in split.shares])) >= 1
    both = np.concatenate([trained, tested])
    assert 0 <= both.min() <= both.max() < examples
    for share in split.shares:
        assert len(np.unique(share.test_M)) == len(share.test_M)
        if share.label_map_C is not None:
            assert sorted(share.label_map_C) == list(range(classes))
        if share.feature_map_F is not None:
            assert sorted(share.feature_map_F) == list(range(4))
    if dataset.test_N is not None and "test_fraction" not in rule and not rule.startswith("user"):
        assert dataset.test_N[tested].all()
        assert not dataset.test_N[trained].any()
    assert _same(split, _split(rule, dataset, peers, seed))
    json.dumps(summary(dataset, split), allow_nan=False)


@pytest.mark.parametrize("rule", ["iid", "dirichlet:0.2", "slicing:5", "labels:5", "labels:2", "dirichlet:0.2,least=3"])
def test_every_example_is_held_by_somebody(rule: str) -> None:
    split = _split(rule, DIGITS)
    to_train_on = np.delete(np.arange(1797), _split("iid", DIGITS).shares[0].test_M)  # all rules draw it alike
    assert np.array_equal(np.sort(np.concatenate([share.train_M for share in split.shares])), to_train_on)
    assert split.remarks == () or "moved" in split.remarks[0]


def test_the_rule_says_what_was_asked() -> None:
    for rule in (
        "blocks:50,test=40,shuffle=true/cycle:3,on=1-2+4/truncate:20,test=30",
        "user,test_fraction=0.3/pixels,on=2",
        "iid,test_fraction=0.4/swap:class0+class1",
        "labels:2,test_fraction=0.3",
        "slicing:2,cuts=shared,test_fraction=0.3",
        "drift,cuts=equal",
        "dirichlet:0.3,least=2,test_fraction=0.3",
    ):
        assert _split(rule, _made(600, 4), 4).rule == rule


@pytest.mark.parametrize(
    "rule", ["iid", "user", "labels:2", "dirichlet:0.5", "slicing", "drift", "blocks/pixels", "blocks,shuffle=true"]
)
def test_another_seed_is_another_split(rule: str) -> None:
    dataset = _made(400, 4)
    one, other = _split(rule, dataset, 5, 1), _split(rule, dataset, 5, 2)
    changed = any(
        not np.array_equal(a.feature_map_F, b.feature_map_F)
        for a, b in zip(one.shares, other.shares, strict=True)
        if a.feature_map_F is not None and b.feature_map_F is not None
    )
    assert changed or not _same(one, other)


# Cutting and dealing


@given(st.integers(1, 60), st.data())
def test_cut_covers_all_in_order_and_leaves_no_part_empty(count: int, data: st.DataObject) -> None:
    parts_wanted = data.draw(st.integers(1, count))
    order = _generator(count).permutation(count)
    places = random_cuts(count, parts_wanted, _generator(parts_wanted))
    parts = cut_examples(order, places)
    assert len(parts) == parts_wanted
    assert min(map(len, parts)) >= 1
    assert np.array_equal(np.concatenate(parts), order)


def test_random_cuts_takes_every_set_of_places_equally_often() -> None:
    draws = _generator()
    seen = [tuple(random_cuts(5, 3, draws)) for _ in range(6000)]
    counts = {places: seen.count(places) for places in set(seen)}
    assert set(counts) == set(itertools.combinations(range(1, 5), 2))
    assert max(abs(count - 1000) for count in counts.values()) < 5 * np.sqrt(1000)


def test_cut_refuses_places_outside_or_repeated() -> None:
    for places in ([0], [5], [2, 2], [3, 1]):
        with pytest.raises(AssertionError):
            cut_examples(np.arange(5), places)


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 1000), st.data())
def test_dealing_is_balanced_and_gives_different_kinds(kinds: int, peers: int, seed: int, data: st.DataObject) -> None:
    each = data.draw(st.integers(1, kinds))
    shards = deal(range(kinds), each, peers, _generator(seed))
    assert all(len(set(hand)) == each for hand in shards)
    counts = np.bincount([kind for hand in shards for kind in hand], minlength=kinds)
    assert counts.max() - counts.min() <= 1
    if kinds % each == 0:
        pack = kinds // each
        for start in range(0, peers - pack + 1, pack):
            assert sorted(kind for hand in shards[start : start + pack] for kind in hand) == list(range(kinds))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 3))
def test_filling_moves_only_what_is_missing(sizes: list[int], least: int) -> None:
    if sum(sizes) < least * len(sizes):
        return
    starts = np.cumsum([0, *sizes])
    shares = [np.arange(starts[i], starts[i + 1]) for i in range(len(sizes))]
    filled, moved = fill(shares, least)
    assert sorted(np.concatenate(filled)) == list(range(sum(sizes)))
    assert min(map(len, filled)) >= least
    assert moved == sum(max(0, least - size) for size in sizes)


# Each base split


def test_the_default_of_the_digits() -> None:
    split = _split(default_split(DIGITS, 16), DIGITS)
    assert split.rule == "blocks:87,shuffle=true/swap:8+9,on=1-7"
    trained = np.concatenate([share.train_M for share in split.shares])
    assert [len(share.train_M) for share in split.shares] == [87] * 16
    assert all(np.array_equal(share.test_M, split.shares[0].test_M) for share in split.shares)
    assert sorted([*trained, *split.shares[0].test_M]) == list(range(1797)), "and so the other 405 are for testing"
    assert [share.label_map_C is not None for share in split.shares] == [True] * 7 + [False] * 9


def test_blocks_in_official_order_with_two_labels_exchanged() -> None:
    split = _split("blocks:87/swap:8+9,on=1-7", DIGITS)
    official_y = DIGITS.y.astype(np.int64)
    for peer, share in enumerate(split.shares):
        assert share.train_M.tolist() == list(range(87 * peer, 87 * (peer + 1)))
        assert share.test_M.tolist() == list(range(1392, 1797))
        exchanged = [0, 1, 2, 3, 4, 5, 6, 7, 9, 8]
        assert (share.label_map_C is not None) == (peer < 7)
        assert share.label_map_C is None or share.label_map_C.tolist() == exchanged
    official = official_y[:87]
    assert np.array_equal(split.labels(DIGITS, 0), np.where(official >= 8, 17 - official, official))
    held_out = official_y[1392:]
    assert np.array_equal(split.labels(DIGITS, 6, test=True), np.where(held_out >= 8, 17 - held_out, held_out))
    assert np.array_equal(split.labels(DIGITS, 7, test=True), held_out)


@pytest.mark.parametrize("peers", [1, 2, 4, 16, 64, 1024])
def test_the_default_of_the_digits_fits_any_number_of_peers(peers: int) -> None:
    split = _split(default_split(DIGITS, peers), DIGITS, peers)
    assert len(split.shares) == peers
    assert len(split.shares[0].test_M) >= 405


def test_defaults_follow_what_the_data_set_knows() -> None:
    assert default_split(_made(50, 2), None) == "drift"
    assert default_split(_regression(), None) == "iid"


def test_blocks_with_an_official_test_part_use_its_first_examples() -> None:
    split = _split("blocks:10,test=5", _made(100, 4, official=True), 3)
    official_train = [n for n in range(100) if n % 4 != 3]
    assert [share.train_M.tolist() for share in split.shares] == [official_train[i : i + 10] for i in (0, 10, 20)]
    assert split.shares[2].test_M.tolist() == [3, 7, 11, 15, 19]
    assert split.remarks == ("45 training examples left over",)


def test_users_come_largest_first_and_ties_by_name() -> None:
    dataset = _made(100, 2, users=4)
    users = np.repeat([0, 1, 2, 3], [20, 40, 20, 20])
    dataset = Dataset(**{**vars(dataset), "user_N": users, "user_names": ("zoe", "max", "ann", "kim")})
    split = _split("user", dataset, None)
    assert [share.note for share in split.shares] == ["max", "ann", "kim", "zoe"]
    assert [(len(share.train_M), len(share.test_M)) for share in split.shares] == [(30, 10)] + [(15, 5)] * 3
    for share in split.shares:
        mine = np.concatenate([share.train_M, share.test_M])
        assert {dataset.user_names[u] for u in users[mine]} == {share.note}
    assert [share.note for share in _split("user", dataset, 2).shares] == ["max", "ann"]
    with pytest.raises(DataError, match="4 users with two examples or more, but 5 peers"):
        _split("user", dataset, 5)


def test_users_may_be_those_with_the_least_examples_or_random_ones() -> None:
    dataset = _made(100, 2, users=4)
    users = np.repeat([0, 1, 2, 3], [20, 40, 10, 30])
    dataset = Dataset(**{**vars(dataset), "user_N": users, "user_names": ("zoe", "max", "ann", "kim")})

    def notes(rule: str, seed: int = 0) -> tuple[str, ...]:
        return tuple(share.note for share in _split(rule, dataset, 2, seed).shares)

    assert notes("user,users=least") == ("ann", "zoe")
    assert notes("user,users=most") == notes("user") == ("max", "kim")
    assert len({notes("user,users=random", seed) for seed in range(200)}) == 12, "all pairs, in both orders"
    assert _split("user,users=least", dataset, 2).rule == "user,users=least"


def test_users_that_are_left_out_are_named_with_the_reason() -> None:
    dataset = _made(41, 2, users=3)
    named = Dataset(**{**vars(dataset), "user_N": np.arange(41) // 20, "user_names": ("ann", "kim", "solo")})
    few, single = _split("user", named, 1).remarks
    assert few == "1 user left out, since there is 1 peer"
    assert single == "1 user left out (solo): a peer needs one example to train on and one to test on"


def test_users_keep_the_official_test_part_only_if_it_has_them_all() -> None:
    dataset = _made(120, 2, users=3)
    users = np.arange(120) // 40
    every_fourth = np.arange(120) % 4 == 0
    overlapping = Dataset(**{**vars(dataset), "user_N": users, "test_N": every_fourth})
    split = _split("user", overlapping, None)
    assert all(every_fourth[share.test_M].all() and len(share.test_M) == 10 for share in split.shares)
    others = Dataset(**{**vars(dataset), "user_N": users, "test_N": users == 2})
    split = _split("user", others, None)
    assert [len(share.test_M) for share in split.shares] == [10, 10, 10]
    assert "divided again" in split.remarks[0]


def test_labels_are_shared_equally_by_their_holders() -> None:
    split = _split("labels:2", _made(1000, 10), 20)
    held_PC = np.array([peer["train_counts"] for peer in summary(_made(1000, 10), split)["peers"]])
    assert ((held_PC > 0).sum(axis=1) == 2).all()
    assert set(held_PC[held_PC > 0].tolist()) <= {18, 19}  # about 75 of each class for 4 holders


def _held(split: Split, kind_N: NDArray[np.int64], kinds: int) -> NDArray[np.int64]:
    return np.array([np.bincount(kind_N[share.train_M], minlength=kinds) for share in split.shares])


def test_shared_cuts_make_every_client_balanced_and_pairs_complementary() -> None:
    dataset = _made(2000, 10, official=True)
    held_PC = _held(_split("slicing:5,cuts=shared", dataset, 20), dataset.y.astype(np.int64), 10)
    for a, b in zip(held_PC[::2], held_PC[1::2], strict=True):
        assert sorted([*np.flatnonzero(a), *np.flatnonzero(b)]) == list(range(10))
        assert len(set(a[a > 0])) == 1
        assert a.max() == b.max()
    assert len(set(held_PC.max(axis=1))) > 5, "sizes differ between pairs"


def test_cuts_per_class_are_independent_and_leave_nothing() -> None:
    dataset = _made(2000, 10, official=True)
    held_PC = _held(_split("slicing:5", dataset, 20), dataset.y.astype(np.int64), 10)
    assert (held_PC.sum(axis=0) == np.bincount(dataset.y[~dataset.test_N], minlength=10)).all()  # type: ignore[operator]
    assert sum(len(set(row[row > 0])) > 1 for row in held_PC) > 15, "hardly any client is balanced by chance"


def test_random_slicing_sizes_follow_the_closed_form() -> None:
    """A part of N points cut in M has mean N / M and P(size > s) = C(N-1-s, M-1) / C(N-1, M-1)."""
    draws = _generator()
    sizes = [len(cut_examples(np.arange(30), random_cuts(30, 4, draws))[1]) for _ in range(4000)]
    exact = [np.prod([(29 - s - i) / (29 - i) for i in range(3)]) for s in (5, 10, 15)]
    measured = [np.mean(np.array(sizes) > s) for s in (5, 10, 15)]
    assert np.allclose(measured, exact, atol=5 * 0.5 / np.sqrt(4000))


@pytest.mark.parametrize("rule", ["labels:3", "slicing:3", "slicing:5,cuts=shared"])
def test_peers_test_on_all_test_examples_of_their_classes(rule: str) -> None:
    dataset = _made(1000, 10, official=True)
    assert dataset.test_N is not None
    for share in _split(rule, dataset).shares:
        own = np.isin(dataset.y, dataset.y[share.train_M])
        assert share.test_M.tolist() == np.flatnonzero(own & dataset.test_N).tolist()


@pytest.mark.parametrize("cuts", ["per-class", "shared", "equal"])
def test_drift_gives_one_subclass_of_every_class(cuts: str) -> None:
    dataset = _made(3000, 5, official=True)
    assert dataset.subclass_N is not None
    split = _split(f"drift,cuts={cuts}", dataset, 6)
    held_PS = _held(split, dataset.subclass_N, 15) > 0
    assert (held_PS.reshape(6, 5, 3).sum(axis=2) == 1).all()
    assert (held_PS.sum(axis=0) == 2).all(), "three subclasses dealt to six peers: two each"
    for share, held in zip(split.shares, held_PS, strict=True):
        assert set(dataset.subclass_N[share.test_M]) == set(np.flatnonzero(held)), "not by superclass number"
    if cuts == "shared":
        counts = _held(split, dataset.subclass_N, 15)
        assert all(len(set(row[row > 0])) == 1 for row in counts)


@pytest.mark.parametrize("alpha", ["1e-300", "1e-5", "0.05"])
def test_dirichlet_ends_with_many_peers_and_tiny_alpha(alpha: str) -> None:
    split = _split(f"dirichlet:{alpha}", DIGITS, 500)
    sizes = [len(share.train_M) for share in split.shares]
    assert min(sizes) == 1
    assert sum(sizes) == (~np.isin(np.arange(1797), np.concatenate([s.test_M for s in split.shares]))).sum()


def test_dirichlet_concentration_matches_its_variance() -> None:
    """The share of a class at one of P peers has mean 1/P and variance (1/P)(1 - 1/P) / (P alpha + 1)."""
    dataset = _made(40_000, 40, official=False)
    for alpha in (0.3, 3.0):
        held_PC = _held(_split(f"dirichlet:{alpha}", dataset, 10), dataset.y.astype(np.int64), 40)
        share_PC = held_PC / held_PC.sum(axis=0)
        expected = 0.1 * 0.9 / (10 * alpha + 1)
        assert share_PC.var() == pytest.approx(expected, rel=0.25)


def test_dirichlet_tests_in_the_proportions_of_training() -> None:
    dataset = _made(20_000, 5, official=True)
    assert dataset.test_N is not None
    for share in _split("dirichlet:1", dataset, 8).shares:
        train_C = np.bincount(dataset.y[share.train_M], minlength=5) / len(share.train_M)
        test_C = np.bincount(dataset.y[share.test_M], minlength=5)
        assert np.abs(train_C * test_C.sum() - test_C).max() <= 5
        available_C = np.bincount(dataset.y[dataset.test_N], minlength=5)
        assert (test_C >= available_C - 1).any(), "as large a test part as the proportions allow"


def test_least_is_kept() -> None:
    assert min(len(share.train_M) for share in _split("dirichlet:0.01,least=10", DIGITS, 50).shares) == 10


@pytest.mark.parametrize("rule", ["iid", "blocks"])
def test_texts_that_are_continued_are_counted_by_their_tokens(rule: str) -> None:
    """Texts are split as numbers are, since they have no classes."""
    y = np.where(np.arange(5) < np.arange(40)[:, None] % 6, np.arange(5) + 3, NO_TOKEN)
    texts = Dataset(name="texts", x=y, y=y, task="next-token", input_kind="tokens", vocabulary=9)
    split = _split(rule, texts, 4)
    for share, said in zip(split.shares, summary(texts, split)["peers"], strict=True):
        lengths = share.train_M % 6
        assert said["train_quantiles"] == [np.quantile(lengths, (0, 0.25, 0.5, 0.75, 1)).tolist()]


def test_regression_can_be_split_by_what_needs_no_classes() -> None:
    dataset = _regression()
    for rule in ("iid", "blocks"):
        split = _split(rule, dataset, 4)
        for share, said in zip(split.shares, summary(dataset, split)["peers"], strict=True):
            held = sorted(dataset.y[share.train_M].tolist())
            assert said["train_quantiles"][0][::4] == [held[0], held[-1]]


# Differences


def test_cycles_are_those_of_the_paper() -> None:
    share = _split("iid/cycle:4,on=2", DIGITS, 3).shares[1]
    assert share.label_map_C is not None
    assert share.label_map_C.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9, 6]
    assert _split("iid/cycle:0", DIGITS, 3).shares[0].note == ""


def test_all_elements_of_s3_for_two_peers_each() -> None:
    split = _split("blocks:87/permutations:3", DIGITS, 12)
    maps = [tuple(share.label_map_C[7:]) for share in split.shares if share.label_map_C is not None]
    assert maps[::2] == maps[1::2]
    assert sorted(maps[::2]) == sorted(itertools.permutations((7, 8, 9)))
    assert maps[0] == (7, 8, 9)
    assert split.shares[0].note == ""


def test_differences_compose_in_the_order_written() -> None:
    share = _split("blocks:87/swap:8+9,on=3-4/swap:6+7,on=4", DIGITS, 4).shares
    assert share[1].label_map_C is None
    assert share[2].label_map_C is not None
    assert share[2].label_map_C.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 9, 8]
    assert share[3].label_map_C is not None
    assert share[3].label_map_C.tolist() == [0, 1, 2, 3, 4, 5, 7, 6, 9, 8]
    assert share[3].note == "8 and 9 exchanged; 6 and 7 exchanged"
    after = _split("iid/swap:7+8/swap:8+9", DIGITS, 2).shares[0].label_map_C
    assert after is not None
    assert after.tolist() == [0, 1, 2, 3, 4, 5, 6, 9, 7, 8], "what was 7 became 8, which became 9"


def test_pixels_differ_between_peers_and_agree_in_training_and_test() -> None:
    split = _split("blocks:20/pixels,on=1-2", DIGITS, 3)
    first, second, third = (share.feature_map_F for share in split.shares)
    assert first is not None
    assert second is not None
    assert third is None
    assert not np.array_equal(first, second)
    for test in (False, True):
        indices = split.shares[0].test_M if test else split.shares[0].train_M
        assert np.array_equal(split.inputs(DIGITS, 0, test=test), DIGITS.x[indices][:, first])
    twice = _split("blocks:20/pixels/pixels", DIGITS, 1)
    assert sorted(twice.shares[0].feature_map_F) == list(range(64))  # type: ignore[arg-type]


def test_views_and_codes_cross() -> None:
    split = _split("blocks:20/views:4/codes:4", DIGITS, 16)
    image = np.arange(64).reshape(8, 8)
    for peer, share in enumerate(split.shares):
        seen = np.arange(64) if share.feature_map_F is None else share.feature_map_F
        np.testing.assert_array_equal(seen.reshape(8, 8), np.rot90(image, peer % 4))
    called = [tuple(range(10)) if s.label_map_C is None else tuple(s.label_map_C.tolist()) for s in split.shares]
    assert [called.index(each) // 4 for each in called] == [peer // 4 for peer in range(16)]
    assert len(set(called)) == 4
    assert all(sorted(each) == list(range(10)) for each in called)
    assert split.shares[0].note == ""
    assert split.shares[7].note == "view 4; code 2"
    assert split.rule == "blocks:20/views:4/codes:4"
    mixed = _split("blocks:20/views:3,kind=pixels", DIGITS, 6)
    maps = [None if s.feature_map_F is None else s.feature_map_F.tolist() for s in mixed.shares]
    assert maps[:3] == maps[3:]
    assert maps[0] is None
    assert maps[1] != maps[2]
    coloured = replace(DIGITS, x=DIGITS.x.reshape(-1, 1, 8, 8).repeat(3, 1), input_kind="image")
    turned = _split("blocks:20/views:2", coloured, 2)
    np.testing.assert_array_equal(turned.inputs(coloured, 1)[0], np.rot90(coloured.x[20], 1, axes=(1, 2)))


def test_truncated_shares_are_equal_and_still_mixed() -> None:
    split = _split("slicing:5/truncate:20,test=30", _made(4000, 10), 8)
    assert {(len(share.train_M), len(share.test_M)) for share in split.shares} == {(20, 30)}
    assert np.mean([len(set(_made(4000, 10).y[share.train_M])) for share in split.shares]) > 3
    whole, cut = (_split(f"dirichlet:1{more}", _made(4000, 10), 8) for more in ("", "/truncate:400,at_most=true"))
    for before, after in zip(whole.shares, cut.shares, strict=True):
        np.testing.assert_array_equal(after.train_M, before.train_M[:400])
    assert len({len(share.train_M) for share in cut.shares}) > 1


@pytest.mark.parametrize("rule", ["iid", "labels:4", "dirichlet:100"])
def test_truncated_test_parts_have_the_classes_of_a_sorted_file(rule: str) -> None:
    dataset = replace(_made(4000, 4), y=np.repeat(np.arange(4), 1000))
    split = _split(f"{rule}/truncate:20,test=40", dataset, 4)
    for peer in range(4):
        assert np.bincount(split.labels(dataset, peer, test=True).astype(np.int64), minlength=4).min() >= 3
    if rule != "dirichlet:100":
        assert len({tuple(share.test_M) for share in split.shares}) == 1, "a common test part stays one"


def test_a_subsample_keeps_that_fraction_of_each_share() -> None:
    whole, split = (_split(f"dirichlet:0.3,least=20{rest}", _made(4000, 10), 8) for rest in ("", "/subsample:0.25"))
    assert split.rule == "dirichlet:0.3,least=20/subsample:0.25"
    for before, after in zip(whole.shares, split.shares, strict=True):
        for old_M, new_M in ((before.train_M, after.train_M), (before.test_M, after.test_M)):
            assert len(new_M) == min(len(old_M), max(1, round(len(old_M) / 4)))
            places = [old_M.tolist().index(each) for each in new_M]
            assert places == sorted(set(places)), "no example twice, in the order that there was"
            assert len(new_M) < 8 or places != list(range(len(places))), "drawn, not the first"


def test_peers_and_classes_are_named_as_people_do() -> None:
    dataset = _made(100, 4)
    split = _split("iid/swap:class1+3,on=1+3-4", dataset, 5)
    assert [share.label_map_C is not None for share in split.shares] == [True, False, True, True, False]
    assert split.shares[0].note == "class1 and class3 exchanged"
    assert split.rule == "iid/swap:class1+3,on=1+3-4"


# Mistakes


@pytest.mark.parametrize(
    ("rule", "dataset", "peers", "said"),
    [
        ("user", DIGITS, 4, "digits has no users"),
        ("iid/subsample:0", DIGITS, 4, "write a fraction above 0 and at most 1"),
        ("drift", DIGITS, 4, "no subclasses"),
        ("blocks:120", DIGITS, 16, "use blocks:112 or less"),
        ("blocks", DIGITS, 2000, "use fewer peers"),
        ("blocks:5,test=9999", DIGITS, 16, "test examples"),
        ("iid", DIGITS, 1500, "use 1347 peers or fewer"),
        ("iid", DIGITS, 0, "use 1 or more"),
        ("iid,test_fraction=1", DIGITS, 4, "between 0 and 1"),
        ("labels:11", DIGITS, 4, "a peer can hold 1 to 10"),
        ("slicing:0", DIGITS, 4, "slicing:0: digits has 10 classes; a peer can hold 1 to 10"),
        ("labels:10", DIGITS, 200, 'to hold "'),
        ("slicing:3,cuts=shared", DIGITS, 4, "must divide 10"),
        ("dirichlet:0", DIGITS, 4, "above 0"),
        ("dirichlet,least=400", DIGITS, 4, "too few for 400"),
        ("dirichlet,least=0", DIGITS, 4, "use 1 or more"),
        ("dirichlet,least=9999", DIGITS, 4, "use a smaller least"),
        ("labels:2", _regression(), 4, "needs classes"),
        ("iid/swap:1+2", _regression(), 4, "changes labels"),
        ("iid/swap:1", DIGITS, 4, "name two labels"),
        ("iid/swap:1+1", DIGITS, 4, "two different labels"),
        ("iid/swap:clas2+class1", _made(100, 4), 4, 'did you mean "class'),
        ("iid/swap:10+1", DIGITS, 4, "from 0 to 9"),
        ("iid/swap:1+2,on=3-9", DIGITS, 4, "the peers are 1 to 4"),
        ("iid/swap:1+2,on=0", DIGITS, 4, "the peers are 1 to 4"),
        ("iid/swap:1+2,on=peer1", DIGITS, 4, "by number"),
        ("iid/swap:1+2,on=3-2", DIGITS, 4, "write on=2-3"),
        ("iid/cycle:1", DIGITS, 4, "2 to 10 labels"),
        ("iid/permutations:3", DIGITS, 5, "use 6 peers or more"),
        ("iid/permutations:11", DIGITS, 5, "use 2 to 10"),
        ("iid/truncate:500", DIGITS, 16, "use 1 to 84, fewer peers, or at_most=true"),
        ("iid/views:5", DIGITS, 16, "as many as there are 4 turns"),
        ("iid/views:20,kind=pixels", DIGITS, 16, "as many as there are 16 peers"),
        ("iid/views:2", replace(DIGITS, x=DIGITS.x[:, :63]), 4, "no square images"),
        ("iid/codes:17", DIGITS, 16, "write 2 to 16"),
        ("iid/codes", _made(100, 2), 4, "there are 4 peers, and 2 orders of 2 classes; write 2"),
        ("iid/codes", DIGITS, 1, "take more peers"),
        ("user", replace(_made(7, 2), user_N=np.arange(7)), None, "made: no user has two examples"),
        ("iid/codes:2", _regression(), 4, "changes labels"),
        ("iid/", DIGITS, 4, "empty piece"),
    ],
)
def test_what_cannot_be_is_said_with_a_way_out(rule: str, dataset: Dataset, peers: int | None, said: str) -> None:
    with pytest.raises(DataError) as caught:
        _split(rule, dataset, peers)
    assert said in str(caught.value)


def test_a_test_part_without_the_class_is_named() -> None:
    dataset = _made(40, 2)
    dataset = Dataset(**{**vars(dataset), "test_N": (dataset.y == 0) & (np.arange(40) % 3 == 0)})
    with pytest.raises(DataError, match=r"peer[12] would have nothing to test on"):
        _split("labels:1", dataset, 2)


def test_tokens_have_no_pixels() -> None:
    dataset = Dataset(**{**vars(_made(40, 2)), "input_kind": "tokens"})
    with pytest.raises(DataError, match="no fixed places"):
        _split("iid/pixels", dataset, 2)
