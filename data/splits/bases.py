"""Base splits: the examples on which each peer trains and tests. Changes of labels are in `differences.py`.

Every function takes a data set, the number of peers (None: the split's default) and a generator, and returns a `Split`.
Training shares are disjoint, no test example is a training example of any peer, and every peer has at least one
training and one test example; otherwise a `DataError` names the peer and what to change.

The test part is the official one if there is one. Otherwise, or if `test_fraction` is given, that fraction of all
examples is held out, class by class, before the rest is divided; a natural user's test part is drawn from this user's
own examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import DataError, Dataset, Share, Split
from fedpeer.data.splits.cuts import TEST_FRACTION, Indices, fill, held_back
from fedpeer.data.splits.shares import (
    classes_of,
    counted_words,
    enough_for,
    fraction_of,
    held_out,
    split_of,
    wanted_peers,
    worded,
)


def user(
    dataset: Dataset,
    peers: int | None,
    draws: np.random.Generator,
    *,
    test_fraction: float | None = None,
    users: Literal["most", "least", "random"] = "most",
) -> Split:
    """Each peer is one natural user (writer, patient, sensor), those with the most examples first.

    If there are more users than peers, `users` selects those with the most examples or with the fewest, which then come
    first, or random ones. The official test part is used if each of these users has examples inside and outside it.
    """
    if dataset.user_N is None:
        raise DataError(f"{dataset.name} has no users; use another split, such as iid")
    fraction = fraction_of(dataset, test_fraction)
    counts_U = np.bincount(dataset.user_N, minlength=len(dataset.user_names))
    able = [u for u in range(len(counts_U)) if counts_U[u] >= 2]  # one example to train on and one to test on
    sign = 1 if users == "least" else -1
    able.sort(key=lambda u: (sign * counts_U[u], dataset.user_names[u]))
    if not able:
        raise DataError(
            f"{dataset.name}: no user has two examples, one to train on and one to test on; name users that have more, "
            "or use a split that makes its own shares, such as iid"
        )
    wanted = wanted_peers(peers, len(able))
    if wanted > len(able):
        raise DataError(
            f"{dataset.name} has {counted_words(len(able), 'user')} with two examples or more, but {wanted} peers were "
            f"asked for; use {counted_words(len(able), 'peer')} or fewer, or a split that makes its own shares, "
            "such as iid"
        )
    if users == "random":
        able = draws.permutation(able).tolist()
    own = [draws.permutation(np.flatnonzero(dataset.user_N == u)) for u in able[:wanted]]
    parts, remark = _official_parts(dataset, own) if test_fraction is None else (None, "")
    if parts is None:
        parts = [(each[held_back(len(each), fraction) :], each[: held_back(len(each), fraction)]) for each in own]
    shares = tuple(
        Share(train_M=train, test_M=test, note=dataset.user_names[u])
        for u, (train, test) in zip(able, parts, strict=False)
    )
    single = [dataset.user_names[u] for u in range(len(counts_U)) if counts_U[u] < 2]
    remarks = [remark] if remark else []
    if len(able) > wanted:
        there = f"there {'is' if wanted == 1 else 'are'} {counted_words(wanted, 'peer')}"
        remarks.append(f"{counted_words(len(able) - wanted, 'user')} left out, since {there}")
    if single:
        named = ", ".join(single[:8]) + (", ..." if len(single) > 8 else "")
        why = "a peer needs one example to train on and one to test on"
        remarks.append(f"{counted_words(len(single), 'user')} left out ({named}): {why}")
    rule = worded("user", test_fraction=test_fraction, users=None if users == "most" else users)
    return Split(rule=rule, shares=shares, remarks=tuple(remarks))


def _official_parts(dataset: Dataset, own: Sequence[Indices]) -> tuple[list[tuple[Indices, Indices]] | None, str]:
    if dataset.test_N is None:
        return None, ""
    parts = [(each[~dataset.test_N[each]], each[dataset.test_N[each]]) for each in own]
    if all(len(train) and len(test) for train, test in parts):
        return parts, ""
    if dataset.task == "completion":
        raise DataError(f"{dataset.name} has users without training or test patterns; use another split, such as iid")
    return None, "the official test part has other users, so every user's examples were divided again"


def blocks(
    dataset: Dataset,
    peers: int | None,
    draws: np.random.Generator,
    *,
    size: int | None = None,
    test: int | None = None,
    shuffle: bool = False,
) -> Split:
    """Peer p trains on the p-th block of `size` consecutive examples; all test on the same ones.

    Without an official test part the test examples are those after the last block; `test` keeps only the first ones.
    Blocks follow the official order; with `shuffle` they follow a random order, for files sorted by writer or by class.

    Source: partial averaging, 2021, section V.3.
    """
    wanted = wanted_peers(peers)
    train_N = np.arange(len(dataset)) if dataset.test_N is None else np.flatnonzero(~dataset.test_N)
    if shuffle:
        train_N = draws.permutation(train_N)
    kept_back = 0 if dataset.test_N is not None else 1 if size else max(1, round(TEST_FRACTION * len(dataset)))
    largest = (len(train_N) - kept_back) // wanted
    if size is None:
        size = largest
    if not 1 <= size <= largest:
        way_out = f"use blocks:{largest} or less, or fewer peers" if largest else "use fewer peers"
        raise DataError(
            f"{counted_words(wanted, 'block')} of {size} do not fit into {dataset.name}, which has {len(train_N)} "
            f"examples to train on{' and none set apart for testing' if dataset.test_N is None else ''}; {way_out}"
        )
    used = size * wanted
    test_M = train_N[used:] if dataset.test_N is None else np.flatnonzero(dataset.test_N)
    if test is not None:
        if not 1 <= test <= len(test_M):
            raise DataError(f"blocks,test={test}: there are {len(test_M)} test examples; use 1 to {len(test_M)}")
        test_M = test_M[:test]
    trains = [train_N[p * size : (p + 1) * size] for p in range(wanted)]
    left = len(train_N) - used if dataset.test_N is not None else 0
    rule = worded(f"blocks:{size}", test=test, shuffle=shuffle or None)
    return split_of(dataset, rule, trains, [test_M] * wanted, left)


def iid(
    dataset: Dataset, peers: int | None, draws: np.random.Generator, *, test_fraction: float | None = None
) -> Split:
    """All examples shuffled and cut into equal shares; all peers test on the same examples."""
    wanted = wanted_peers(peers)
    test_N = held_out(dataset, test_fraction, draws)
    order = draws.permutation(np.flatnonzero(~test_N))
    enough_for(dataset, len(order), wanted)
    trains = np.array_split(order, wanted)
    return split_of(dataset, worded("iid", test_fraction=test_fraction), trains, [np.flatnonzero(test_N)] * wanted)


def dirichlet(
    dataset: Dataset,
    peers: int | None,
    draws: np.random.Generator,
    *,
    alpha: float = 0.5,
    least: int = 1,
    test_fraction: float | None = None,
) -> Split:
    """Each class is divided among the peers in proportions drawn from Dir(alpha): small alpha, large differences.

    A peer with fewer than `least` training examples gets some from the largest share. A peer's test examples have the
    class proportions of its training examples.

    Source: Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution, 2019.
    """
    classes_of(dataset, "dirichlet")
    if not alpha > 0:
        raise DataError(f"dirichlet:{alpha:g}: alpha must be above 0; 0.1 gives large differences, 100 hardly any")
    wanted = wanted_peers(peers)
    test_N = held_out(dataset, test_fraction, draws)
    train_y, test_y = np.where(test_N, -1, dataset.y), np.where(test_N, dataset.y, -1)
    enough_for(dataset, int((~test_N).sum()), wanted, least)
    piles: list[list[Indices]] = [[] for _ in range(wanted)]
    for label in range(len(dataset.classes)):
        order = draws.permutation(np.flatnonzero(train_y == label))
        ends = np.floor(np.cumsum(draws.dirichlet(np.full(wanted, alpha))) * len(order)).astype(np.int64)
        for pile, part in zip(piles, np.split(order, ends[:-1]), strict=True):
            pile.append(part)
    trains, moved = fill([np.concatenate(pile) for pile in piles], least)
    tests_C = [draws.permutation(np.flatnonzero(test_y == label)) for label in range(len(dataset.classes))]
    tests = [_in_proportion(np.bincount(train_y[train], minlength=len(tests_C)), tests_C) for train in trains]
    rule = worded(f"dirichlet:{alpha:g}", least=None if least == 1 else least, test_fraction=test_fraction)
    split = split_of(dataset, rule, [draws.permutation(train) for train in trains], tests)
    remark = f"{counted_words(moved, 'example')} moved from the largest shares so that every peer has at least {least}"
    return Split(rule=split.rule, shares=split.shares, remarks=(*split.remarks, *([remark] if moved else [])))


def _in_proportion(counts_C: NDArray[np.int64], tests_C: Sequence[Indices]) -> Indices:
    """Return as many test examples as possible in the class proportions of `counts_C`, and at least one if any fits.

    They are in the order of the file.
    """
    available_C = np.array([len(tests) for tests in tests_C])
    part_C = np.where(available_C > 0, counts_C, 0) / counts_C.sum()
    held = np.flatnonzero(part_C)
    if not len(held):
        return np.empty(0, dtype=np.int64)
    total = (available_C[held] / part_C[held]).min()
    take_C = np.minimum(np.floor(part_C * total + 1e-9).astype(np.int64), available_C)
    take_C[part_C.argmax()] = max(1, take_C[part_C.argmax()])
    return np.sort(np.concatenate([tests[:take] for tests, take in zip(tests_C, take_C, strict=True)]))
