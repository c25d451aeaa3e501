"""Data sets inside Python packages, which need no download: digits, and the watch recordings.

The digits are in scikit-learn's wheel as a compressed table of numbers, the watch recordings in seglearn's as an .npy
file with a pickled dict. Both are read without importing the package: importing scikit-learn would take two seconds of
processor time in each process that trains on digits, and seglearn needs pandas. `official_pickle` reads the pickle
after checking its SHA-256.
"""

from __future__ import annotations

import numpy as np

from fedpeer.data import official_pickle, store
from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.store import DatasetSource

DIGITS = DatasetSource(
    name="digits",
    origin="Alpaydin, Kaynak, 1998, UCI dataset 80 (its test part), in scikit-learn",
    licence="CC BY 4.0",
    size="1,797 images of 8x8, 10 classes; comes with scikit-learn",
    package="sklearn",
    by_hand="install it with `pip install scikit-learn`",
)
WATCH = DatasetSource(
    name="watch",
    origin="Burns et al., Shoulder physiotherapy exercise recognition, 2018, arXiv 1802.01489, in seglearn",
    licence="BSD, as seglearn",
    size="140 recordings of 7 exercises by 10 people, 2 arms, 6 axes at 50 Hz; 18 MB, comes with fedpeer[watch]",
    package="seglearn",
    by_hand="install it with `pip install 'fedpeer[watch]'`",
)

#: SHA-256 of `seglearn/data/watch_dataset.npy` in seglearn 1.2.5.
WATCH_SHA256 = frozenset({"eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"})

_WINDOW = 100  # samples: 2 s at 50 Hz


def digits() -> Dataset:
    """Scikit-learn's handwritten digits: 1,797 real images of 8x8, pixels in [0, 1]; no download."""
    path = store.packaged(DIGITS, "datasets/data/digits.csv.gz")
    with store.reading(path):
        table_NF = np.loadtxt(path, delimiter=",")  # 64 pixels from 0 to 16, row by row, then the digit
    return Dataset(
        name="digits",
        x=(table_NF[:, :-1] / 16).astype(np.float32),
        y=table_NF[:, -1].astype(np.int64),
        task="classification",
        input_kind="features",
        classes=tuple("0123456789"),
        feature_names=tuple(f"pixel_{row}_{column}" for row in range(8) for column in range(8)),
        source=DIGITS.origin,
        licence=DIGITS.licence,
    )


def load_watch(*, stride: int = _WINDOW) -> Dataset:
    """Smartwatch recordings of seven shoulder exercises in windows of 2 s; 20 users: 10 people, 2 arms each.

    A window is 100 samples (2 s at 50 Hz) of 6 axes, axis by axis (ax, ay, az in g, wx, wy, wz in rad/s), so 600
    features; the values are as recorded, because their scale of about one suits a network. Windows begin every `stride`
    samples of a recording; by default they do not overlap. With a smaller stride neighboring windows share samples, so
    a random test part is no longer independent of the training part.
    """
    if stride < 1:
        raise DataError(f"watch: stride = {stride}: write the samples from window to window, 1 or more")
    path = store.packaged(WATCH, "data/watch_dataset.npy")
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
