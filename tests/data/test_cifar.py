"""CIFAR: the listed archives have the right counts, and an archive that is not listed is not unpickled."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeer.data import cifar
from fedpeer.data.dataset import DataError


def put(path: Path, **members: Any) -> str:
    """Write a tar of pickles in CIFAR's layout and return its SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, held in members.items():
            content = pickle.dumps(held, 2)
            member = tarfile.TarInfo(f"cifar/{name.replace('__', '.')}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pixels(*values: int) -> np.ndarray:
    return np.repeat(np.array(values, np.uint8)[:, None], 3072, axis=1)


def test_cifar10_sub_sample(real: Path) -> None:
    found = cifar.cifar10()
    assert found.test_N is not None
    official = len(found) == 60_000
    assert np.bincount(found.y.astype(int)).tolist() == [6000 if official else 300] * 10
    assert found.test_N.sum() == (10_000 if official else 500)
    assert found.classes == (
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    )  # fmt: skip
    assert (found.input_shape, found.x.dtype.name, found.x.max()) == ((3, 32, 32), "float32", 1)


#: Mean and deviation of CIFAR-100's channels, as the papers' programs have them.
SCALE_100 = np.array([[0.5074, 0.4867, 0.4411], [0.2011, 0.1987, 0.2025]])


@pytest.mark.soak
def test_cifar100_sub_sample(real: Path) -> None:
    """Unpacking takes seconds: `make test` reads the archive of CIFAR-10 and the next test's small one."""
    coarse = cifar.cifar100()
    assert coarse.subclass_N is not None
    assert coarse.test_N is not None
    per_class = len(coarse) // 100
    assert coarse.test_N.sum() == 10_000
    assert np.bincount(coarse.y.astype(int)).tolist() == [5 * per_class] * 20
    assert np.bincount(coarse.subclass_N).tolist() == [per_class] * 100
    # Each fine class belongs to one coarse class, such as the apple to the fruits.
    pairs = {(coarse.classes[c], coarse.subclass_names[f]) for c, f in zip(coarse.y, coarse.subclass_N, strict=True)}
    assert len(pairs) == 100
    assert ("fruit_and_vegetables", "apple") in pairs
    # Only a part of the images is used, so their mean and deviation are close to the published ones. Deviations are
    # worked out piece by piece, without a copy of all the numbers in float64.
    mean_C = coarse.x.mean(axis=(0, 2, 3), dtype=np.float64)
    pieces = np.array_split(coarse.x, 200)
    square_C = sum(np.square(piece, dtype=np.float64).sum(axis=(0, 2, 3)) for piece in pieces) / (len(coarse) * 32 * 32)
    assert (mean_C - SCALE_100[0]) / SCALE_100[1] == pytest.approx([0, 0, 0], abs=0.03)
    assert np.sqrt(square_C - mean_C**2) / SCALE_100[1] == pytest.approx([1.33, 1.33, 1.33], abs=0.05)


def test_cifar100_with_fine_labels_and_with_standard_pixels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = {"data": pixels(0, 51, 102), "coarse_labels": [1, 0, 1], "fine_labels": [2, 0, 1]}
    test = {"data": pixels(255), "coarse_labels": [0], "fine_labels": [3]}
    names = {"coarse_label_names": ["fish", "trees"], "fine_label_names": ["ray", "oak", "pine", "shark"]}
    digest = put(folder / "CIFAR100/cifar-100-python.tar.gz", train=train, test=test, meta=names)
    monkeypatch.setattr(cifar, "_CIFAR100_SHA256", {digest})
    coarse, fine = cifar.cifar100(), cifar.cifar100(labels="fine", shape="flat")
    assert (coarse.classes, coarse.y.tolist()) == (("fish", "trees"), [1, 0, 1, 0])
    assert coarse.subclass_names == fine.classes == ("ray", "oak", "pine", "shark")
    assert coarse.subclass_N is not None
    assert coarse.subclass_N.tolist() == fine.y.tolist() == [2, 0, 1, 3]
    assert (fine.input_shape, fine.subclass_N) == ((3072,), None)
    np.testing.assert_array_equal(fine.x, coarse.x.reshape(4, -1))
    for found in (coarse, fine):
        assert found.test_N is not None
        assert found.test_N.tolist() == [False, False, False, True]
    standard = cifar.cifar100(pixels="standard")
    for number, value in enumerate((0, 0.2, 0.4, 1)):
        wanted_C = (value - SCALE_100[0]) / SCALE_100[1]
        np.testing.assert_allclose(standard.x[number, :, 31, 31].astype(float), wanted_C, rtol=1e-5)


def test_cifar10_keeps_the_order_of_its_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = {f"data_batch_{n}": {"data": pixels(n, 10 * n), "labels": [n, 0]} for n in (5, 3, 1, 2, 4)}
    test = {"data": pixels(255), "labels": [9]}
    names = {"label_names": [f"kind{n}" for n in range(10)]}
    digest = put(folder / "CIFAR10/cifar-10-python.tar.gz", test_batch=test, **batches, batches__meta=names)
    monkeypatch.setattr(cifar, "CIFAR10_SHA256", {digest})
    found = cifar.cifar10()
    assert found.y.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 9]
    np.testing.assert_allclose(
        found.x[:, 2, 31, 31].astype(float) * 255, [1, 10, 2, 20, 3, 30, 4, 40, 5, 50, 255], rtol=1e-6
    )
    assert found.test_N is not None
    assert np.flatnonzero(found.test_N).tolist() == [10]


def test_an_archive_that_is_not_listed_is_not_read(folder: Path) -> None:
    digest = put(folder / "CIFAR100/cifar-100-python.tar.gz", train={}, test={}, meta={})
    with pytest.raises(DataError, match=f"cifar-100-python.tar.gz: its SHA-256 {digest} is not a known one"):
        cifar.cifar100()


def test_a_listed_archive_without_a_batch_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = put(folder / "CIFAR10/cifar-10-python.tar.gz", data_batch_1={"data": pixels(1), "labels": [1]})
    monkeypatch.setattr(cifar, "CIFAR10_SHA256", {digest})
    with pytest.raises(DataError, match=r"cifar-10-python.tar.gz cannot be used: 'data_batch_2'"):
        cifar.cifar10()
