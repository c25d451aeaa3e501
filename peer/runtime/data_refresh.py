"""A changed data file of a peer's own, taken up while the peer runs: as after a restart, and without one.

The file is looked at by its size and its time of modification. What it holds now is read and checked as at the start:
the same columns and classes, and a split from the same seed and id. A file that is being written is left for the next
round, and a file with mistakes is reported once.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedpeer.config.choice import ChoiceError, bind_settings
from fedpeer.config.federation import Federation
from fedpeer.config.peer_file import PeerFile
from fedpeer.data.dataset import DataError, Dataset
from fedpeer.data.own import OWN
from fedpeer.learning.holdings import Outfit, held_by, inputs_of
from fedpeer.learning.local_task import LocalTask
from fedpeer.networks.registry import NetworkError

#: Size in bytes, and time of modification in nanoseconds; None: there is no such file.
_Version = tuple[int, int] | None


class DataRefresh:
    """Looks for changes of a peer's data file since it was made, before the data are read for the first time."""

    def __init__(self, file: PeerFile, federation: Federation, device: str) -> None:
        self._file, self._federation, self._device = file, federation, device
        source = file.data.source
        self._path = Path(bind_settings(source, OWN[source.name])["path"])
        self._seen = self._version()

    def _version(self) -> _Version:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns

    def look(self, now: Outfit) -> Outfit | None:
        """Return the data, and the training on them, if the file has changed since the last look; else None.

        Args:
            now: what the peer has.

        Raises:
            DataError: the file cannot be used; this is raised once for each version of it.
        """
        version = self._version()
        if version == self._seen:
            return None
        if version is None:
            self._seen = None
            raise DataError(f"{self._path} is not there any more")
        try:
            made = self._made(now)
        except (DataError, ChoiceError, NetworkError) as problem:
            if self._version() == version:
                self._seen = version
                raise DataError(str(problem)) from problem
            return None  # it is still being written
        if self._version() != version:
            return None
        self._seen = version
        return made

    def _made(self, now: Outfit) -> Outfit:
        dataset, held = held_by(self._file, self._federation)
        if unlike := _difference(now.dataset, dataset):
            raise DataError(f"{self._path}: {unlike}")
        task = LocalTask.of(
            now.assembly, held, inputs_of(dataset), self._file.id, self._device, classes=dataset.classes
        )
        return replace(now, dataset=dataset, held=held, local_task=task)


def _difference(before: Dataset, now: Dataset) -> str:
    """Return in words why a network for the one data set does not fit the other, or ""."""
    for what, one, other in (
        ("columns", before.feature_names, now.feature_names),
        ("classes", before.classes, now.classes),
    ):
        if one != other:
            listed = (", ".join(each[:8]) + (", ..." if len(each) > 8 else "") or "none" for each in (other, one))
            return "its {} are {}, and were {}".format(what, *listed)
    for what, shape, other_shape in (
        ("an example", before.x.shape[1:], now.x.shape[1:]),
        ("a target", before.y.shape[1:], now.y.shape[1:]),
    ):
        if shape != other_shape:
            return f"{what} has shape {other_shape}, and had {shape}"
    return "" if before.task == now.task else f"it asks for {now.task}, and asked for {before.task}"
