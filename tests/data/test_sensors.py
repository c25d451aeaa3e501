"""HAR, HAPT and the vehicle sensors: counts as published, small files in the official layouts, and damaged ones."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedpeer.data import sensors
from fedpeer.data.binary import against_the_rest
from fedpeer.data.dataset import DataError, Dataset


@pytest.mark.slow
def test_har_as_published(real: Path) -> None:
    found = sensors.har()
    assert found.x.shape == (10_299, 561)
    assert found.x.dtype == np.float32
    assert (found.x.min(), found.x.max()) == (-1, 1)
    assert found.classes[0] == "WALKING"
    assert np.bincount(found.y.astype(int)).tolist() == [1722, 1544, 1406, 1777, 1906, 1944]
    assert found.test_N is not None
    assert found.test_N.sum() == 2947
    assert found.user_N is not None
    per_user = np.bincount(found.user_N)
    assert (len(per_user), per_user.min(), per_user.max()) == (30, 281, 409)
    assert len(np.unique(found.user_N[found.test_N])) == 9
    assert found.feature_names[0] == "tBodyAcc-mean()-X"
    assert found.x[0, :2].tolist() == np.array([2.8858451e-001, -2.0294171e-002], np.float32).tolist()
    sitting = against_the_rest(found, "sitting")
    assert (sitting.classes, np.bincount(sitting.y).tolist()) == (("rest", "SITTING"), [10_299 - 1777, 1777])


@pytest.mark.slow
def test_vehicle_as_published(real: Path) -> None:
    found = sensors.vehicle()
    assert found.x.shape == (49_264, 100)
    assert np.bincount(found.y.astype(int)).tolist() == [26_423, 22_841]
    assert found.classes == ("DW", "AAV")
    assert found.user_N is not None
    per_user = np.bincount(found.user_N)
    assert (len(per_user), per_user.min(), per_user.max()) == (23, 1432, 2926)
    nodes = [*range(1, 7), 41, 42, *range(46, 57), *range(58, 62)]
    assert found.user_names == tuple(f"node{node}" for node in nodes)


CLASSES = (
    "WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING", "STAND_TO_SIT",
    "SIT_TO_STAND", "SIT_TO_LIE", "LIE_TO_SIT", "STAND_TO_LIE", "LIE_TO_STAND",
)  # fmt: skip


def hapt_files() -> dict[str, str]:
    """Return five windows of three people in the layout of the HAPT archive, with 3 features instead of 561."""
    return {
        "activity_labels.txt": "".join(f"{number} {name}      \n" for number, name in enumerate(CLASSES, 1)),
        "features.txt": "tBodyAcc-Mean-1 \ntBodyAcc-Mean-2 \ntBodyAcc-Mean-3 \n",
        "features_info.txt": "Feature Selection",
        "RawData/labels.txt": "1 1 5 250 1232",
        "Train/X_train.txt": "0.5 -1 0.25\n-2.5e-001 0 1\n0.125 0.5 1\n",
        "Train/y_train.txt": "1\n12\n7\n",
        "Train/subject_id_train.txt": "3\n3\n7\n",
        "Test/X_test.txt": "1 2 3\n4 5 6\n",
        "Test/y_test.txt": "6\n12\n",
        "Test/subject_id_test.txt": "10\n10\n",
    }


def put_zip(path: Path, files: dict[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.mark.parametrize("prefix", ["", "HAPT Data Set/"])
def test_hapt_in_its_official_layout(prefix: str, folder: Path) -> None:
    put_zip(folder / "HAPT/HAPT Data Set.zip", {prefix + name: text for name, text in hapt_files().items()})
    found = sensors.hapt()
    np.testing.assert_array_equal(
        found.x, np.array([[0.5, -1, 0.25], [-0.25, 0, 1], [0.125, 0.5, 1], [1, 2, 3], [4, 5, 6]], np.float32)
    )
    assert found.classes == CLASSES
    assert [found.classes[each] for each in found.y] == [CLASSES[each] for each in (0, 11, 6, 5, 11)]
    assert found.user_names == ("subject3", "subject7", "subject10")
    assert found.user_N is not None
    assert found.user_N.tolist() == [0, 0, 1, 2, 2]
    assert found.test_N is not None
    assert found.test_N.tolist() == [False, False, False, True, True]
    assert found.feature_names[2] == "tBodyAcc-Mean-3"


def test_one_activity_against_the_rest(folder: Path) -> None:
    put_zip(folder / "HAPT/HAPT Data Set.zip", hapt_files())
    whole, found = sensors.hapt(), sensors.hapt(positive="lie_to_stand")
    assert found.classes == ("rest", "LIE_TO_STAND")
    assert found.y.tolist() == [0, 1, 0, 0, 1]
    assert found.y.dtype == whole.y.dtype
    np.testing.assert_array_equal(found.x, whole.x)
    with pytest.raises(DataError, match=r'hapt: there is no class "lying"; known: WALKING, .*SITTING'):
        sensors.hapt(positive="lying")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("Train/X_train.txt", "1 2 3\n", "train: 1 rows of features, 3 labels, 3 subjects"),
        ("Test/X_test.txt", "1 2 3\n4 5\n", "5 numbers, which is not a whole number of rows of 3"),
        ("Test/X_test.txt", "1 2 3\n4 5 six\n", "something that is not a number"),
        ("Test/y_test.txt", "6\n13\n", "a label is 1 or 13, but the activities are 1 to 12"),
        ("Test/y_test.txt", None, "it has no test/y_test.txt"),
    ],
)
def test_a_damaged_hapt_is_named(name: str, text: str | None, problem: str, folder: Path) -> None:
    files = {**hapt_files(), name: text}
    put_zip(folder / "HAPT/HAPT Data Set.zip", {name: text for name, text in files.items() if text is not None})
    with pytest.raises(DataError, match=f"HAPT Data Set.zip cannot be used: .*{problem}"):
        sensors.hapt()


def test_a_truncated_zip_is_named(folder: Path) -> None:
    path = put_zip(folder / "HAPT/HAPT Data Set.zip", hapt_files())
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"HAPT Data Set.zip cannot be used"):
        sensors.hapt()


def vehicle_files() -> dict[str, str]:
    """Return two rows of run aav3 and one of dw12, all of node 41, and copies that must not be read."""
    files = {}
    for run, rows in (("aav3", 2), ("dw12", 1)):
        for kind, channel, columns in (("acoustic_1", 1, 54), ("seismic_2", 2, 53)):
            text = "".join(f"  {channel}.5e+000" * 50 + " 1" * (columns - 50) + "\n" for _ in range(rows))
            files[f"events/runs/{run}/{kind}/features/{run}evfeat41_1_{channel}.txt"] = text
        files[f"events/runs/{run}/{run}feat41.txt"] = "1 2 3\n"
    return files


def put_tar(path: Path, files: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:xz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


@pytest.mark.parametrize(
    ("name", "put"), [("vehicle_sensor/event.zip", put_zip), ("vehicle_sensor/vehicle_sensor.tar.xz", put_tar)]
)
def test_vehicle_from_either_archive(name: str, put: Callable[[Path, dict[str, str]], object], folder: Path) -> None:
    put(folder / name, vehicle_files())

    def check(found: Dataset) -> None:
        np.testing.assert_array_equal(found.x, np.repeat(np.array([[1.5] * 50 + [2.5] * 50], np.float32), 3, axis=0))
        assert found.y.tolist() == [1, 1, 0]
        assert found.user_names == ("node41",)

    check(sensors.vehicle())
    check(sensors.vehicle())  # from the cache


@pytest.mark.parametrize("text", [" 1" * 53, None])
def test_vehicle_rows_pair_up(text: str | None, folder: Path) -> None:
    files: dict[str, str | None] = {**vehicle_files()}
    files["events/runs/aav3/seismic_2/features/aav3evfeat41_1_2.txt"] = text
    put_zip(folder / "vehicle_sensor/event.zip", {name: text for name, text in files.items() if text is not None})
    with pytest.raises(DataError, match=r"event.zip cannot be used: aav3, node 41: the acoustic and seismic rows do"):
        sensors.vehicle()


def test_an_archive_of_something_else_is_named(folder: Path) -> None:
    put_zip(folder / "vehicle_sensor/event.zip", {"readme": "hello"})
    with pytest.raises(DataError, match=r"event.zip cannot be used: it holds no file like aav3"):
        sensors.vehicle()
