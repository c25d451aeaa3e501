"""Small images as sparse vectors to complete from their upper halves: digits for the associative network.

The network remembers few patterns, and only patterns that hardly overlap; pixels of digits overlap. So an image is cut
into blocks of 2x2 black or white pixels, and each of a block's 15 patterns with a black pixel has its own bit: at most
one of 15 bits per block is set, and two digits have few bits in common. To decode a result, the pattern of each set bit
is drawn.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.associative import missed_by, patterns, user_names
from fedpeer.data.bundled import digits
from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.idx import load_mnist
from fedpeer.data.store import DatasetSource

ASSOCIATIVE_DIGITS = DatasetSource(
    name="associative-digits",
    origin="images of digits (scikit-learn) or of MNIST, made sparse by fedpeer",
    licence="as the images",
    size="15 users, 3 images of 8x8 (or 14x14) to learn and their halves to complete each",
    package="sklearn",
)

#: Pixels along a block's side, and bits of a block: one for each pattern with a black pixel.
BLOCK, BITS = 2, 2 ** (2 * 2) - 1


def sparse(image_NHW: NDArray[np.generic]) -> NDArray[np.float32]:
    """Encode images (N, H, W) of 0 and 1, H and W even, as (N, H/2 * W/2 * 15): per block, row by row, its one bit."""
    count, height, width = image_NHW.shape
    blocks = image_NHW.reshape(count, height // BLOCK, BLOCK, width // BLOCK, BLOCK).swapaxes(2, 3)
    shown_NB = (blocks.reshape(count, -1, BLOCK * BLOCK) != 0) @ 2 ** np.arange(BLOCK * BLOCK)
    bit_NB15 = shown_NB[..., None] == np.arange(1, BITS + 1)
    return np.asarray(bit_NB15.reshape(count, -1), np.float32)


def image(bit_NF: NDArray[np.generic], side: int) -> NDArray[np.bool_]:
    """Decode (N, side/2 * side/2 * 15) to (N, side, side): a pixel is black if it is in the pattern of a set bit."""
    blocks = side // BLOCK
    black = (np.arange(1, BITS + 1)[:, None] >> np.arange(BLOCK * BLOCK)) & 1
    seen = (bit_NF.reshape(len(bit_NF), -1, BITS) != 0).astype(np.int64) @ black > 0
    return np.asarray(seen.reshape(-1, blocks, blocks, BLOCK, BLOCK).swapaxes(2, 3).reshape(-1, side, side))


def associative_digits(
    *,
    images: Literal["digits", "mnist"] = "digits",
    learnt: int = 3,
    users: int = 15,
    others: int = 2,
    changed: int = 0,
    missed: int = 0,
) -> Dataset:
    """Images of digits as sparse vectors to complete from their upper halves; two of 15 users learn another half.

    Each user learns `learnt` images, one of 0, one of 1 and so on (8x8 of scikit-learn, or MNIST's at 14x14), and
    completes them. For the first `others` users the lower half of digit `changed` is that of another digit. With
    `missed` above 0 each user learns that many digits fewer, which other users learn; the first `others` users never
    miss digit `changed`. More than three digits are too many for the default threshold; try the network
    associative:400,threshold=2.
    """
    _check(learnt, users, others, changed, missed)
    picture_NHW, side = _pictures(images, learnt + 1)
    usual_NHW, strange_NHW = picture_NHW[:learnt], picture_NHW[:learnt].copy()
    strange_NHW[changed, side // 2 :] = picture_NHW[learnt, side // 2 :]
    x, y, user_N, test_N = [], [], [], []
    for user in range(users):
        omitted = missed_by(user, learnt, changed, missed, user < others)
        known = [digit for digit in range(learnt) if digit not in omitted]
        whole_NHW = strange_NHW if user < others else usual_NHW
        half_NHW = whole_NHW.copy()
        half_NHW[:, side // 2 :] = 0
        x += [sparse(whole_NHW[known]), sparse(half_NHW)]
        y += [sparse(whole_NHW[known]), sparse(whole_NHW)]
        user_N.append(np.full(len(known) + learnt, user))
        test_N.append(np.arange(len(known) + learnt) >= len(known))
    return patterns(ASSOCIATIVE_DIGITS, x, y, user_N, test_N, user_names(users, others))


def _pictures(images: Literal["digits", "mnist"], count: int) -> tuple[NDArray[np.float32], int]:
    """Return the first image of each digit 0, 1, ..., (count, H, H) of 0 and 1, and H; MNIST's are scaled to half."""
    found = digits() if images == "digits" else load_mnist()
    first_N = [int(np.flatnonzero(found.y == digit)[0]) for digit in range(count)]
    grey_NHW = found.x[first_N].astype(np.float32)
    if images == "digits":
        return (grey_NHW.reshape(count, 8, 8) > 0.5).astype(np.float32), 8
    return (grey_NHW.reshape(count, 14, 2, 14, 2).mean((2, 4)) > 0.5).astype(np.float32), 14


def _check(learnt: int, users: int, others: int, changed: int, missed: int) -> None:
    for name, value, least, most in (
        ("learnt", learnt, 1, 9),
        ("users", users, 1, 100_000),
        ("others", others, 0, users),
        ("changed", changed, 0, learnt - 1),
        ("missed", missed, 0, learnt - 1),
    ):
        if not least <= value <= most:
            raise DataError(f"associative-digits: {name} = {value}: write {least} to {most}")
