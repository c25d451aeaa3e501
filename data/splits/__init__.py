"""Splits of a data set among peers: a base split, and modifiers on top of it, as pure functions with a generator.

A rule is written as pieces joined by `/`, the base split first: `blocks:87/swap:8+9,on=1-7` gives each peer 87
consecutive examples and exchanges the labels 8 and 9 for the first seven peers. Each piece is a choice like all others,
`name[:value][,key=value]`, in which `/` has no other meaning (`+` separates values, `,` settings); `/` needs no quotes
in a shell. In YAML a rule is this text or the list of its pieces.

`SPLITS` has the base splits, `MODIFIERS` the pieces after them. The reader of a rule looks up the first piece in
`SPLITS` and the other pieces in `MODIFIERS`, binds their settings, and passes them to `make_split`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedpeer.data.dataset import DataError, Dataset, Split
from fedpeer.data.splits import bases, crossings, differences, kinds
from fedpeer.data.splits.cuts import cut_examples
from fedpeer.data.splits.shares import PEERS, held_out, split_of
from fedpeer.data.splits.summary import summary

__all__ = ["MODIFIERS", "SPLITS", "cut_examples", "default_split", "make_split", "pieces", "summary", "undivided"]

#: name -> f(dataset, peers, draws, *, settings) -> Split
SPLITS: dict[str, Callable[..., Split]] = {
    "user": bases.user,
    "blocks": bases.blocks,
    "iid": bases.iid,
    "labels": kinds.labels,
    "dirichlet": bases.dirichlet,
    "slicing": kinds.slicing,
    "drift": kinds.drift,
}

#: name -> f(dataset, split, draws, *, settings) -> Split
MODIFIERS: dict[str, Callable[..., Split]] = {
    "swap": differences.swap,
    "cycle": differences.cycle,
    "permutations": differences.permutations,
    "pixels": differences.pixels,
    "views": crossings.views,
    "codes": crossings.codes,
    "truncate": differences.truncate,
    "subsample": differences.subsample,
}


def pieces(rule: str) -> tuple[str, ...]:
    """Return the pieces of a rule.

    >>> pieces("blocks:87/swap:8+9,on=1-7")
    ('blocks:87', 'swap:8+9,on=1-7')

    Raises:
        DataError: a piece is empty.
    """
    found = tuple(piece.strip() for piece in rule.split("/"))
    if not all(found):
        raise DataError(f'"{rule}" has an empty piece; write a split, such as iid, or several joined by one "/"')
    return found


def make_split(
    rule: Sequence[Callable[..., Split]],
    dataset: Dataset,
    peers: int | None,
    draws: np.random.Generator,
) -> Split:
    """Apply a base split from `SPLITS` and then functions from `MODIFIERS`, all with their settings bound.

    The same arguments and the same state of `draws` give the same split.

    Raises:
        DataError: the data set cannot be divided that way; the message says what to change.
    """
    base, *modifiers = rule
    split = base(dataset, peers, draws)
    for modify in modifiers:
        split = modify(dataset, split, draws)
    return split


def undivided(dataset: Dataset, test_fraction: float | None, draws: np.random.Generator) -> Split:
    """Return a split with one peer that has all examples: a test part (see `held_out`), and the rest to train on.

    Raises:
        DataError: no examples are left for training or for testing.
    """
    test_N = held_out(dataset, test_fraction, draws)
    if test_N.all():
        raise DataError(f"{dataset.name} has nothing to train on; use a smaller test_fraction")
    return split_of(dataset, "undivided", [np.flatnonzero(~test_N)], [np.flatnonzero(test_N)])


def default_split(dataset: Dataset, peers: int | None) -> str:
    """Return the default rule of a data set.

    Digits: at most 87 examples per peer, 8 and 9 exchanged for 7 of 16 peers (the share in the partial averaging paper,
    2021, section V.3), at least 405 left to test on; shuffled, because the file is sorted by writer. Other data sets:
    by subclass if there are subclasses, else by user, else IID.
    """
    if dataset.name == "digits":
        count = peers or PEERS
        return f"blocks:{min(87, max(1, 1392 // count))},shuffle=true/swap:8+9,on=1-{max(1, 7 * count // 16)}"
    if dataset.subclass_N is not None:
        return "drift"
    return "iid" if dataset.user_N is None else "user"
