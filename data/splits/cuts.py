"""Small pure functions on indices that divide examples into parts; the base splits are made of them.

Nothing here knows the peers' tasks or reads a file. All randomness comes from the generator that is passed, and every
function terminates: a share that is too small is filled from the largest one, without another draw.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import DataError

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: Fraction held out for testing if a data set has no official test part: a quarter, as in the papers.
TEST_FRACTION = 0.25


def cut_examples(order: Indices, cut_indices: Sequence[int] | Indices) -> list[Indices]:
    """Cut shuffled examples (N,) at M-1 distinct places in 1..N-1, into M nonempty parts that cover all of them.

    Source: Zhu, Ma, Blaschko, Confidence-aware Personalized Federated Learning, 2023, appendix A, step (ii).
    """
    places = np.asarray(cut_indices, dtype=np.int64)
    assert np.all(np.diff(places, prepend=0, append=len(order)) > 0), "cuts must rise strictly inside 1..N-1"
    return np.split(order, places)


def random_cuts(count: int, parts: int, draws: np.random.Generator) -> Indices:
    """Draw `parts - 1` distinct places in 1..count-1, sorted; every set of places is equally likely."""
    assert 1 <= parts <= count
    return np.sort(draws.choice(count - 1, size=parts - 1, replace=False)) + 1


def deal(kinds: Sequence[int], each: int, peers: int, draws: np.random.Generator) -> list[list[int]]:
    """Deal every peer `each` different kinds from a shuffled pack, which is refilled when it is empty.

    Numbers of holders of any two kinds differ by at most one. If `each` divides the number of kinds, the peers of one
    pack hold complementary kinds.

    Source: Zhu et al. 2023, appendix A, step (i).
    """
    assert 1 <= each <= len(kinds)
    pack: list[int] = []
    shards: list[list[int]] = []
    for _ in range(peers):
        shard: list[int] = []
        while len(shard) < each:
            if not pack:
                pack = [int(kind) for kind in draws.permutation(np.asarray(kinds))]
            # A pack refilled in the middle of a hand may begin with a kind that the hand has: it stays in the pack.
            kind = next(kind for kind in pack if kind not in shard)
            pack.remove(kind)
            shard.append(kind)
        shards.append(shard)
    return shards


def fill(shares: Sequence[Indices], least: int) -> tuple[list[Indices], int]:
    """Move examples from the largest share to smaller ones until each has `least`; return the shares and the moves.

    It is deterministic: peers are filled in order, each time with the last example of the first of the largest shares.
    """
    sizes = np.array([len(share) for share in shares])
    assert sizes.sum() >= least * len(shares), "checked by the caller, who can say what to change"
    filled = list(shares)
    moved = 0
    for poor in np.flatnonzero(sizes < least):
        while sizes[poor] < least:
            rich = int(sizes.argmax())
            filled[poor] = np.append(filled[poor], filled[rich][-1])
            filled[rich] = filled[rich][:-1]
            sizes[poor] += 1
            sizes[rich] -= 1
            moved += 1
    return filled, moved


def held_back(count: int, fraction: float) -> int:
    """Return how many of `count` >= 2 examples are for testing: about the fraction, at least one and not all."""
    assert count >= 2
    return min(max(round(fraction * count), 1), count - 1)


def checked_fraction(test_fraction: float | None) -> float:
    """Return the user's fraction, or the default.

    Raises:
        DataError: the fraction is not strictly between 0 and 1.
    """
    if test_fraction is None:
        return TEST_FRACTION
    if not 0 < test_fraction < 1:
        raise DataError(f"test_fraction = {test_fraction:g}: write a number between 0 and 1, such as 0.25")
    return test_fraction


def stratified(kind_N: NDArray[np.generic], fraction: float, draws: np.random.Generator) -> Mask:
    """Draw a test part, (N,) bool, kind by kind; a kind with a single example keeps it for training."""
    test_N = np.zeros(len(kind_N), dtype=np.bool_)
    for kind in np.unique(kind_N):
        members = draws.permutation(np.flatnonzero(kind_N == kind))
        if len(members) >= 2:
            test_N[members[: held_back(len(members), fraction)]] = True
    return test_N
