"""GLEAM from a small archive in its layout: windows, labels, and features against their closed forms."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedpeer.data import gleam
from fedpeer.data.dataset import DataError

#: Start time of each recording in these tests, in ms.
START = 1_400_000_000_000


def sensor_table(seconds: int, *, step_ms: int = 200, quiet: range = range(0)) -> str:
    """Return the table of all sensors over `seconds` seconds.

    Accelerometer: x is a sine of 0.5 Hz and amplitude 2, y a ramp of 1 a second, z constantly 3. Gyroscope: z is the
    sum of a sine of 1.5 Hz, the frequency of chewing, and one of 0.2 Hz. The others are constant. In the seconds of
    `quiet` the gyroscope has no readings.
    """
    lines = ["Unix Time,Sensor,Value1,Value2,Value3"]
    for ms in range(0, seconds * 1000 + 1, step_ms):
        t = ms / 1000
        lines.append(f"{START + ms},MPL Accelerometer,{2 * np.sin(np.pi * t)},{t},3")
        if int(t) not in quiet:
            lines.append(f"{START + ms},MPL Gyroscope,0,0,{np.cos(3 * np.pi * t) + np.cos(0.4 * np.pi * t)}")
        lines.append(f"{START + ms},MPL Magnetic Field,7,7,7")
        lines.append(f"{START + ms},MPL Linear Acceleration,99,99,99")
        lines.append(f"{START + ms},LTR-506ALS Light sensor,12,,")
    return "\n".join(lines) + "\n"


def annotation_table(*activities: tuple[float, float, str]) -> str:
    rows = [f"{START + 1000 * second:.0f},{name},x" for begin, end, name in activities for second in (begin, end)]
    return "\n".join(["unix time,Activity,Note", *rows]) + "\n"


def people() -> dict[str, str]:
    return {
        "Demographics_Glass_data.csv": "Id,Age,Gender\n101,20,F\n",
        "0101/0101_annotation.csv": annotation_table((0, 12, "walk"), (14, 37, "eat"), (40, 50, "drink")),
        "0101/0101_sensors.csv": sensor_table(50),
        "0101/._0101_sensors.csv": "\0\5\x16\7",
        "0101/food.jpg": "\xff\xd8",
        "0207/annotation.csv": annotation_table((0, 4, "eat")),
        "0207/data.csv": sensor_table(30, quiet=range(10, 20)),
    }


def put(folder: Path, files: dict[str, str]) -> None:
    path = folder / "gleam/GLEAM.tar.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"GLEAM/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def test_windows_of_ten_seconds_by_person(folder: Path) -> None:
    put(folder, people())
    found = gleam.gleam()
    # 0101 eats at 14-37 s: over half of the second, third and fourth window. 0207 has no gyroscope in its second.
    assert found.y.tolist() == [0, 1, 1, 1, 0, 0, 0]
    assert found.user_names == ("person0101", "person0207")
    assert found.user_N is not None
    assert found.user_N.tolist() == [0] * 5 + [1] * 2
    assert found.classes == ("other", "eating")
    assert found.x.shape == (7, 180)
    assert np.isfinite(found.x).all()
    assert len(set(found.feature_names)) == 180


def test_features_have_their_closed_forms(folder: Path) -> None:
    put(folder, people())
    found = gleam.gleam()

    def feature(axis: str, name: str, window: int = 1) -> float:
        return float(found.x[window, found.feature_names.index(f"{axis} {name}")])

    # Five whole periods of a sine of amplitude 2, sampled five times a second; the ramp from 10 s to 19.8 s.
    assert feature("acce-x", "mean") == pytest.approx(0, abs=1e-5)
    assert feature("acce-x", "std") == pytest.approx(2**0.5)
    assert feature("acce-x", "rms") == pytest.approx(2**0.5)
    assert feature("acce-x", "skewness") == pytest.approx(0, abs=1e-5)
    assert feature("acce-x", "kurtosis") == pytest.approx(1.5)
    assert feature("acce-x", "peak-frequency") == pytest.approx(0.5)
    assert feature("acce-x", "peak-share") == pytest.approx(1)
    assert feature("acce-x", "centroid") == pytest.approx(0.5)
    assert feature("acce-x", "spectral-entropy") == pytest.approx(0, abs=1e-4)
    assert feature("acce-x", "low-share") == pytest.approx(0, abs=1e-5)
    assert feature("acce-x", "autocorrelation") == pytest.approx(np.cos(0.2 * np.pi), abs=0.02)
    ramp = 10 + np.arange(50) / 5
    for name, expected in (
        ("mean", ramp.mean()), ("std", ramp.std()), ("min", 10), ("max", 19.8), ("median", 14.9), ("iqr", 4.9),
        ("mean-deviation", np.abs(ramp - ramp.mean()).mean()), ("mean-step", 0.2), ("step-std", 0),
        ("mean-crossings", 1 / 49),
    ):  # fmt: skip
        assert feature("acce-y", name) == pytest.approx(expected, abs=1e-5), name
    assert feature("gyro-z", "chewing-share") == pytest.approx(0.5, abs=1e-4)
    assert feature("gyro-z", "low-share") == pytest.approx(0.5, abs=1e-4)
    assert feature("gyro-z", "spectral-entropy") == pytest.approx(np.log(2), abs=1e-3)
    for axis in ("acce-z", "gyro-x", "magn-y"):
        assert feature(axis, "mean") == {"acce-z": 3, "gyro-x": 0, "magn-y": 7}[axis]
        for name in (
            "std",
            "iqr",
            "skewness",
            "kurtosis",
            "spectral-entropy",
            "mean-crossings",
            "peak-share",
        ):
            assert feature(axis, name) == 0, name


def test_uneven_and_unordered_readings_are_brought_to_one_grid(folder: Path) -> None:
    files = people()
    header, *rows = sensor_table(50, step_ms=250).splitlines()
    np.random.default_rng(0).shuffle(rows)
    put(folder, {**files, "0101/0101_sensors.csv": "\n".join([header, *rows])})
    found = gleam.gleam()
    ramp = found.x[:5, found.feature_names.index("acce-y mean")].astype(float)
    np.testing.assert_allclose(ramp, [4.9, 14.9, 24.9, 34.9, 44.9], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("0101/0101_sensors.csv", None, r"no tables of both sensors and activities for \[101\]"),
        ("0101/0101_sensors.csv", sensor_table(5), "overlap for 5 s"),
        ("0101/0101_sensors.csv", sensor_table(20).replace("Gyroscope", "Compass"), "no reading of the sensor gyro"),
        ("0101/0101_sensors.csv", sensor_table(20).replace("Value2", "Y"), "0101_sensors.csv: 'value2'"),
        ("0101/0101_sensors.csv", sensor_table(20).replace(",3\n", ",three\n"), "0101_sensors.csv: could not convert"),
        ("0101/0101_sensors.csv", sensor_table(20) + "9400000000000,Gyroscope,0,0,0\n", None),
        ("0101/0101_annotation.csv", annotation_table((0, 9, "eat")) + "1,eat,x\n", "3 annotations, but each activity"),
        ("0101/0101_annotation.csv", "", "0101_annotation.csv"),
    ],
)
def test_damaged_tables_are_named(name: str, text: str | None, problem: str | None, folder: Path) -> None:
    files = {**people(), name: text}
    put(folder, {name: text for name, text in files.items() if text is not None})
    if problem is None:  # one reading at a wrong time loses nothing: the other sensors end the recording
        assert len(gleam.gleam()) == 2 + 2
        return
    with pytest.raises(DataError, match=f"GLEAM.tar.gz cannot be used: .*{problem}"):
        gleam.gleam()


def test_a_wrong_clock_does_not_fill_the_memory(folder: Path) -> None:
    wrong = "".join(f"9400000000000,{name},0,0,0\n" for name in ("Accelerometer", "Gyroscope", "Magnetic"))
    put(folder, {**people(), "0101/0101_sensors.csv": sensor_table(20) + wrong})
    with pytest.raises(DataError, match="overlap for 8000000000 s"):
        gleam.gleam()


def test_an_archive_of_something_else_is_named(folder: Path) -> None:
    put(folder, {"readme": "hello"})
    with pytest.raises(DataError, match=r"GLEAM.tar.gz cannot be used: no tables of both .* for anybody"):
        gleam.gleam()
