"""GLEAM: eating or not, from the sensors of Google Glass on the heads of 38 people (Rahman et al., 2015).

The official archive GLEAM.tar.gz has one folder per person, named by a four-digit number. Besides pictures and notes it
has two tables: the sensors (`Unix Time` in ms, `Sensor`, `Value1` .. `Value3`, one row per reading) and the annotations
(`unix time`, `Activity`; the beginning and the end of an activity are two consecutive rows). This layout is known from
programs that read the archive, not from the archive itself, so tables are recognised by their headers, and columns by
their names.

MOCHA (Smith et al., 2017) uses 180 statistical, spectral and temporal features of accelerometer, gyroscope and
magnetometer, but does not list them. Here each of the 9 axes has 20 features, over windows of 10 s, which gives as many
windows per person as MOCHA had. So results are comparable with MOCHA's, but the features are not identical.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpeer.data import store
from fedpeer.data.dataset import Dataset
from fedpeer.data.store import Arrays, DatasetSource, OfficialFile

GLEAM = DatasetSource(
    name="gleam",
    origin="Rahman, Merck, Huang, Kleinberg, Unintrusive eating recognition using Google Glass, 2015",
    licence="no explicit licence; cite the paper",
    size="38 people, 2 hours each; 180 features of windows of 10 s, 2 classes",
    files=(
        OfficialFile(
            path="gleam/GLEAM.tar.gz",
            url="http://www.skleinberg.org/data/GLEAM.tar.gz",
            known_hash="md5:10ad34716546e44c5078d392f25031e1",
        ),
    ),
)

#: Words that identify a sensor in its name; "Linear Acceleration" is another sensor, derived from these.
_SENSORS = ("accelerometer", "gyroscope", "magnetic")
_TABLE = re.compile(r"(?:^|/)(\d{4})/(?!\._)[^/]+\.csv$", re.IGNORECASE)
_WINDOW_S = 10
#: Most windows of one person. A recording takes two hours, 720 windows; a wrong clock must not fill the memory.
_WINDOWS_MAX = 10_000
_RATE_HZ = 5  # the sensors are read every 200 to 400 ms, unevenly
_FEATURES = (
    "mean", "std", "min", "max", "median", "iqr", "rms", "mean-deviation", "skewness", "kurtosis",
    "mean-crossings", "mean-step", "step-std", "autocorrelation", "spectral-entropy", "centroid",
    "peak-frequency", "peak-share", "low-share", "chewing-share",
)  # fmt: skip


def gleam() -> Dataset:
    """Eating or not, 180 features of ten seconds of head motion; 38 people as users."""
    path = store.fetch(GLEAM, GLEAM.files[0])
    with store.reading(path):
        arrays = store.parsed_source("gleam", path, _parse, version=1)
    people, user_N = np.unique(arrays["person_N"], return_inverse=True)
    return Dataset(
        name="gleam",
        x=arrays["x"],
        y=arrays["y"],
        task="classification",
        input_kind="features",
        classes=("other", "eating"),
        user_N=user_N.astype(np.int64),
        user_names=tuple(f"person{each:04d}" for each in people),
        feature_names=tuple(f"{name[:4]}-{axis} {what}" for name in _SENSORS for axis in "xyz" for what in _FEATURES),
        source=GLEAM.origin,
        licence=GLEAM.licence,
    )


def _parse(path: Path) -> Arrays:
    sensors: dict[int, dict[str, NDArray[np.float64]]] = {}
    meals: dict[int, list[tuple[float, float]]] = {}
    for name, content in store.members(path, lambda name: _TABLE.search(name) is not None):
        match = _TABLE.search(name)
        assert match is not None
        try:
            header, *rows = csv.reader(io.StringIO(content.decode("utf-8-sig")))
            columns = {title.strip().lower(): number for number, title in enumerate(header)}
            if "sensor" in columns:
                sensors[int(match[1])] = _readings(rows, columns)
            elif "activity" in columns:
                meals[int(match[1])] = _meals(rows, columns)
        except (ValueError, KeyError, IndexError) as problem:
            raise ValueError(f"{name}: {problem}") from problem
    if not sensors or sensors.keys() != meals.keys():
        halves = sorted(sensors.keys() ^ meals.keys())
        raise ValueError(f"no tables of both sensors and activities for {halves or 'anybody'}")
    windows = {person: _windows(sensors[person], meals[person]) for person in sorted(sensors)}
    return {
        "x": np.concatenate([x_MF for x_MF, _ in windows.values()]),
        "y": np.concatenate([y_M for _, y_M in windows.values()]),
        "person_N": np.repeat(list(windows), [len(y_M) for _, y_M in windows.values()]),
    }


def _readings(rows: list[list[str]], columns: dict[str, int]) -> dict[str, NDArray[np.float64]]:
    """Return the readings of each sensor of `_SENSORS`, (R, 4): time in ms and three values, in order of time."""
    wanted = [columns[name] for name in ("unix time", "value1", "value2", "value3")]
    found: dict[str, list[list[str]]] = {name: [] for name in _SENSORS}
    for row in filter(None, rows):
        kind = next((name for name in _SENSORS if name in row[columns["sensor"]].lower()), None)
        if kind is not None:
            found[kind].append([row[column] for column in wanted])
    missing = [name for name, readings in found.items() if not readings]
    if missing:
        raise ValueError(f"it has no reading of the sensor {missing[0]}")
    tables = {name: np.array(readings, np.float64) for name, readings in found.items()}
    return {name: table_R4[np.argsort(table_R4[:, 0], kind="stable")] for name, table_R4 in tables.items()}


def _meals(rows: list[list[str]], columns: dict[str, int]) -> list[tuple[float, float]]:
    """Return the beginning and end of each meal in ms."""
    rows = list(filter(None, rows))
    if len(rows) % 2:
        raise ValueError(f"{len(rows)} annotations, but each activity has a beginning and an end")
    time, activity = columns["unix time"], columns["activity"]
    return [
        (float(first[time]), float(last[time]))
        for first, last in zip(rows[::2], rows[1::2], strict=True)
        if first[activity].strip().lower() == "eat"
    ]


def _windows(
    sensors: dict[str, NDArray[np.float64]], meals: list[tuple[float, float]]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return features (M, 180) and class (M,) of each window in which all three sensors have readings.

    The sensors are interpolated to a common grid. A window's class is eating if more than half of its time is.
    """
    begin_ms = max(table_R4[0, 0] for table_R4 in sensors.values())
    end_ms = min(table_R4[-1, 0] for table_R4 in sensors.values())
    count = int((end_ms - begin_ms) // (1000 * _WINDOW_S))
    if not 1 <= count <= _WINDOWS_MAX:
        raise ValueError(
            f"the readings of the three sensors overlap for {(end_ms - begin_ms) / 1000:.0f} s, not for {_WINDOW_S} to "
            f"{_WINDOW_S * _WINDOWS_MAX:,} s"
        )
    grid_ms = begin_ms + np.arange(count * _WINDOW_S * _RATE_HZ) * 1000 / _RATE_HZ
    even_AT = np.array(
        [np.interp(grid_ms, table_R4[:, 0], table_R4[:, axis]) for table_R4 in sensors.values() for axis in (1, 2, 3)]
    )
    edges_ms = begin_ms + np.arange(count + 1) * 1000 * _WINDOW_S
    read_M = np.ones(count, bool)
    for table_R4 in sensors.values():
        read_M &= np.histogram(table_R4[:, 0], edges_ms)[0] > 0
    eating_T = np.zeros(len(grid_ms), bool)
    for start_ms, stop_ms in meals:
        eating_T |= (grid_ms >= start_ms) & (grid_ms < stop_ms)
    features_MF = _features(even_AT.reshape(9, count, -1)).transpose(1, 0, 2).reshape(count, -1)
    y_M = eating_T.reshape(count, -1).mean(1) > 0.5
    return features_MF[read_M].astype(np.float32), y_M[read_M].astype(np.int64)


def _features(x_AMT: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the 20 features of each axis and window, (A, M, 20), in the order of `_FEATURES`."""
    mean = x_AMT.mean(-1, keepdims=True)
    centred = x_AMT - mean
    std = centred.std(-1)
    safe = np.where(std > 0, std, 1)  # a constant window has skewness, kurtosis and autocorrelation 0
    step = np.diff(x_AMT)
    quarter, median, three = np.quantile(x_AMT, (0.25, 0.5, 0.75), axis=-1)
    power = np.abs(np.fft.rfft(centred))[..., 1:] ** 2
    frequency = np.fft.rfftfreq(x_AMT.shape[-1], 1 / _RATE_HZ)[1:]
    energy = power.sum(-1)
    share = power / np.where(energy > 0, energy, 1)[..., None]
    logarithm = np.log(np.where(share > 0, share, 1))
    return np.stack(
        [
            mean[..., 0],
            std,
            x_AMT.min(-1),
            x_AMT.max(-1),
            median,
            three - quarter,
            np.sqrt((x_AMT**2).mean(-1)),
            np.abs(centred).mean(-1),
            (centred**3).mean(-1) / safe**3,
            (centred**4).mean(-1) / safe**4,
            (np.diff(np.sign(centred)) != 0).mean(-1),
            np.abs(step).mean(-1),
            step.std(-1),
            (centred[..., 1:] * centred[..., :-1]).mean(-1) / safe**2,
            -(share * logarithm).sum(-1),
            (share * frequency).sum(-1),
            frequency[power.argmax(-1)],
            share.max(-1),
            share[..., frequency < 0.5].sum(-1),
            share[..., (frequency >= 1) & (frequency <= 2)].sum(-1),
        ],
        axis=-1,
    )
