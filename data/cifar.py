"""CIFAR-10 and CIFAR-100 from the archives of Python pickles that their author publishes.

`official_pickle` reads the pickles, and only from archives whose SHA-256 is listed here: the author's two archives, and
two sub-samples in the same layout (30,000 and 3,000 images, each with its own split). The author's other archive
formats are not read. Decompressing takes seconds, so the pixels are cached.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedpeer.data import official_pickle, store
from fedpeer.data.dataset import Dataset
from fedpeer.data.idx import ImageShape, Pixels, Scale, scaled
from fedpeer.data.store import Arrays, DatasetSource, OfficialFile

_OFFICIAL_10 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
_OFFICIAL_100 = "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"
#: The only archives whose pickles are read: the official ones and the sub-samples.
CIFAR10_SHA256 = frozenset({_OFFICIAL_10, "187c7686c9b7cc54988236b9168e35c6c9d0f85c79b27347d86e72d870788583"})
_CIFAR100_SHA256 = frozenset({_OFFICIAL_100, "d0f23f5ea19ba136be546cd2b3677f4bfae708b7fc20dff8096a6a7ab27f2965"})

CIFAR10 = DatasetSource(
    name="cifar10",
    origin="Krizhevsky, Learning multiple layers of features from tiny images, 2009, cs.toronto.edu/~kriz/cifar.html",
    licence="no explicit licence; cite the report",
    size="50,000 + 10,000 images of 3x32x32, 10 classes; 170 MB",
    files=(
        OfficialFile(
            path="CIFAR10/cifar-10-python.tar.gz",
            also=("CIFAR10/cifar-10-python.tar.xz",),
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            known_hash=f"sha256:{_OFFICIAL_10}",
        ),
    ),
)
CIFAR100 = DatasetSource(
    name="cifar100",
    origin=CIFAR10.origin,
    licence=CIFAR10.licence,
    size="50,000 + 10,000 images of 3x32x32, 20 coarse and 100 fine classes; 169 MB",
    files=(
        OfficialFile(
            path="CIFAR100/cifar-100-python.tar.gz",
            also=("CIFAR100/cifar-100-python.tar.xz",),
            url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            known_hash=f"sha256:{_OFFICIAL_100}",
        ),
    ),
)


#: Mean and deviation of each channel, as in the papers' programs.
_SCALE_10: Scale = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_SCALE_100: Scale = ((0.5074, 0.4867, 0.4411), (0.2011, 0.1987, 0.2025))


def cifar10(*, shape: ImageShape = "image", pixels: Pixels = "unit") -> Dataset:
    """Small colour photographs of ten kinds; pixels in [0, 1], or standardised."""
    path = store.fetch(CIFAR10, CIFAR10.files[0])
    with store.reading(path):
        arrays = store.parsed_source("cifar10", path, _parse_10, version=1)
    scale = _SCALE_10 if pixels == "standard" else None
    return _dataset(CIFAR10, arrays, shape, scale, y=arrays["y"], classes=tuple(arrays["classes"].tolist()))


def cifar100(
    *, labels: Literal["coarse", "fine"] = "coarse", shape: ImageShape = "image", pixels: Pixels = "unit"
) -> Dataset:
    """Small colour photographs of 20 kinds, each of 5 subkinds; `labels=fine` for all 100 as classes."""
    scale = _SCALE_100 if pixels == "standard" else None
    path = store.fetch(CIFAR100, CIFAR100.files[0])
    with store.reading(path):
        arrays = store.parsed_source("cifar100", path, _parse_100, version=1)
    fine = tuple(arrays["fine_names"].tolist())
    if labels == "fine":
        return _dataset(CIFAR100, arrays, shape, scale, y=arrays["fine"], classes=fine)
    coarse = tuple(arrays["coarse_names"].tolist())
    subclasses = {"subclass_N": arrays["fine"], "subclass_names": fine}
    return _dataset(CIFAR100, arrays, shape, scale, y=arrays["coarse"], classes=coarse, **subclasses)


def _dataset(source: DatasetSource, arrays: Arrays, shape: ImageShape, scale: Scale | None, **labels: Any) -> Dataset:
    return Dataset(
        name=source.name,
        x=scaled(arrays["pixels"], shape, (3, 32, 32), scale),
        task="classification",
        input_kind="features" if shape == "flat" else "image",
        test_N=arrays["test_N"],
        source=source.origin,
        licence=source.licence,
        **labels,
    )


def _parse_10(path: Path) -> Arrays:
    found = official_pickle.read_tar(
        path.read_bytes(), sha256=CIFAR10_SHA256, what=str(path), wanted=lambda name: "batch" in Path(name).name
    )
    batches = {Path(name).name: batch for name, batch in found.items()}
    order = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    return {
        "pixels": np.concatenate([batches[name]["data"] for name in order]),
        "y": np.concatenate([batches[name]["labels"] for name in order]).astype(np.int64),
        "test_N": np.repeat([name == "test_batch" for name in order], [len(batches[name]["labels"]) for name in order]),
        "classes": np.array(batches["batches.meta"]["label_names"]),
    }


def _parse_100(path: Path) -> Arrays:
    found = official_pickle.read_tar(
        path.read_bytes(),
        sha256=_CIFAR100_SHA256,
        what=str(path),
        wanted=lambda name: Path(name).name in ("train", "test", "meta"),
    )
    parts = {Path(name).name: part for name, part in found.items()}
    train, test, meta = parts["train"], parts["test"], parts["meta"]
    return {
        "pixels": np.concatenate([train["data"], test["data"]]),
        "coarse": np.array(train["coarse_labels"] + test["coarse_labels"], np.int64),
        "fine": np.array(train["fine_labels"] + test["fine_labels"], np.int64),
        "test_N": np.repeat([False, True], [len(train["fine_labels"]), len(test["fine_labels"])]),
        "coarse_names": np.array(meta["coarse_label_names"]),
        "fine_names": np.array(meta["fine_label_names"]),
    }
