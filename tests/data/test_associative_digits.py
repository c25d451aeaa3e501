"""Conversion of images to sparse vectors and back, and the patterns that users of the digits learn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpeer.data import idx, store
from fedpeer.data.associative_digits import associative_digits, image, sparse
from fedpeer.data.bundled import digits
from fedpeer.data.dataset import DataError, Dataset


@given(arrays(np.int8, st.sampled_from([(1, 2, 2), (3, 4, 4), (2, 6, 6)]), elements=st.integers(0, 1)))
def test_an_image_comes_back_and_no_block_has_two_bits(image_NHW: np.ndarray) -> None:
    count, side, _ = image_NHW.shape
    bit_NF = sparse(image_NHW)
    assert bit_NF.shape == (count, (side // 2) ** 2 * 15)
    assert bit_NF.dtype == np.float32
    assert (bit_NF.reshape(count, -1, 15).sum(-1) <= 1).all()
    assert np.array_equal(image(bit_NF, side), image_NHW)


def test_blocks_stand_row_by_row_and_their_bits_in_the_order_of_their_pixels() -> None:
    picture = np.zeros((1, 4, 6), np.int8)
    picture[0, 2, 5] = picture[0, 3, 4] = 1  # the last block: its second and third pixel
    assert np.flatnonzero(sparse(picture)[0]).tolist() == [5 * 15 + (2 + 4) - 1]


def test_several_bits_of_a_block_are_drawn_over_one_another() -> None:
    bits = np.zeros((1, 15))
    bits[0, [0, 7]] = 1  # the first pixel alone, the last alone
    assert image(bits, 2).tolist() == [[[True, False], [False, True]]]


def shown(dataset: Dataset, user: int, *, test: bool) -> tuple[np.ndarray, np.ndarray]:
    assert dataset.user_N is not None
    assert dataset.test_N is not None
    rows = (dataset.user_N == user) & (dataset.test_N == test)
    side = 2 * round((dataset.x.shape[1] / 15) ** 0.5)
    return image(dataset.x[rows], side), image(dataset.y[rows], side)


def test_users_learn_whole_digits_and_are_asked_for_halves() -> None:
    dataset, found = associative_digits(users=4, changed=1), digits()
    first = [found.x[found.y == digit][0].reshape(8, 8) > 0.5 for digit in range(4)]
    for user in range(4):
        seen, expected = shown(dataset, user, test=False)
        assert np.array_equal(seen, expected)
        half, whole = shown(dataset, user, test=True)
        assert np.array_equal(whole, expected)
        assert np.array_equal(half[:, :4], whole[:, :4])
        assert not half[:, 4:].any()
        for digit in range(3):
            lower = first[3] if digit == 1 and user < 2 else first[digit]
            assert np.array_equal(whole[digit], np.concatenate([first[digit][:4], lower[4:]]))


def test_what_users_miss_they_are_asked_for_all_the_same() -> None:
    dataset = associative_digits(users=5, others=1, changed=1, missed=1)
    for user in range(5):
        learnt, whole = (shown(dataset, user, test=test)[1] for test in (False, True))
        assert len(learnt) == 2
        kept = [digit for digit in range(3) if any(np.array_equal(whole[digit], each) for each in learnt)]
        assert len(kept) == 2
        assert user > 0 or 1 in kept
    assert dataset.x.shape == (5 * 5, 240)


def test_mnist_is_halved(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first images are enough; `test_idx.py` loads all of MNIST."""
    first_NHW, y = (idx.read_idx(store.fetch(idx.MNIST, file))[:50] for file in idx.MNIST.files[:2])
    some = replace(digits(), x=(first_NHW.reshape(50, -1) / 255).astype(np.float32), y=y.astype(np.int64), test_N=None)
    monkeypatch.setattr("fedpeer.data.associative_digits.load_mnist", lambda: some)
    dataset = associative_digits(images="mnist", users=1, others=0)
    assert dataset.input_shape == (7 * 7 * 15,)
    seen, _ = shown(dataset, 0, test=False)
    assert 10 < seen.sum((1, 2)).mean() < 60
    assert len({each.tobytes() for each in seen}) == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learnt": 10}, ["learnt = 10", "1 to 9"]),
        ({"users": 0}, ["users = 0"]),
        ({"others": 16}, ["others = 16", "0 to 15"]),
        ({"changed": 3}, ["changed = 3", "0 to 2"]),
        ({"missed": 3}, ["missed = 3", "0 to 2"]),
    ],
    ids=str,
)
def test_settings_have_bounds(settings: dict[str, int], words: list[str]) -> None:
    with pytest.raises(DataError) as refusal:
        associative_digits(**settings)  # type: ignore[arg-type]
    assert all(word in str(refusal.value) for word in words)
