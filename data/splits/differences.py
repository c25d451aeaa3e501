"""Modifiers of a base split that make peers' tasks differ: exchanged labels, permuted pixels; and equal sizes.

Each function takes a data set, a split and a generator and returns the split with some shares changed, so they compose
in any order. Labels are changed for both training and test: the peer has another task.

`on` selects peers: `on=1-7` is peer1 to peer7, `on=2+5` is peer2 and peer5; the default is all peers. A class is given
by its name or its number.
"""

from __future__ import annotations

import difflib
import itertools
import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import DataError, Dataset, Share, Split
from fedpeer.data.splits.shares import changed_shares, class_count, joined_notes, relabelled


def swap(
    dataset: Dataset, split: Split, draws: np.random.Generator, *, labels: tuple[str, ...], on: tuple[str, ...] = ()
) -> Split:
    """Two labels exchanged: `swap:8+9,on=1-7`.

    Source: partial averaging, 2021, section V.3.
    """
    count = class_count(dataset, "swap")
    if len(labels) != 2:
        raise DataError(f"swap:{'+'.join(labels)}: name two labels, such as swap:8+9")
    a, b = (_class_number(dataset, word) for word in labels)
    if a == b:
        raise DataError(f"swap:{'+'.join(labels)}: name two different labels")
    map_C = np.arange(count)
    map_C[[a, b]] = b, a
    note = f"{dataset.classes[a]} and {dataset.classes[b]} exchanged"
    rule = f"swap:{'+'.join(labels)}"
    return changed_shares(split, rule, on, lambda share, _: relabelled(share, map_C, note))


def cycle(
    dataset: Dataset, split: Split, draws: np.random.Generator, *, rate: int = 2, on: tuple[str, ...] = ()
) -> Split:
    """Last `rate` labels moved on by one, the very last to the first of them; 0 changes nothing.

    Source: partial averaging, 2021, section V.3.f, the cycle (10 - r ... 9).
    """
    count = class_count(dataset, "cycle")
    if rate == 1 or not 0 <= rate <= count:
        raise DataError(f"cycle:{rate}: a cycle takes 2 to {count} labels of {dataset.name}, or 0 for no change")
    map_C = np.arange(count)
    map_C[count - rate :] = np.roll(map_C[count - rate :], -1)
    note = f"last {rate} labels in a cycle" if rate else ""
    return changed_shares(split, f"cycle:{rate}", on, lambda share, _: relabelled(share, map_C, note))


def permutations(dataset: Dataset, split: Split, draws: np.random.Generator, *, last: int = 3) -> Split:
    """All permutations of the last labels, each for an equal run of consecutive peers, unchanged labels first.

    Source: partial averaging, 2021, section V.3.d, the elements of S_3.
    """
    count, peers = class_count(dataset, "permutations"), len(split.shares)
    if not 2 <= last <= count:
        raise DataError(f"permutations:{last}: {dataset.name} has {count} labels; use 2 to {count}")
    if math.factorial(last) > peers:
        raise DataError(
            f"permutations:{last}: there are {math.factorial(last)} permutations, but {peers} peers; "
            f"use {math.factorial(last)} peers or more, or fewer labels"
        )
    first = count - last
    maps = [np.array([*range(first), *order]) for order in itertools.permutations(range(first, count))]

    def change(share: Share, peer: int) -> Share:
        map_C = maps[peer * len(maps) // peers]
        names = " ".join(dataset.classes[label] for label in map_C[first:])
        return relabelled(share, map_C, f"last labels as {names}" if np.any(np.diff(map_C) != 1) else "")

    return changed_shares(split, f"permutations:{last}", (), change)


def pixels(dataset: Dataset, split: Split, draws: np.random.Generator, *, on: tuple[str, ...] = ()) -> Split:
    """Each peer sees the features (pixels) in a random order of its own, the same in training and test."""
    if dataset.input_kind == "tokens":
        raise DataError(f"pixels: {dataset.name} is text, whose tokens have no fixed places; leave it out")
    if dataset.task == "completion":
        raise DataError(f"pixels: in {dataset.name} the target has the places of the input; leave it out")
    features = math.prod(dataset.input_shape)

    def change(share: Share, peer: int) -> Share:
        order_F = draws.permutation(features)
        before_F = np.arange(features) if share.feature_map_F is None else share.feature_map_F
        return replace(share, feature_map_F=before_F[order_F], note=joined_notes(share.note, "features permuted"))

    return changed_shares(split, "pixels", on, change)


def truncate(
    dataset: Dataset,
    split: Split,
    draws: np.random.Generator,
    *,
    size: int,
    test: int | None = None,
    at_most: bool = False,
) -> Split:
    """All peers keep the same number of training examples, `size`, and of test examples if `test` is given.

    With `at_most=true` peers that have fewer keep all of theirs; without it that is an error. Training examples,
    and the test examples of a user, are in random order, of which the first are kept. Other test parts are in the order
    of the file, which may be sorted by class, so the kept ones are drawn; peers with the same test part keep the same.
    """
    for part, wanted in (("train", size), ("test", test)):
        if wanted is None:
            continue
        counts = [len(share.train_M if part == "train" else share.test_M) for share in split.shares]
        poorest = int(np.argmin(counts))
        if not 1 <= wanted <= (wanted if at_most else counts[poorest]):
            raise DataError(
                f"truncate: {wanted} {part} examples were asked for at each peer, but peer{poorest + 1} has "
                f"{counts[poorest]}; use 1 to {counts[poorest]}, fewer peers, or at_most=true"
            )
    sorted_P = [test is not None and len(share.test_M) > test and _rises(share.test_M) for share in split.shares]
    rank_N = draws.permutation(len(dataset)) if any(sorted_P) else None

    def change(share: Share, peer: int) -> Share:
        test_M = share.test_M
        if rank_N is not None and sorted_P[peer]:
            test_M = np.sort(test_M[np.argsort(rank_N[test_M])[:test]])
        return replace(share, train_M=share.train_M[:size], test_M=test_M[:test])

    rule = f"truncate:{size}" + ("" if test is None else f",test={test}") + (",at_most=true" if at_most else "")
    return changed_shares(split, rule, (), change)


def subsample(dataset: Dataset, split: Split, draws: np.random.Generator, *, fraction: float) -> Split:
    """Each peer keeps a random fraction of its training examples and of its test examples, at least one of each."""
    if not 0 < fraction <= 1:
        raise DataError(f"subsample:{fraction:g}: write a fraction above 0 and at most 1, such as 0.1")

    def some(index_M: NDArray[np.int64]) -> NDArray[np.int64]:
        count = min(len(index_M), max(1, round(fraction * len(index_M))))
        return index_M[np.sort(draws.choice(len(index_M), count, replace=False))]

    return changed_shares(
        split,
        f"subsample:{fraction:g}",
        (),
        lambda share, _: replace(share, train_M=some(share.train_M), test_M=some(share.test_M)),
    )


def _rises(index_M: NDArray[np.int64]) -> bool:
    return bool(np.all(np.diff(index_M) > 0))


def _class_number(dataset: Dataset, word: str) -> int:
    if word in dataset.classes:
        return dataset.classes.index(word)
    if word.isdecimal() and int(word) < len(dataset.classes):
        return int(word)
    near = [] if word.isdecimal() else difflib.get_close_matches(word, dataset.classes, n=1)
    hint = f'did you mean "{near[0]}"?' if near else f"use a name or a number from 0 to {len(dataset.classes) - 1}"
    raise DataError(f'{dataset.name} has no class "{word}"; {hint}')
