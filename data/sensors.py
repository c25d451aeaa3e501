"""Readings of sensors: UCI HAR and its successor HAPT (worn by people), and the vehicle sensor network (on the ground).

HAR and HAPT are zip archives of text: a matrix of 561 features, a column of activities and a column of subjects, for
the training and the test part. The vehicle archive has one text file per run, node and kind of sensor.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpeer.data import store
from fedpeer.data.binary import against_the_rest
from fedpeer.data.dataset import Dataset
from fedpeer.data.store import Arrays, DatasetSource, OfficialFile

HAR = DatasetSource(
    name="har",
    origin="Anguita, Ghio, Oneto, Parra, Reyes-Ortiz, 2012, UCI dataset 240",
    licence="CC BY 4.0 on its UCI page; its README forbids commercial use",
    size="7,352 + 2,947 windows of 561 features, 6 activities, 30 people; 61 MB",
    files=(
        OfficialFile(
            path="UCI_HAR/UCI HAR Dataset.zip",
            url="https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip",
        ),
    ),
)
HAPT = DatasetSource(
    name="hapt",
    origin="Reyes-Ortiz, Oneto, Ghio, Sama, Anguita, Parra, 2015, UCI dataset 341",
    licence="CC BY 4.0 on its UCI page; its README forbids commercial use",
    size="7,767 + 3,162 windows of 561 features, 12 activities, 30 people",
    files=(
        OfficialFile(
            path="HAPT/HAPT Data Set.zip",
            url="https://archive.ics.uci.edu/ml/machine-learning-databases/00341/HAPT%20Data%20Set.zip",
        ),
    ),
)
VEHICLE = DatasetSource(
    name="vehicle",
    origin="Duarte, Hu, Vehicle classification in distributed sensor networks, JPDC 2004; SensIT SITEX02",
    licence="free for research, no explicit licence",
    size="49,264 rows of 50 acoustic and 50 seismic features, 2 classes, 23 nodes",
    files=(
        OfficialFile(
            path="vehicle_sensor/event.zip",
            also=("vehicle_sensor/vehicle_sensor.tar.xz",),
            url="http://www.ecs.umass.edu/~mduarte/images/event.zip",
        ),
    ),
)

#: The files of one run and node: `<run>/acoustic_1/features/<run>evfeat<node>_1_1.txt`, and the same with seismic_2 and
#: _2.
_VEHICLE_FILE = re.compile(r"(aav|dw)(\d+)/(acoustic_1|seismic_2)/features/\1\2evfeat(\d+)_1_[12]\.txt$")


def har(*, positive: str | None = None) -> Dataset:
    """Six activities of 30 people from a phone at the waist: 561 features in [-1, 1], subject as user.

    With `positive`, such as sitting, there are two classes: that activity against the rest.
    """
    return against_the_rest(_activities(HAR, subject="subject"), positive)


def hapt(*, positive: str | None = None) -> Dataset:
    """HAR with the six transitions between postures as further classes: 12 activities, subject as user.

    With `positive` there are two classes: that activity against the rest.
    """
    return against_the_rest(_activities(HAPT, subject="subject_id"), positive)


def vehicle() -> Dataset:
    """Tracked vehicle (AAV, class 1) or truck (DW, class 0), from sound and vibration at 23 nodes; node as user."""
    path = store.fetch(VEHICLE, VEHICLE.files[0])
    with store.reading(path):
        arrays = store.parsed_source("vehicle", path, _parse_vehicle, version=1)
    nodes, user_N = np.unique(arrays["node_N"], return_inverse=True)
    return Dataset(
        name="vehicle",
        x=arrays["x"],
        y=arrays["y"],
        task="classification",
        input_kind="features",
        classes=("DW", "AAV"),
        user_N=user_N.astype(np.int64),
        user_names=tuple(f"node{node}" for node in nodes),
        feature_names=tuple(f"{kind}{number}" for kind in ("acoustic", "seismic") for number in range(1, 51)),
        source=VEHICLE.origin,
        licence=VEHICLE.licence,
    )


def _activities(source: DatasetSource, *, subject: str) -> Dataset:
    path = store.fetch(source, source.files[0])
    # Copies of HAPT differ in their folders (`HAPT Data Set/Train/` or `Train/`) and in the case of names.
    names = [f"{part}/{what}_{part}.txt" for part in ("train", "test") for what in ("x", "y", subject)]
    names += ["activity_labels.txt", "features.txt"]
    pattern = re.compile(r"(?:^|/)(" + "|".join(map(re.escape, names)) + ")$", re.IGNORECASE)
    with store.reading(path):
        texts = {
            pattern.search(name).group(1).lower(): text  # type: ignore[union-attr]
            for name, text in store.members(path, lambda name: pattern.search(name) is not None)
        }
        missing = [name for name in names if name not in texts]
        if missing:
            raise ValueError(f"it has no {missing[0]}")
        classes = tuple(line.split()[1] for line in texts["activity_labels.txt"].decode().splitlines() if line.strip())
        features = tuple(line.split()[-1] for line in texts["features.txt"].decode().splitlines() if line.strip())
        columns: dict[str, list[NDArray[Any]]] = {"x": [], "y": [], subject: []}
        for part in ("train", "test"):
            y_N, subject_N = (_read_numbers(texts[f"{part}/{what}_{part}.txt"], 1)[:, 0] for what in ("y", subject))
            x_NF = _read_numbers(texts[f"{part}/x_{part}.txt"], len(features))
            if not len(x_NF) == len(y_N) == len(subject_N):
                raise ValueError(f"{part}: {len(x_NF)} rows of features, {len(y_N)} labels, {len(subject_N)} subjects")
            for name, column in (("x", x_NF), ("y", y_N), (subject, subject_N)):
                columns[name].append(column)
        y = np.concatenate(columns["y"]).astype(np.int64) - 1
        if y.min() < 0 or y.max() >= len(classes):
            raise ValueError(f"a label is {y.min() + 1} or {y.max() + 1}, but the activities are 1 to {len(classes)}")
        people, user_N = np.unique(np.concatenate(columns[subject]), return_inverse=True)
        return Dataset(
            name=source.name,
            x=np.concatenate(columns["x"]).astype(np.float32),
            y=y,
            task="classification",
            input_kind="features",
            classes=classes,
            user_N=user_N.astype(np.int64),
            user_names=tuple(f"subject{int(each)}" for each in people),
            test_N=np.arange(len(y)) >= len(columns["y"][0]),
            feature_names=features,
            source=source.origin,
            licence=source.licence,
        )


def _parse_vehicle(path: Path) -> Arrays:
    found: dict[tuple[str, int, int], dict[str, NDArray[Any]]] = {}
    for name, text in store.members(path, lambda name: _VEHICLE_FILE.search(name) is not None):
        match = _VEHICLE_FILE.search(name)
        assert match is not None
        run, node, kind = (match[1], int(match[2])), int(match[4]), match[3]
        columns = 54 if kind == "acoustic_1" else 53  # 50 features, then one indicator for each kind of vehicle
        found.setdefault((*run, node), {})[kind] = _read_numbers(text, columns)[:, :50]
    rows, labels, nodes = [], [], []
    for (vehicle_kind, run_number, node), kinds in sorted(found.items()):
        if len({len(rows_N50) for rows_N50 in kinds.values()}) != 1 or len(kinds) != 2:
            raise ValueError(f"{vehicle_kind}{run_number}, node {node}: the acoustic and seismic rows do not pair up")
        rows.append(np.hstack([kinds["acoustic_1"], kinds["seismic_2"]]).astype(np.float32))
        labels.append(np.full(len(rows[-1]), vehicle_kind == "aav", np.int64))
        nodes.append(np.full(len(rows[-1]), node, np.int64))
    if not rows:
        raise ValueError("it holds no file like aav3/acoustic_1/features/aav3evfeat1_1_1.txt")
    return {"x": np.concatenate(rows), "y": np.concatenate(labels), "node_N": np.concatenate(nodes)}


def _read_numbers(text: bytes, columns: int) -> NDArray[np.float64]:
    """Read a table of numbers separated by white space, (N, columns), fast.

    Raises:
        ValueError: something is not a number, or the count is not a multiple of `columns`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # older releases of numpy only warn of other text
        try:
            flat = np.fromstring(text.decode("ascii"), dtype=np.float64, sep=" ")
        except (DeprecationWarning, ValueError) as problem:
            raise ValueError("a table has something that is not a number") from problem
    if flat.size == 0 or flat.size % columns:
        raise ValueError(f"a table has {flat.size} numbers, which is not a whole number of rows of {columns}")
    return flat.reshape(-1, columns)
