"""Two classic multi-task tables: landmine detection (binary) and Parkinson's telemonitoring (regression)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedpeer.data import store
from fedpeer.data.dataset import Dataset
from fedpeer.data.store import DatasetSource, OfficialFile

LANDMINE = DatasetSource(
    name="landmine",
    origin="Xue, Liao, Carin, Krishnapuram, Multi-task learning with Dirichlet process priors, JMLR 2007",
    licence="no explicit licence",
    size="14,820 rows of 9 radar features, 2 classes (6 % mines), 29 fields; 1 MB",
    files=(OfficialFile(path="landmine/LandmineData.mat", url="http://www.ece.duke.edu/~lcarin/LandmineData.mat"),),
)
PARKINSONS = DatasetSource(
    name="parkinsons",
    origin="Tsanas, Little, McSharry, Ramig, 2009, UCI dataset 189",
    licence="CC BY 4.0",
    size="5,875 recordings of 19 features, 2 scores to predict, 42 patients; 0.9 MB",
    files=(
        OfficialFile(
            path="parkinsons_telemonitoring/parkinsons_updrs.data",
            url="https://archive.ics.uci.edu/ml/machine-learning-databases/parkinsons/telemonitoring/"
            "parkinsons_updrs.data",
        ),
    ),
)

_TARGETS = ("motor_UPDRS", "total_UPDRS")


def landmine() -> Dataset:
    """Landmine or clutter from 9 radar features; 29 fields as users, 6 % of the rows are mines."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    path = store.fetch(LANDMINE, LANDMINE.files[0])
    with store.reading(path):
        try:
            cells = loadmat(path, variable_names=["feature", "label"])
        except MatReadError as problem:
            raise ValueError(str(problem)) from problem
        fields = list(zip(cells["feature"][0], cells["label"][0], strict=True))
        for number, (x_N9, y_N1) in enumerate(fields, 1):
            if x_N9.ndim != 2 or x_N9.shape[1] != 9 or y_N1.shape != (len(x_N9), 1) or not np.isin(y_N1, (0, 1)).all():
                raise ValueError(f"field {number} has features {x_N9.shape} and labels {y_N1.shape}")
        return Dataset(
            name="landmine",
            x=np.concatenate([x_N9 for x_N9, _ in fields]).astype(np.float32),
            y=np.concatenate([y_N1[:, 0] for _, y_N1 in fields]).astype(np.int64),
            task="classification",
            input_kind="features",
            classes=("clutter", "mine"),
            user_N=np.repeat(np.arange(len(fields)), [len(x_N9) for x_N9, _ in fields]),
            user_names=tuple(f"field{number}" for number in range(1, len(fields) + 1)),
            source=LANDMINE.origin,
            licence=LANDMINE.licence,
        )


def parkinsons(*, target: Literal["motor_UPDRS", "total_UPDRS"] = "motor_UPDRS") -> Dataset:
    """Severity of Parkinson's disease (UPDRS points) from the voice; regression, 42 patients as users.

    The 19 features are age, sex, test_time and 16 measures of the voice, as in the file. They span seven orders of
    magnitude, so they need normalising.
    """
    path = store.fetch(PARKINSONS, PARKINSONS.files[0])
    with store.reading(path):
        header, *lines = path.read_text("utf-8-sig").splitlines() or [""]
        names = header.split(",")
        if missing := {"subject#", *_TARGETS} - set(names):
            raise ValueError(f"its first line does not name the column {min(missing)}")
        rows_NF = np.array([line.split(",") for line in lines if line.strip()], np.float64)
        if rows_NF.shape[1:] != (len(names),) or not np.isfinite(rows_NF).all():
            raise ValueError(f"its rows are not {len(names)} numbers each")
        kept = [names.index(name) for name in names[1:] if name not in _TARGETS]
        people, user_N = np.unique(rows_NF[:, names.index("subject#")], return_inverse=True)
        return Dataset(
            name="parkinsons",
            x=rows_NF[:, kept].astype(np.float32),
            y=rows_NF[:, names.index(target)].astype(np.float32),
            task="regression",
            input_kind="features",
            user_N=user_N.astype(np.int64),
            user_names=tuple(f"patient{int(each)}" for each in people),
            feature_names=tuple(names[column] for column in kept),
            source=PARKINSONS.origin,
            licence=PARKINSONS.licence,
        )
