"""Functions that splits and their modifiers use: test parts, checks that a split is possible, changes of shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import ASKED, DataError, Dataset, Share, Split
from fedpeer.data.splits.cuts import Indices, Mask, checked_fraction, stratified

#: Number of peers if neither the user nor the data determines one: the papers' number.
PEERS = 16


def split_of(
    dataset: Dataset,
    rule: str,
    trains: Sequence[Indices],
    tests: Sequence[Indices],
    left: int = 0,
    notes: Sequence[str] | None = None,
) -> Split:
    """Return the split of these shares; `left`: number of training examples that no peer has.

    Raises:
        DataError: a peer has no test examples.
    """
    for peer, test in enumerate(tests):
        if not len(test):
            raise DataError(
                f"{rule}: peer{peer + 1} would have nothing to test on: the test part of {dataset.name} has no example "
                "of what it holds; use fewer peers, or set test_fraction"
            )
    shares = tuple(
        Share(train_M=train.astype(np.int64), test_M=test, note=note)
        for train, test, note in zip(trains, tests, notes or [""] * len(trains), strict=True)
    )
    return Split(
        rule=rule, shares=shares, remarks=(f"{counted_words(left, 'training example')} left over",) if left else ()
    )


def held_out(dataset: Dataset, test_fraction: float | None, draws: np.random.Generator) -> Mask:
    """Return the test part, (N,) bool: the official part, or a random part if there is none or a fraction is given."""
    fraction = fraction_of(dataset, test_fraction)
    if test_fraction is None and dataset.test_N is not None:
        return dataset.test_N
    if dataset.task != "classification":
        return stratified(np.zeros(len(dataset)), fraction, draws)
    return stratified(dataset.y if dataset.subclass_N is None else dataset.subclass_N, fraction, draws)


def fraction_of(dataset: Dataset, test_fraction: float | None) -> float:
    """Return the fraction to hold out for testing: the user's, or the default.

    Raises:
        DataError: the fraction is invalid, or the test part cannot be drawn at random, as for patterns to complete,
            whose test part has incomplete ones.
    """
    if dataset.task == "completion" and (test_fraction is not None or dataset.test_N is None):
        raise DataError(f"{dataset.name} is tested on incomplete patterns, its own test part; leave test_fraction out")
    return checked_fraction(test_fraction)


def classes_of(dataset: Dataset, rule: str) -> tuple[str, ...]:
    """Return the names of the classes; raise a DataError for another task."""
    if dataset.task != "classification":
        raise DataError(f"{rule} needs classes, but {dataset.name} has {ASKED[dataset.task]}; use iid, blocks or user")
    return dataset.classes


def wanted_peers(peers: int | None, usual: int = PEERS) -> int:
    """Return the user's number of peers, or the default."""
    if peers is not None and peers < 1:
        raise DataError(f"{peers} peers are too few; use 1 or more")
    return usual if peers is None else peers


def enough_for(dataset: Dataset, examples: int, peers: int, least: int = 1) -> None:
    """Check that there are `least` training examples for each peer.

    Raises:
        DataError: there are fewer.
    """
    if least < 1:
        raise DataError(f"least = {least}: every peer needs an example; use 1 or more")
    if not examples:
        raise DataError(
            f"{dataset.name} has no example to train on: all are for testing; mark fewer, or set test_fraction"
        )
    if examples < peers * least:
        fewer = f"{counted_words(examples // least, 'peer')} or fewer" if examples >= least else "a smaller least"
        raise DataError(
            f"{dataset.name} has {counted_words(examples, 'example')} to train on, too few for {least} at each of "
            f"{peers} peers; use {fewer}"
        )


def worded(rule: str, **settings: object) -> str:
    """Return the rule with the settings that are not None, as the text of a choice."""
    options = [f"{key}={str(value).lower()}" for key, value in settings.items() if value is not None]
    return ",".join([rule, *options])


def counted_words(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def changed_shares(split: Split, rule: str, on: tuple[str, ...], change: Callable[[Share, int], Share]) -> Split:
    """Return the split with `change(share, peer)` in place of the shares of the peers in `on`."""
    chosen = peer_numbers(on, len(split.shares), rule)
    shares = tuple(change(share, peer) if peer in chosen else share for peer, share in enumerate(split.shares))
    rule = f"{rule},on={'+'.join(on)}" if on else rule
    return replace(split, rule=f"{split.rule}/{rule}", shares=shares)


def peer_numbers(on: tuple[str, ...], peers: int, rule: str) -> set[int]:
    """Convert ("1-7", "9") to {0, ..., 6, 8}, and () to all peers."""
    if not on:
        return set(range(peers))
    chosen: set[int] = set()
    for word in on:
        first, _, last = word.partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal()):
            raise DataError(f"{rule},on={word}: write peers by number, such as on=1-7 or on=2+5")
        if int(first) > int(last):
            raise DataError(f"{rule},on={word}: the first number is above the last; write on={last}-{first}")
        if not 1 <= int(first) <= int(last) <= peers:
            raise DataError(f"{rule},on={word}: the peers are 1 to {peers}")
        chosen.update(range(int(first) - 1, int(last)))
    return chosen


def relabelled(share: Share, map_C: NDArray[np.int64], note: str) -> Share:
    """Return the share with label a renamed to map_C[a], on top of earlier changes."""
    before_C = np.arange(len(map_C)) if share.label_map_C is None else share.label_map_C
    return replace(share, label_map_C=map_C[before_C], note=joined_notes(share.note, note))


def joined_notes(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def class_count(dataset: Dataset, rule: str) -> int:
    if dataset.task != "classification":
        raise DataError(f"{rule} changes labels, but {dataset.name} has {ASKED[dataset.task]}; leave it out")
    return len(dataset.classes)
