"""MNIST, QMNIST and Fashion-MNIST, from the idx files of their authors.

An idx file is two zero bytes, a type code, the number of dimensions, the dimensions as big-endian 32-bit integers, and
then the numbers (http://yann.lecun.com/exdb/mnist). QMNIST has the writer of every MNIST digit; this loader joins its
labels to MNIST's images, so the test part is MNIST's 10,000 images, the first of QMNIST's 60,000.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.data import store
from fedpeer.data.dataset import Dataset
from fedpeer.data.store import DatasetSource, OfficialFile

ImageShape = Literal["flat", "image"]
#: Scale of pixels: in [0, 1], or with mean 0 and deviation 1 over the official training images, channel by channel. The
#: constants are published, so all peers have the same scale and reveal nothing about their own examples.
Pixels = Literal["unit", "standard"]
#: Mean and deviation of each channel in [0, 1].
Scale = tuple[tuple[float, ...], tuple[float, ...]]
_MNIST_SCALE: Scale = ((0.1307,), (0.3081,))
_FASHION_SCALE: Scale = ((0.2860,), (0.3530,))

_DTYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}
_DIGITS = tuple("0123456789")
_CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def _four(folder: str, server: str, md5: tuple[str, str, str, str]) -> tuple[OfficialFile, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        OfficialFile(
            path=f"{folder}/raw/{name}-ubyte.gz",
            also=(f"{folder}/raw/{name}-ubyte",),
            url=f"{server}/{name}-ubyte.gz",
            known_hash=f"md5:{digest}",
        )
        for name, digest in zip(names, md5, strict=True)
    )


MNIST = DatasetSource(
    name="mnist",
    origin="LeCun, Cortes, Burges, http://yann.lecun.com/exdb/mnist",
    licence="CC BY-SA 3.0 as usually stated",
    size="60,000 + 10,000 images of 28x28, 10 classes; 12 MB",
    files=_four(
        "MNIST",
        "https://ossci-datasets.s3.amazonaws.com/mnist",  # the authors' own server refuses automatic downloads
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
)
FASHION_MNIST = DatasetSource(
    name="fashion-mnist",
    origin="Zalando SE, https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    size="60,000 + 10,000 images of 28x28, 10 classes; 31 MB",
    files=_four(
        "FashionMNIST",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
)
_WRITERS = tuple(
    OfficialFile(
        path=f"QMNIST/raw/qmnist-{part}-labels-idx2-int.gz",
        also=(f"QMNIST/raw/qmnist-{part}-labels-idx2-int",),
        url=f"https://raw.githubusercontent.com/facebookresearch/qmnist/master/qmnist-{part}-labels-idx2-int.gz",
        known_hash=f"md5:{digest}",
    )
    for part, digest in (
        ("train", "0058f8dd561b90ffdd0f734c6a30e5e4"),
        ("test", "5b5b05890a5e13444e108efe57b788aa"),
    )
)
QMNIST = DatasetSource(
    name="qmnist",
    origin="Yadav, Bottou, 2019, https://github.com/facebookresearch/qmnist; images of MNIST",
    licence="BSD; images as MNIST",
    size="60,000 + 10,000 images of 28x28, 10 classes, 539 + 297 writers; 13 MB",
    files=(*MNIST.files, *_WRITERS),
)


def load_mnist(*, shape: ImageShape = "flat", pixels: Pixels = "unit") -> Dataset:
    """Handwritten digits, 60,000 to train and 10,000 to test; pixels in [0, 1], or standardised."""
    return _images(MNIST, MNIST.files, _DIGITS, shape, _MNIST_SCALE if pixels == "standard" else None)


def fashion_mnist(*, shape: ImageShape = "flat", pixels: Pixels = "unit") -> Dataset:
    """Pictures of clothes in the format of MNIST; pixels in [0, 1], or standardised."""
    scale = _FASHION_SCALE if pixels == "standard" else None
    return _images(FASHION_MNIST, FASHION_MNIST.files, _CLOTHES, shape, scale)


def qmnist(*, shape: ImageShape = "flat") -> Dataset:
    """MNIST with the writer of each digit as user: 539 in the training part, 297 others in the test part."""
    images = _images(QMNIST, MNIST.files, _DIGITS, shape)
    labels = []
    for file, official_y in zip(_WRITERS, (images.y[:60_000], images.y[60_000:]), strict=True):
        path = store.fetch(QMNIST, file)
        labels_N8 = read_idx(path)[: len(official_y)]
        if labels_N8.shape != (len(official_y), 8) or not np.array_equal(labels_N8[:, 0], official_y):
            raise store.damaged(path, "its labels are not those of MNIST's digits")
        labels.append(labels_N8)
    writers, user_N = np.unique(np.concatenate(labels)[:, 2], return_inverse=True)
    return replace(images, user_N=user_N.astype(np.int64), user_names=tuple(f"f{each:04d}" for each in writers))


def _images(
    source: DatasetSource,
    files: tuple[OfficialFile, ...],
    classes: tuple[str, ...],
    shape: ImageShape,
    scale: Scale | None = None,
) -> Dataset:
    paths = [store.fetch(source, file) for file in files]
    parts = [read_idx(path) for path in paths]
    for path, found, wanted in zip(
        paths, parts, ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,)), strict=True
    ):
        if found.shape != wanted:
            raise store.damaged(path, f"it holds {found.shape}, not {wanted}")
    y = np.concatenate([parts[1], parts[3]]).astype(np.int64)
    if y.max() >= len(classes):
        raise store.damaged(paths[1], f"a label is {y.max()}, above {len(classes) - 1}")
    return Dataset(
        name=source.name,
        x=scaled(np.concatenate([parts[0], parts[2]]), shape, (1, 28, 28), scale),
        y=y,
        task="classification",
        input_kind="features" if shape == "flat" else "image",
        classes=classes,
        test_N=np.arange(70_000) >= 60_000,
        source=source.origin,
        licence=source.licence,
    )


def scaled(
    bytes_N: NDArray[np.uint8], shape: ImageShape, image: tuple[int, int, int], scale: Scale | None = None
) -> NDArray[np.float32]:
    """Convert pixels to float32 in [0, 1], or to each channel's `scale`: flat (N, C*H*W) or images (N, C, H, W)."""
    x = np.divide(bytes_N, 255, dtype=np.float32)
    if scale is not None:
        mean_C11, deviation_C11 = (np.array(each, np.float32)[:, None, None] for each in scale)
        x = (x.reshape(len(x), *image) - mean_C11) / deviation_C11
    return x.reshape(len(x), -1) if shape == "flat" else x.reshape(len(x), *image)


def read_idx(path: Path) -> NDArray[Any]:
    """Read the array in an idx file, gzipped or not: uint8, or int32 in big-endian order.

    Raises:
        DataError: the file is truncated, too long, or not an idx file of these types.
    """
    with store.reading(path):
        raw = store.content(path)
        if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _DTYPES:
            raise ValueError(f"it begins with {raw[:4].hex()}, so it is not an idx file of bytes or integers")
        dtype, dimensions = _DTYPES[raw[2]], raw[3]
        start = 4 + 4 * dimensions
        shape = tuple(int(each) for each in np.frombuffer(raw[4:start], ">u4"))
        if len(shape) != dimensions or len(raw) - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"its header says {shape}, but {max(len(raw) - start, 0):,} bytes follow")
        return np.frombuffer(raw, dtype, offset=start).reshape(shape)
