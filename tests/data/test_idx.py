"""MNIST and related data sets: the official files have the official counts, and a damaged idx file is named."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedpeer.data import idx, store
from fedpeer.data.dataset import DataError, Dataset


@pytest.fixture(scope="module")
def mnist(official: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Provide MNIST with standard pixels, which several tests read."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "cache_folder", lambda: cache)
        return idx.load_mnist(pixels="standard")


def moments(x: np.ndarray) -> tuple[float, float]:
    """Return mean and deviation, worked out in float64 without a copy of all the numbers."""
    total = squares = 0.0
    for piece in np.array_split(x, 200):
        total += float(piece.sum(dtype=np.float64))
        squares += float(np.square(piece, dtype=np.float64).sum())
    mean = total / x.size
    return mean, (squares / x.size - mean**2) ** 0.5


@pytest.mark.slow
def test_mnist_as_published(mnist: Dataset) -> None:
    assert mnist.x.shape == (70_000, 784)
    # Counts of each digit as the authors' page gives them, and the first five labels, 5 0 4 1 9.
    assert mnist.test_N is not None
    train_y = mnist.y[~mnist.test_N]
    assert np.bincount(train_y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert train_y[:5].tolist() == [5, 0, 4, 1, 9]
    assert mnist.test_N[60_000:].all()
    assert mnist.input_kind == "features"


def test_fashion_mnist_as_images(real: Path) -> None:
    found = idx.fashion_mnist(shape="image", pixels="standard")
    assert (found.input_shape, found.input_kind) == ((1, 28, 28), "image")
    assert np.bincount(found.y.astype(int)).tolist() == [7000] * 10
    assert found.classes[9] == "Ankle boot"
    assert found.x.dtype == np.float32
    # The published mean is 0.2860, rounded.
    mean, deviation = moments(found.x[:60_000])
    assert mean == pytest.approx(0, abs=5e-5 / 0.3530)
    assert deviation == pytest.approx(1, abs=1e-3)


def test_standard_pixels_have_mean_0_and_deviation_1_where_training_images_are(mnist: Dataset) -> None:
    """The published mean of MNIST is 0.1307, rounded."""
    assert mnist.x.dtype == np.float32
    mean, deviation = moments(mnist.x[:60_000])
    assert mean == pytest.approx(0, abs=5e-5 / 0.3081)
    assert deviation == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
def test_qmnist_knows_the_writers(real: Path, mnist: Dataset) -> None:
    """Its images are those of MNIST; their pixels are from 0 to 1 here."""
    found = idx.qmnist()
    assert found.user_N is not None
    assert found.test_N is not None
    train, test = np.bincount(found.user_N[~found.test_N], minlength=836), np.bincount(found.user_N[found.test_N])
    assert (len(found.user_names), (train > 0).sum(), (test > 0).sum()) == (836, 539, 297)
    assert (train[train > 0].min(), train.max(), (train >= 100).sum()) == (19, 131, 440)
    assert train[: len(test)] @ test == 0, "nobody writes in both parts"
    np.testing.assert_array_equal(found.y, mnist.y)
    assert (found.x.min(), found.x.max(), found.x.dtype.name) == (0, 1, "float32")
    pixels, standard = (np.asarray(each[::1000], dtype=np.float64) for each in (found.x, mnist.x))
    np.testing.assert_allclose(standard, (pixels - 0.1307) / 0.3081, rtol=0, atol=1e-6)


def idx_bytes(x: np.ndarray, code: int) -> bytes:
    return bytes([0, 0, code, x.ndim]) + np.array(x.shape, ">u4").tobytes() + x.tobytes()


def test_idx_of_bytes_and_of_integers(tmp_path: Path) -> None:
    pixels, labels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.array([[1, -2], [70_000, 4]], ">i4")
    (tmp_path / "pixels").write_bytes(idx_bytes(pixels, 0x08))
    (tmp_path / "labels.gz").write_bytes(gzip.compress(idx_bytes(labels, 0x0C)))
    np.testing.assert_array_equal(idx.read_idx(tmp_path / "pixels"), pixels)
    np.testing.assert_array_equal(idx.read_idx(tmp_path / "labels.gz"), labels)


def packed(data: bytes) -> bytes:
    """Compress to the same bytes at any time of day, since they are part of a test's name."""
    return gzip.compress(data, mtime=0)


WHOLE = packed(idx_bytes(np.zeros((2, 3), np.uint8), 0x08))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (WHOLE[:-9], "end-of-stream"),
        (b"<html>not found</html>", "Not a gzipped file"),
        (packed(b"\1\0\x08\2"), "it begins with 01000802"),
        (packed(b"\0\0\x0d\2"), "not an idx file of bytes or integers"),
        (packed(b"\0\0\x08\3\0\0\0\2"), r"its header says \(2,\), but 0 bytes"),
        (packed(gzip.decompress(WHOLE)[:-1]), r"its header says \(2, 3\), but 5 bytes"),
        (packed(gzip.decompress(WHOLE) + b"0"), "but 7 bytes"),
        (packed(b""), "it begins with"),
    ],
)
def test_a_damaged_idx_file_is_named(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "labels.gz").write_bytes(content)
    with pytest.raises(DataError, match=f"labels.gz cannot be used: .*{problem}"):
        idx.read_idx(tmp_path / "labels.gz")


def test_a_file_of_another_size_is_not_mnist(folder: Path) -> None:
    for file in idx.MNIST.files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(idx_bytes(np.zeros((3, 28, 28) if "idx3" in path.name else 3, np.uint8), 0x08)))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz cannot be used: it holds \(3, 28, 28\), not"):
        idx.load_mnist()


def test_labels_of_other_digits_are_not_mnists(folder: Path) -> None:
    shapes = [(60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,)]
    others = np.ones((60_000, 8), ">i4")
    files = [*((np.zeros(shape, np.uint8), 0x08) for shape in shapes), (others, 0x0C), (others, 0x0C)]
    for file, (array, code) in zip(idx.QMNIST.files, files, strict=True):
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(idx_bytes(array, code), 1))
    with pytest.raises(DataError, match=r"qmnist-train-labels.* cannot be used: its labels are not those of MNIST"):
        idx.qmnist()
