"""Digits and watch: the data that their packages contain, cut as documented."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedpeer.data import bundled
from fedpeer.data.dataset import DataError

needs_seglearn = pytest.mark.skipif(
    importlib.util.find_spec("seglearn") is None, reason="seglearn is not installed (extra fedpeer[watch])"
)


def test_digits_in_the_official_order() -> None:
    found = bundled.digits()
    assert (found.x.shape, found.x.dtype.name, found.x.min(), found.x.max()) == ((1797, 64), "float32", 0, 1)
    np.testing.assert_array_equal(found.x.astype(float) * 16, load_digits().data)
    np.testing.assert_array_equal(found.y, load_digits().target)
    assert (found.y.dtype.name, found.classes, found.user_N, found.test_N) == ("int64", tuple("0123456789"), None, None)
    assert list(found.feature_names or ()) == load_digits().feature_names


def test_digits_without_their_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="the Python package sklearn, which is not installed; install it with"):
        bundled.digits()


def put(folder: Path, monkeypatch: pytest.MonkeyPatch, held: dict[str, object]) -> Path:
    """Create a package seglearn with our own watch file; importing the package would fail."""
    path = folder / "seglearn/data/watch_dataset.npy"
    path.parent.mkdir(parents=True)
    (folder / "seglearn/__init__.py").write_text("raise ImportError('not to be imported')")
    np.save(path, np.array(held, object), allow_pickle=True)
    monkeypatch.syspath_prepend(str(folder))
    return path


def recordings() -> dict[str, object]:
    """Return person 3 left (250 samples), then right (199), person 1 right (200); sample s of axis a is 1000 a + s."""
    return {
        "X": [np.arange(length)[:, None] + 1000.0 * np.arange(6) for length in (250, 199, 200)],
        "y": np.array([2, 1, 0]),
        "subject": np.array([3.0, 3, 1]),
        "side": np.array([0.0, 1, 1]),
        "X_labels": ["ax", "ay", "az", "wx", "wy", "wz"],
        "y_labels": ["PEN", "ABD", "FEL"],
    }


@pytest.mark.parametrize(
    ("stride", "starts"), [(100, ([0, 100], [0], [0, 100])), (75, ([0, 75, 150], [0, 75], [0, 75]))]
)
def test_watch_is_cut_into_windows(
    stride: int, starts: tuple[list[int], ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, monkeypatch, recordings())
    monkeypatch.setattr(bundled, "WATCH_SHA256", {hashlib.sha256(path.read_bytes()).hexdigest()})
    found = bundled.load_watch(stride=stride)
    expected = [
        [1000 * axis + start + sample for axis in range(6) for sample in range(100)]
        for each in starts
        for start in each
    ]
    np.testing.assert_array_equal(found.x, np.array(expected, np.float32))
    counts = [len(each) for each in starts]
    assert found.user_names == ("person1-right", "person3-left", "person3-right")
    assert found.user_N is not None
    assert found.user_N.tolist() == np.repeat([1, 2, 0], counts).tolist()
    assert [found.classes[label] for label in found.y] == np.repeat(["FEL", "ABD", "PEN"], counts).tolist()
    assert found.feature_names[:2] + found.feature_names[-1:] == ("ax[0]", "ax[1]", "wz[99]")


def test_another_watch_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, monkeypatch, recordings())
    with pytest.raises(DataError, match=r"watch_dataset.npy: its SHA-256 .* is not a known one"):
        bundled.load_watch()


def test_a_watch_file_of_other_content_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = recordings()
    held["y"] = np.array([1])
    path = put(tmp_path, monkeypatch, held)
    monkeypatch.setattr(bundled, "WATCH_SHA256", {hashlib.sha256(path.read_bytes()).hexdigest()})
    with pytest.raises(DataError, match=r"watch_dataset.npy cannot be used: .*shorter"):
        bundled.load_watch()


def test_without_seglearn_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        DataError, match=r"watch comes with the Python package seglearn.*pip install 'fedpeer\[watch\]'"
    ):
        bundled.load_watch()


def test_a_stride_of_nothing_is_an_error() -> None:
    with pytest.raises(DataError, match=r"stride = 0: write .* 1 or more"):
        bundled.load_watch(stride=0)


@needs_seglearn
def test_watch_as_shipped() -> None:
    found = bundled.load_watch()
    assert (found.x.shape, found.x.dtype.name) == ((2369, 600), "float32")
    assert np.isfinite(found.x).all()
    assert found.classes == ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
    assert np.bincount(found.y.astype(int)).tolist() == [254, 389, 396, 363, 366, 294, 307]
    assert found.user_N is not None
    per_user = np.bincount(found.user_N)
    assert (len(per_user), per_user.min(), per_user.max()) == (20, 69, 153)
    assert found.user_names[:2] == ("person1-left", "person1-right")
