"""The data of `fedpeer new`: each function writes those of one template into a folder.

Tables and images come with scikit-learn, flights with the extra `fedpeer[flights]`, texts with Python itself. Random
draws have a fixed seed, so a template is the same everywhere.
"""

from __future__ import annotations

import csv
import importlib.util
from importlib.abc import InspectLoader
from pathlib import Path
from typing import TYPE_CHECKING

from fedpeer.config.problems import ConfigError, ConfigProblem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HOSPITALS = ("north", "northeast", "east", "southeast", "south", "southwest", "west", "northwest")
#: Most flights in the table of an airline at an airport.
_FLIGHTS_MAX = 1_000
#: Modules of Python's own library whose source the peers of the template `text` have, by different authors; and those
#: that the common model learns from.
_AUTHORS = ("argparse", "calendar", "difflib", "fractions", "mailbox", "optparse", "statistics", "textwrap")
_COMMON = ("configparser", "doctest", "random", "smtplib", "tarfile")


def write_table(folder: Path) -> None:
    """Write `patients.csv`, with all rows and their hospital, and `hospitals/1.csv` ..., each without the column."""
    import numpy as np
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    columns = [str(name).replace(" ", "_") for name in found.feature_names]
    # Equal parts of the rows, by the symmetry of their cells: the hospitals differ in the patients that they see.
    order = np.argsort(found.data[:, columns.index("mean_symmetry")], kind="stable")
    hospital_N = np.empty(len(order), dtype=np.int64)
    hospital_N[order] = np.arange(len(order)) * len(_HOSPITALS) // len(order)
    # Half of the rows go to random hospitals, so that each hospital sees some patients of every kind.
    mixed = np.random.default_rng(0)
    moved_N = mixed.random(len(order)) < 1 / 2
    hospital_N[moved_N] = mixed.integers(len(_HOSPITALS), size=int(moved_N.sum()))

    def write(path: Path, rows: NDArray[np.int64], *, named: bool) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*columns, *(["hospital"] if named else []), "diagnosis"])
            for row in rows:
                own = [_HOSPITALS[hospital_N[row]]] if named else []
                writer.writerow([*found.data[row], *own, found.target_names[found.target[row]]])

    write(folder / "patients.csv", np.arange(len(order)), named=True)
    (folder / "hospitals").mkdir()
    for number in range(len(_HOSPITALS)):
        write(folder / "hospitals" / f"{number + 1}.csv", np.flatnonzero(hospital_N == number), named=False)


def write_images(folder: Path) -> None:
    """Write `pictures/0/0001.png` ..., 8 by 8 pixels in 256 shades of grey."""
    from PIL import Image
    from sklearn.datasets import load_digits

    found = load_digits()
    for number, (image, digit) in enumerate(zip(found.images, found.target, strict=True), start=1):
        path = folder / "pictures" / str(digit) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * (255 / 16)).round().astype("uint8")).save(path)


def write_flights(folder: Path) -> None:
    """Write `airlines/1.csv` ..., a table of each airline at an airport, in the order of the peers of a simulation.

    Inputs are those of the data set `flights`: scaled over all flights, with 0 for what is missing.

    Raises:
        DataError: the package with the flights is not installed.
    """
    import numpy as np

    from fedpeer.data.flights import flights

    found = flights()
    assert found.user_N is not None, "an airline at an airport is a user"
    counts = np.bincount(found.user_N)
    (folder / "airlines").mkdir()
    draws = np.random.default_rng(0)
    for number, user in enumerate(np.lexsort((np.array(found.user_names), -counts)), start=1):
        own = np.flatnonzero(found.user_N == user)
        rows = np.sort(draws.permutation(own)[:_FLIGHTS_MAX])
        with (folder / "airlines" / f"{number}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*found.feature_names, "arrival"])
            for row in rows:
                writer.writerow([*(f"{value:.4g}" for value in found.x[row]), found.classes[int(found.y[row])]])


def write_texts(folder: Path) -> None:
    """Write `texts/argparse.txt` ..., a text of each peer, and `common/doctest.txt` ..., texts for a common model.

    Raises:
        ConfigError: Python's own library is here without its source.
    """
    for place, names in (("texts", _AUTHORS), ("common", _COMMON)):
        (folder / place).mkdir()
        for name in names:
            (folder / place / f"{name}.txt").write_text(_source(name), encoding="utf-8")


def _source(module: str) -> str:
    """Return the source of a module of Python's library, which is not imported."""
    spec = importlib.util.find_spec(module)
    source = spec.loader.get_source(module) if spec and isinstance(spec.loader, InspectLoader) else None
    if not source:
        text = f"the texts are Python's own library, and this Python has no source of {module}; choose another template"
        raise ConfigError("the command line", [ConfigProblem((), text, "--template")])
    return source
