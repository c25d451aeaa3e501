"""Landmine and Parkinson's: counts as published, the targets, and damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from fedpeer.data import tables
from fedpeer.data.dataset import DataError


def test_landmine_as_published(real: Path) -> None:
    found = tables.landmine()
    assert found.x.shape == (14_820, 9)
    assert np.bincount(found.y.astype(int)).tolist() == [13_916, 904]
    assert found.user_N is not None
    per_user = np.bincount(found.user_N)
    assert (len(per_user), per_user.min(), per_user.max(), found.user_names[28]) == (29, 445, 690, "field29")


def test_parkinsons_as_published(real: Path) -> None:
    path = real / tables.PARKINSONS.files[0].path
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    found = tables.parkinsons()
    assert (found.x.shape, found.task, found.classes) == ((5875, 19), "regression", ())
    assert found.feature_names[:4] == ("age", "sex", "test_time", "Jitter(%)")
    np.testing.assert_array_equal(found.y, table[:, 4].astype(np.float32))
    np.testing.assert_array_equal(tables.parkinsons(target="total_UPDRS").y, table[:, 5].astype(np.float32))
    np.testing.assert_array_equal(found.x, table[:, [1, 2, 3, *range(6, 22)]].astype(np.float32))
    assert found.user_N is not None
    per_user = np.bincount(found.user_N)
    assert (len(per_user), per_user.min(), per_user.max(), found.user_names[0]) == (42, 101, 168, "patient1")


def put(folder: Path, text: str) -> None:
    path = folder / tables.PARKINSONS.files[0].path
    path.parent.mkdir(parents=True)
    path.write_text(text)


HEADER = "subject#,age,sex,test_time,motor_UPDRS,total_UPDRS,NHR\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "does not name the column motor_UPDRS"),
        (HEADER, "its rows are not 7 numbers each"),
        (HEADER + "1,72,0,5.6,28.1,34.3\n", "its rows are not 7 numbers each"),
        (HEADER + "1,72,0,5.6,28.1,34.3,nan\n", "its rows are not 7 numbers each"),
        (HEADER + "1,72,0,5.6,28.1,34.3,x\n", "could not convert"),
        (HEADER + "1,72,0,5.6,28.1,34.3,1\n1,72\n", "inhomogeneous"),
        (HEADER.replace("motor_UPDRS", "motor") + "1,72,0,5.6,28.1,34.3,1\n", "does not name the column motor_UPDRS"),
    ],
)
def test_a_damaged_csv_is_named(text: str, problem: str, folder: Path) -> None:
    put(folder, text)
    with pytest.raises(DataError, match=f"parkinsons_updrs.data cannot be used: .*{problem}"):
        tables.parkinsons()


def cells(*parts: np.ndarray) -> np.ndarray:
    held = np.empty((1, len(parts)), object)
    held[0] = parts
    return held


@pytest.mark.parametrize(
    ("feature", "label", "problem"),
    [
        (np.zeros((3, 8)), np.zeros((3, 1)), r"field 2 has features \(3, 8\)"),
        (np.zeros((3, 9)), np.zeros((2, 1)), r"labels \(2, 1\)"),
        (np.zeros((3, 9)), np.full((3, 1), 2), "field 2"),
    ],
)
def test_mismatching_cells_are_named(feature: np.ndarray, label: np.ndarray, problem: str, folder: Path) -> None:
    path = folder / tables.LANDMINE.files[0].path
    path.parent.mkdir()
    good = np.zeros((4, 9)), np.zeros((4, 1))
    savemat(path, {"feature": cells(good[0], feature), "label": cells(good[1], label)})
    with pytest.raises(DataError, match=f"LandmineData.mat cannot be used: .*{problem}"):
        tables.landmine()


@pytest.mark.parametrize(
    "content", [b"", b"MATLAB 5.0 MAT-file" + b" " * 105 + b"\0\1IM" + b"\x0f\0\0\0\x10", b"x" * 200]
)
def test_what_is_no_mat_file_is_named(content: bytes, folder: Path) -> None:
    path = folder / tables.LANDMINE.files[0].path
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"LandmineData.mat cannot be used"):
        tables.landmine()
