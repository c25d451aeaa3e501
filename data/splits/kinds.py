"""Base splits by kind: each peer holds some of the classes, or one subclass of each class (concept drift).

The kinds are dealt to the peers first; then the examples of each kind are cut among its holders. `bases.py` has the
guarantees of all base splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import DataError, Dataset, Split
from fedpeer.data.splits.cuts import Indices, Mask, cut_examples, deal, random_cuts
from fedpeer.data.splits.shares import classes_of, counted_words, held_out, split_of, wanted_peers, worded

#: Cuts of a kind: into equal parts, at random places, or at the same random places for every kind.
_Cuts = Literal["equal", "per-class", "shared"]


def labels(
    dataset: Dataset,
    peers: int | None,
    draws: np.random.Generator,
    *,
    each: int = 2,
    test_fraction: float | None = None,
) -> Split:
    """Each peer holds `each` of the classes, and each class is shared equally among its holders."""
    return _by_class(dataset, peers, draws, f"labels:{each}", each, "equal", test_fraction)


def slicing(
    dataset: Dataset,
    peers: int | None,
    draws: np.random.Generator,
    *,
    each: int | None = None,
    cuts: _Cuts = "per-class",
    test_fraction: float | None = None,
) -> Split:
    """Random slicing: each peer holds `each` classes (default: half of them), in shares of very different sizes.

    `cuts=per-class` cuts each class at its own places, as the paper's text says. `cuts=shared` uses the same places for
    every class, as the paper's program does: then a peer holds equally many examples of each of its classes, and the
    peers that share one pack of all classes hold equally many in total. Peers test on all test examples of their
    classes.

    Source: Zhu et al., Confidence-aware Personalized Federated Learning, 2023, appendix A.
    """
    each = max(1, len(dataset.classes) // 2) if each is None else each
    rule = worded(f"slicing:{each}", cuts=None if cuts == "per-class" else cuts)
    return _by_class(dataset, peers, draws, rule, each, cuts, test_fraction)


def drift(
    dataset: Dataset,
    peers: int | None,
    draws: np.random.Generator,
    *,
    cuts: _Cuts = "per-class",
    test_fraction: float | None = None,
) -> Split:
    """Concept drift: each peer knows one subclass of every class (a bed, a chair, ... as furniture).

    `cuts` is as in `slicing`, for each subclass; `equal` gives the holders of a subclass equally many examples. Peers
    test on the test examples of their own subclasses.

    Source: Zhu et al. 2023, appendix A.
    """
    if dataset.subclass_N is None:
        raise DataError(f"{dataset.name} has no subclasses, which drift needs; use cifar100, or the split slicing")
    wanted = wanted_peers(peers)
    test_N = held_out(dataset, test_fraction, draws)
    shards: list[list[int]] = [[] for _ in range(wanted)]
    for label in range(len(dataset.classes)):
        subclasses = np.unique(dataset.subclass_N[dataset.y == label])
        if len(subclasses):
            for shard, drawn in zip(shards, deal(subclasses.tolist(), 1, wanted, draws), strict=True):
                shard += drawn
    rule = worded("drift", cuts=None if cuts == "per-class" else cuts, test_fraction=test_fraction)
    return _by_kind(dataset, rule, dataset.subclass_N, dataset.subclass_names, shards, cuts, test_N, draws)


def _by_class(
    dataset: Dataset,
    peers: int | None,
    draws: np.random.Generator,
    rule: str,
    each: int,
    cuts: _Cuts,
    test_fraction: float | None,
) -> Split:
    classes = classes_of(dataset, rule)
    if not 1 <= each <= len(classes):
        raise DataError(f"{rule}: {dataset.name} has {len(classes)} classes; a peer can hold 1 to {len(classes)}")
    if cuts == "shared" and len(classes) % each:
        raise DataError(
            f"{rule}: with cuts=shared the {len(classes)} classes are dealt out evenly, so each peer's number must "
            f"divide {len(classes)}; or use cuts=per-class"
        )
    wanted = wanted_peers(peers)
    test_N = held_out(dataset, test_fraction, draws)
    shards = deal(range(len(classes)), each, wanted, draws)
    rule = worded(rule, test_fraction=test_fraction)
    return _by_kind(dataset, rule, dataset.y.astype(np.int64), classes, shards, cuts, test_N, draws)


def _by_kind(
    dataset: Dataset,
    rule: str,
    kind_N: NDArray[np.int64],
    names: Sequence[str],
    shards: Sequence[Sequence[int]],
    cuts: _Cuts,
    test_N: Mask,
    draws: np.random.Generator,
) -> Split:
    """Divide each kind (class or subclass) among the peers that have it."""
    holders: dict[int, list[int]] = {}
    for peer, shard in enumerate(shards):
        for kind in shard:
            holders.setdefault(kind, []).append(peer)
    orders = {kind: draws.permutation(np.flatnonzero((kind_N == kind) & ~test_N)) for kind in holders}
    most = max(map(len, holders.values()))
    for kind, order in orders.items():
        parts_wanted = most if cuts == "shared" else len(holders[kind])
        if len(order) < parts_wanted:
            raise DataError(
                f'{rule}: {parts_wanted} peers are to hold "{names[kind]}", of which {dataset.name} has '
                f"{counted_words(len(order), 'example')} to train on; use fewer peers, or fewer classes for each"
            )
    if cuts == "shared":
        smallest = min(map(len, orders.values()))
        common = random_cuts(smallest, most, draws)
        orders = {kind: order[:smallest] for kind, order in orders.items()}
    piles: list[list[Indices]] = [[] for _ in shards]
    for kind, peers in holders.items():
        order = orders[kind]
        if cuts == "equal":
            parts = np.array_split(order, len(peers))
        else:
            parts = cut_examples(order, common if cuts == "shared" else random_cuts(len(order), len(peers), draws))
        for peer, part in zip(peers, parts, strict=cuts != "shared"):  # with "shared" the last part may have no holder
            piles[peer].append(part)
    trains = [draws.permutation(np.concatenate(pile)) for pile in piles]
    tests = [np.flatnonzero(test_N & np.isin(kind_N, shard)) for shard in shards]
    notes = [", ".join(names[kind] for kind in sorted(shard)) if len(shard) <= 3 else "" for shard in shards]
    return split_of(dataset, rule, trains, tests, int((~test_N).sum()) - sum(map(len, trains)), notes)
