"""Data sets in the layout of LEAF (Caldas et al., 2018, arXiv 1812.01097): FEMNIST and MNIST by writer.

A folder has `train/` and `test/`, each with any number of .json (or .json.gz) files, and each file has `users`,
`num_samples` and, in `user_data`, the x and y of each user. LEAF publishes no such files; its script `preprocess.sh`
makes them. `shakespeare.py` reads Shakespeare in this layout with the same `read_folder`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.data import store
from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.idx import ImageShape
from fedpeer.data.store import DatasetSource, OfficialFile

FEMNIST = DatasetSource(
    name="femnist",
    origin="Caldas et al., LEAF, 2018, https://github.com/TalwalkarLab/leaf, from NIST Special Database 19",
    licence="BSD 2-clause for LEAF's scripts; NIST data in the public domain",
    size="up to 805,263 images of 28x28, 62 classes, 3,550 writers",
    files=(OfficialFile(path="femnist/data"),),
    by_hand="these files are not published: run `./preprocess.sh -s niid --sf 1.0 -k 0 -t sample` in data/femnist "
    "of https://github.com/TalwalkarLab/leaf and put its data/train and data/test there",
)
MNIST_BY_WRITER = DatasetSource(
    name="mnist-by-writer",
    origin="the 100 writers with the most training digits of MNIST (QMNIST names them), in LEAF's layout",
    licence="as mnist and qmnist",
    size="11,440 + 1,301 images of 28x28, 10 classes, 100 writers; 3 MB",
    files=(OfficialFile(path="MNIST_by_writer_LEAF/data"),),
    by_hand="this sub-sample is not published; `qmnist` has all the writers and can be downloaded",
)

_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#: Lower-case letters that NIST's "by merge" hierarchy counts as capitals, since both look the same.
_MERGED = "cijklmopsuvwxyz"


@dataclass(frozen=True)
class LeafUser:
    """One user's examples in one file; a user may be in the training and in the test part."""

    name: str
    test: bool
    x: list[Any]
    y: list[Any]


def femnist(*, variant: Literal["all", "merged", "digits"] = "all", shape: ImageShape = "flat") -> Dataset:
    """Handwritten characters by writer, in LEAF's files: 62 classes, 47 (`merged`) or the 10 `digits`.

    Pixels are as LEAF writes them: paper is 1, ink is close to 0 (the reverse of MNIST).
    """
    # The class name of each character; "" if the variant leaves it out.
    merged = [each.upper() if each in _MERGED else each for each in _CHARACTERS]
    names = {"all": list(_CHARACTERS), "merged": merged, "digits": [*_CHARACTERS[:10], *[""] * 52]}[variant]
    classes = tuple(sorted({name for name in names if name}, key=_CHARACTERS.index))
    number_C = np.array([classes.index(name) if name else -1 for name in names], np.int64)
    return _images(FEMNIST, classes, number_C, shape)


def mnist_by_writer(*, shape: ImageShape = "flat") -> Dataset:
    """MNIST digits of the 100 writers with the most digits, 125 to 131 each; ink is 1, writer as user."""
    return _images(MNIST_BY_WRITER, tuple("0123456789"), np.arange(10), shape)


def _images(source: DatasetSource, classes: tuple[str, ...], number_C: NDArray[np.int64], shape: ImageShape) -> Dataset:
    """Load images; class c in the files becomes class number_C[c], and is left out if that is -1."""
    folder = store.fetch(source, source.files[0])
    x: list[NDArray[np.float32]] = []
    y: list[NDArray[np.int64]] = []
    users: list[str] = []
    test: list[bool] = []
    with store.reading(folder):
        for user in read_folder(folder):
            labels_M = np.array(user.y, np.int64)
            if labels_M.size and not 0 <= labels_M.min() <= labels_M.max() < len(number_C):
                raise ValueError(f"user {user.name} has a label outside 0..{len(number_C) - 1}")
            kept_M = number_C[labels_M] >= 0
            if not kept_M.any():
                continue
            pixels = np.array(user.x, np.float32)
            if pixels.shape != (len(labels_M), 784):
                raise ValueError(f"user {user.name} has images of shape {pixels.shape[1:]}, not (784,)")
            x.append(pixels[kept_M])
            y.append(number_C[labels_M[kept_M]])
            users.append(user.name)
            test.append(user.test)
        counts = [len(part) for part in y]
        names, user_N = np.unique(users, return_inverse=True)
        x_N784 = np.concatenate(x)
    return Dataset(
        name=source.name,
        x=x_N784 if shape == "flat" else x_N784.reshape(-1, 1, 28, 28),
        y=np.concatenate(y),
        task="classification",
        input_kind="features" if shape == "flat" else "image",
        classes=classes,
        user_N=np.repeat(user_N, counts).astype(np.int64),
        user_names=tuple(names.tolist()),
        test_N=np.repeat(test, counts),
        source=source.origin,
        licence=source.licence,
    )


def read_folder(folder: Path) -> Iterator[LeafUser]:
    """Yield all users of `folder`/train and then `folder`/test, file by file in the order of their names.

    Raises:
        DataError: there is no file, or a file is not in LEAF's layout; the message names the file.
    """
    for part in ("train", "test"):
        files = sorted([*(folder / part).glob("*.json"), *(folder / part).glob("*.json.gz")])
        if not files:
            raise DataError(f"{folder / part} has no .json file; LEAF's preprocess.sh with `-t sample` makes them")
        for path in files:
            with store.reading(path):
                yield from [LeafUser(name, part == "test", x, y) for name, x, y in _users(path)]


def _users(path: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        held = json.load(stream)
    if not isinstance(held, dict) or not {"users", "num_samples", "user_data"} <= held.keys():
        raise ValueError("it does not have LEAF's users, num_samples and user_data")
    for name, count in zip(held["users"], held["num_samples"], strict=True):
        x, y = held["user_data"][name]["x"], held["user_data"][name]["y"]
        if not len(x) == len(y) == count:
            raise ValueError(f"user {name} has {len(x)} examples and {len(y)} labels, but num_samples says {count}")
        yield name, x, y
