"""Users' own data, chosen like the known data sets: `csv:FILE,label=outcome`, `npz:FILE`, `images:FOLDER`.

Each reader checks all that it can and reports all mistakes at once, as one `DataError` that names file, row and column.
Nothing is guessed silently, and nothing is repaired. Paths are relative to the working folder; callers that read them
from a configuration file make them absolute first.
"""

from __future__ import annotations

from collections.abc import Callable

from fedpeer.data.dataset import Dataset
from fedpeer.data.own.arrays import npz, python_arrays
from fedpeer.data.own.images import images
from fedpeer.data.own.table import csv, parquet

__all__ = ["OWN", "csv", "images", "npz", "parquet", "python_arrays"]

#: name -> f(*, path or function, settings) -> Dataset
OWN: dict[str, Callable[..., Dataset]] = {
    "csv": csv,
    "parquet": parquet,
    "npz": npz,
    "images": images,
    "python": python_arrays,
}
