"""The data sets by name: one function each, whose keyword-only parameters are the settings of `--dataset name,...`.

The functions are in the modules of their formats, which import nothing heavier than numpy until they are called, so
listing is quick. A new data set takes a function, a `DatasetSource` and one line in each table here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedpeer.data import (
    associative,
    associative_digits,
    bundled,
    cifar,
    flights,
    gleam,
    idx,
    leaf,
    sensors,
    shakespeare,
    speeches,
    store,
    tables,
)
from fedpeer.data.dataset import Dataset
from fedpeer.data.store import DatasetSource

DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": bundled.digits,
    "watch": bundled.load_watch,
    "flights": flights.flights,
    "mnist": idx.load_mnist,
    "qmnist": idx.qmnist,
    "fashion-mnist": idx.fashion_mnist,
    "mnist-by-writer": leaf.mnist_by_writer,
    "femnist": leaf.femnist,
    "har": sensors.har,
    "hapt": sensors.hapt,
    "vehicle": sensors.vehicle,
    "landmine": tables.landmine,
    "parkinsons": tables.parkinsons,
    "gleam": gleam.gleam,
    "shakespeare": shakespeare.shakespeare,
    "speeches": speeches.speeches,
    "cifar10": cifar.cifar10,
    "cifar100": cifar.cifar100,
    "associative": associative.associative_data,
    "associative-digits": associative_digits.associative_digits,
}

SOURCES: dict[str, DatasetSource] = {
    source.name: source
    for source in (
        bundled.DIGITS, bundled.WATCH, flights.FLIGHTS, idx.MNIST, idx.QMNIST, idx.FASHION_MNIST,
        leaf.MNIST_BY_WRITER, leaf.FEMNIST, sensors.HAR, sensors.HAPT, sensors.VEHICLE, tables.LANDMINE,
        tables.PARKINSONS, gleam.GLEAM, shakespeare.SHAKESPEARE, speeches.SPEECHES, cifar.CIFAR10, cifar.CIFAR100,
        associative.ASSOCIATIVE, associative_digits.ASSOCIATIVE_DIGITS,
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DatasetDescription:
    """A data set in `fedpeer data list`. `here`: whether it can be loaded now; `obtained`: how to get it if not."""

    name: str
    summary: str
    source: str
    licence: str
    size: str
    obtained: Literal["extra", "made here", "download", "by hand"]
    here: bool


def describe_dataset(name: str) -> DatasetDescription:
    """Describe one data set by its docstring and its source. Looks for its files, but reads none."""
    source = SOURCES[name]
    return DatasetDescription(
        name=name,
        summary=(inspect.getdoc(DATASETS[name]) or "").splitlines()[0],
        source=source.origin,
        licence=source.licence,
        size=source.size,
        obtained=_obtained(source),
        here=source.here,
    )


def _obtained(source: DatasetSource) -> Literal["extra", "made here", "download", "by hand"]:
    if source.package:
        return "extra"
    if not source.files:
        return "made here"
    return "download" if all(file.url for file in source.files) else "by hand"


def prepare_dataset(name: str) -> list[Path]:
    """Make sure that a data set's files are on this machine, and return their paths.

    Raises:
        DataError: a file or the package of the data set is missing; the message says how to get it.
    """
    source = SOURCES[name]
    if not source.installed:
        raise store.no_package(source)
    return [store.fetch(source, file) for file in source.files]
