"""Data sets that come inside a Python package, so that nothing is downloaded: digits, and the watch recordings.

The watch recordings lie in seglearn's wheel as an .npy file with a pickled dict. It is found without importing
seglearn (which would ask for pandas) and read by `official_pickle` after its SHA-256 matched.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from fedpeer.data import official_pickle, store
from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.store import Source

DIGITS = Source(
    name="digits",
    origin="Alpaydin, Kaynak, 1998, UCI dataset 80 (its test part), in scikit-learn",
    licence="CC BY 4.0",
    size="1,797 images of 8x8, 10 classes; comes with scikit-learn",
    package="sklearn",
)
WATCH = Source(
    name="watch",
    origin="Burns et al., Shoulder physiotherapy exercise recognition, 2018, arXiv 1802.01489, in seglearn",
    licence="BSD, as seglearn",
    size="140 recordings of 7 exercises by 10 people, 2 arms, 6 axes at 50 Hz; 18 MB, comes with fedpeer[watch]",
    package="seglearn",
    by_hand="install it with `pip install 'fedpeer[watch]'`",
)

#: Of `seglearn/data/watch_dataset.npy` in seglearn 1.2.5.
WATCH_SHA256 = frozenset({"eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"})

_WINDOW = 100  # samples: 2 s at 50 Hz


def digits() -> Dataset:
    """Scikit-learn's handwritten digits: 1,797 real images of 8x8, pixels in [0, 1]; no download."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return Dataset(
        name="digits",
        x=(bunch.data / 16).astype(np.float32),
        y=bunch.target.astype(np.int64),
        task="classification",
        input_kind="features",
        classes=tuple("0123456789"),
        feature_names=tuple(bunch.feature_names),
        source=DIGITS.origin,
        licence=DIGITS.licence,
    )


def watch(*, stride: int = _WINDOW) -> Dataset:
    """Smartwatch recordings of seven shoulder exercises in windows of 2 s; 20 users: 10 people, 2 arms each.

    A window is 100 samples (2 s at 50 Hz) of 6 axes, axis by axis (ax, ay, az in g, wx, wy, wz in rad/s), so 600
    features; the values are as recorded, for their scale of about one suits a network as it is. Windows begin every
    `stride` samples of a recording; the default does not let them overlap. With a smaller stride neighbouring windows
    share samples, so a random test part is no longer independent of the training part.
    """
    if stride < 1:
        raise DataError(f"watch: stride = {stride}: a window begins every so many samples, so write 1 or more")
    path = _watch_file()
    held = official_pickle.read_npy(path.read_bytes(), sha256=WATCH_SHA256, what=str(path))
    with store.reading(path):
        windows, labels, users = [], [], []
        for record_T6, label, subject, side in zip(held["X"], held["y"], held["subject"], held["side"], strict=True):
            views_N6T = np.lib.stride_tricks.sliding_window_view(record_T6, _WINDOW, axis=0)[::stride]
            windows.append(views_N6T.reshape(len(views_N6T), -1).astype(np.float32))
            labels.append(np.full(len(views_N6T), label, np.int64))
            users.append(np.full(len(views_N6T), 2 * int(subject) + int(side), np.int64))
        numbers, user_N = np.unique(np.concatenate(users), return_inverse=True)
        return Dataset(
            name="watch",
            x=np.concatenate(windows),
            y=np.concatenate(labels),
            task="classification",
            input_kind="features",
            classes=tuple(held["y_labels"]),
            user_N=user_N.astype(np.int64),
            user_names=tuple(f"person{each // 2}-{('left', 'right')[each % 2]}" for each in numbers),
            feature_names=tuple(f"{axis}[{sample}]" for axis in held["X_labels"] for sample in range(_WINDOW)),
            source=WATCH.origin,
            licence=WATCH.licence,
        )


def _watch_file() -> Path:
    package = importlib.util.find_spec("seglearn")
    for folder in (package.submodule_search_locations if package else None) or ():
        path = Path(folder) / "data" / "watch_dataset.npy"
        if path.exists():
            return path
    raise store.no_package(WATCH)
