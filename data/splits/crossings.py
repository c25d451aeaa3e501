"""Modifiers of a base split that make peers differ in two ways that cross: in their inputs, and in their labels.

`views` goes through the peers in turn (peer1 has the first view, peer2 the second), `codes` gives an equal run of
consecutive peers the same code. So with `blocks:50/views:4/codes:4` sixteen peers have each pair of a view and a code
once. The first view and the first code leave the data unchanged.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import DataError, Dataset, Share, Split
from fedpeer.data.splits.shares import changed_shares, class_count, joined_notes, relabelled

#: Number of orientations of an image, by quarter turns.
_TURNS = 4


def views(
    dataset: Dataset,
    split: Split,
    draws: np.random.Generator,
    *,
    count: int = 4,
    kind: Literal["turns", "pixels"] = "turns",
) -> Split:
    """Peers see images in `count` ways, in turn: turned by quarters, or (`kind=pixels`) in random orders of pixels."""
    if dataset.input_kind == "tokens" or dataset.task == "completion":
        raise DataError(f"views: {dataset.name} has no images to be seen otherwise; leave it out")
    if not 2 <= count <= (_TURNS if kind == "turns" else len(split.shares)):
        most = f"{_TURNS} turns" if kind == "turns" else f"{len(split.shares)} peers"
        raise DataError(f"views:{count}: write 2 or more, and at most as many as there are {most}")
    features = math.prod(dataset.input_shape)
    if kind == "turns":
        places = _places(dataset)
        orders = [np.rot90(places, turn, axes=(1, 2)).ravel() for turn in range(count)]
    else:
        orders = [np.arange(features), *(draws.permutation(features) for _ in range(count - 1))]

    def change(share: Share, peer: int) -> Share:
        view = peer % count
        if not view:
            return share
        before_F = np.arange(features) if share.feature_map_F is None else share.feature_map_F
        return replace(share, feature_map_F=before_F[orders[view]], note=joined_notes(share.note, f"view {view + 1}"))

    return changed_shares(split, f"views:{count}" + (",kind=pixels" if kind == "pixels" else ""), (), change)


def _places(dataset: Dataset) -> NDArray[np.int64]:
    """Return the places of an image's pixels in the flattened example, (C, S, S).

    Raises:
        DataError: the examples are not square images.
    """
    shape = dataset.input_shape
    side = math.isqrt(shape[0]) if len(shape) == 1 else shape[-1]
    square = (1, side, side) if len(shape) == 1 else shape
    if len(square) != 3 or square[1:] != (side, side) or math.prod(square) != math.prod(shape):
        raise DataError(f"views: the examples of {dataset.name} are no square images: {shape}; write kind=pixels")
    return np.arange(math.prod(shape)).reshape(square)


def codes(dataset: Dataset, split: Split, draws: np.random.Generator, *, count: int = 4) -> Split:
    """Labels in `count` codes, each for an equal run of consecutive peers: random permutations of the classes."""
    classes, peers = class_count(dataset, "codes"), len(split.shares)
    orders = math.factorial(min(classes, 20))
    if not 2 <= count <= min(peers, orders):
        way_out = f"write {'2' if min(peers, orders) == 2 else f'2 to {min(peers, orders)}'}"
        raise DataError(
            f"codes:{count}: there are {peers} peers, and {orders:,} orders of {classes} classes; "
            f"{'take more peers, or leave it out' if peers < 2 else way_out}"
        )
    maps = [np.arange(classes)]
    while len(maps) < count:
        drawn = draws.permutation(classes)
        if not any(np.array_equal(drawn, known) for known in maps):
            maps.append(drawn)

    def change(share: Share, peer: int) -> Share:
        code = peer * count // peers
        return relabelled(share, maps[code], f"code {code + 1}") if code else share

    return changed_shares(split, f"codes:{count}", (), change)
