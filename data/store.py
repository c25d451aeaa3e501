"""Search and download of the files of official data sets, and errors for damaged files.

A file is searched for under `$FEDPEER_DATA` and then in the per-user cache; if it is in neither, it is downloaded from
its official source into that cache. All have the same layout of folders (`MNIST/raw/train-images-idx3-ubyte.gz`, ...).
A download gets its final name only when it is complete and its checksum is right. A file may be truncated, or have
other content: `reading` turns the errors of a loader into one `DataError` that names the file. Nothing here depends on
the content of files.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import lzma
import os
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import DataError

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class OfficialFile:
    """One file (or folder) of a data set, by its path below a data folder.

    path         relative path with forward slashes
    also         other paths and archive formats of the same content
    url          official source; None: no direct download
    known_hash   "md5:..." or "sha256:..." of the download; None if no official checksum is known: then only the loader
                 checks shapes and counts
    """

    path: str
    also: tuple[str, ...] = ()
    url: str | None = None
    known_hash: str | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetSource:
    """The origin of a data set.

    package   the Python package that includes the data set, or a part of it beside the files; None for other data sets
    by_hand   how to get the files that cannot be downloaded
    """

    name: str
    origin: str
    licence: str
    size: str
    files: tuple[OfficialFile, ...] = ()
    package: str | None = None
    by_hand: str = ""

    @property
    def here(self) -> bool:
        """True if the data set can be loaded without a download."""
        return self.installed and all(_locate(file) is not None for file in self.files)

    @property
    def installed(self) -> bool:
        """True if no package is missing."""
        return self.package is None or importlib.util.find_spec(self.package) is not None


def cache_folder() -> Path:
    """Return the per-user folder for downloads and for cached arrays. It need not exist yet."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("fedpeer"))


def _locate(file: OfficialFile) -> Path | None:
    """Return the file's path if it is on this machine, else None."""
    return next((place for place in _places(file) if place.exists()), None)


def fetch(source: DatasetSource, file: OfficialFile) -> Path:
    """Return the file's path on this machine; download the file if it is missing.

    Raises:
        DataError: the file is missing and cannot be downloaded; the message says where it belongs and how to get it.
    """
    found = _locate(file)
    if found is not None:
        return found
    if file.url is None:
        raise DataError(_missing(source, file, source.by_hand))
    target = cache_folder() / file.path
    try:
        _download(file.url, file.known_hash, target)
    except (OSError, ValueError) as problem:  # errors of requests and pooch: no connection, wrong status, wrong sum
        way_out = (
            f"the download from {file.url} failed ({_reason(problem)}); with a connection, "
            f"`fedpeer data prepare {source.name}` fetches it, or put it at one of these places yourself"
        )
        raise DataError(_missing(source, file, way_out)) from problem
    return target


def packaged(source: DatasetSource, file: str) -> Path:
    """Return the path of a data set's file in a Python package, which is not imported.

    Raises:
        DataError: the package is not installed, or no longer has this file.
    """
    assert source.package is not None, f"{source.name} comes in no package"
    package = importlib.util.find_spec(source.package)
    for folder in (package.submodule_search_locations if package else None) or ():
        path = Path(folder) / file
        if path.exists():
            return path
    raise no_package(source)


def no_package(source: DatasetSource) -> DataError:
    """Return the error for a data set whose package is not installed."""
    return DataError(
        f"{source.name} comes with the Python package {source.package}, which is not installed; {source.by_hand}"
    )


def _places(file: OfficialFile) -> list[Path]:
    given = os.environ.get("FEDPEER_DATA")
    folders = [Path(given), cache_folder()] if given else [cache_folder()]
    return [folder / path for folder in folders for path in (file.path, *file.also)]


def _missing(source: DatasetSource, file: OfficialFile, way_out: str) -> str:
    where = os.environ.get("FEDPEER_DATA")
    first = str(Path(where) / file.path) if where else f"$FEDPEER_DATA/{file.path} (FEDPEER_DATA is not set)"
    return f"{source.name}: {file.path} is missing; expected at {first} or {cache_folder() / file.path}; {way_out}"


def _reason(problem: Exception) -> str:
    import requests

    if isinstance(problem, requests.ConnectionError):  # its own text consists of four nested exceptions
        return "no connection"
    return " ".join(str(problem).split())[:300]


def _download(url: str, known_hash: str | None, target: Path) -> None:
    import pooch

    pooch.get_logger().setLevel("WARNING")  # standard output and error belong to the command line
    bar = _Bar(target.name) if sys.stderr.isatty() else None
    downloader = pooch.HTTPDownloader(progressbar=bar or False)
    try:
        pooch.retrieve(url, known_hash, fname=target.name, path=target.parent, downloader=downloader)
    finally:
        if bar is not None:
            bar.close()


class _Bar:
    """A progress bar with the interface that pooch expects."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

        self._progress = Progress(
            "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=Console(stderr=True)
        )
        self._task = self._progress.add_task(name, total=None)
        self._progress.start()
        self.total = 0

    def update(self, count: int) -> None:
        self._progress.update(self._task, advance=count, total=self.total or None)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the errors that a damaged file causes into a DataError that names the file."""
    try:
        yield
    except (
        OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile,
        # `zipfile` raises NotImplementedError for a kind of compression that it does not know.
        ValueError, KeyError, TypeError, IndexError, NotImplementedError,
    ) as problem:  # fmt: skip
        reason = " ".join(str(problem).split())[:300] or type(problem).__name__
        raise damaged(path, reason) from problem


def damaged(path: Path, problem: str) -> DataError:
    """Return the error for a file with unexpected content."""
    return DataError(
        f"{path} cannot be used: {problem}; if it is damaged, delete it and fetch it again from its official source"
    )


def content(path: Path) -> bytes:
    """Return the bytes of a file, decompressed if its name ends in .gz."""
    if path.suffix != ".gz":
        return path.read_bytes()
    with gzip.open(path) as stream:
        return stream.read()


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the wanted files of a zip or tar archive (any compression), in the archive's order."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in filter(wanted, archive.namelist()):
                yield name, archive.read(name)
        return
    with tarfile.open(path, "r:*") as tar:
        for member in tar:
            if member.isfile() and wanted(member.name):
                stream = tar.extractfile(member)
                assert stream is not None, "a regular file has content"
                yield member.name, stream.read()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def parsed_source(name: str, path: Path, parse: Callable[[Path], Arrays], *, version: int) -> Arrays:
    """Return `parse(path)`, cached by the digest of the file.

    This is for files that take more than about a second to parse. `version` must be raised when the result of `parse`
    changes. A cache that cannot be read or written costs time, but is never an error.
    """
    remembered = cache_folder() / "parsed" / f"{name}-v{version}-{sha256(path)[:32]}.npz"
    with (
        suppress(OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error),
        remembered.open("rb") as stream,  # numpy would leave a damaged file open
        np.load(stream, allow_pickle=False) as arrays,
    ):
        return dict(arrays)
    arrays = parse(path)
    with suppress(OSError):
        remembered.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=remembered.parent) as folder:
            draft = Path(folder) / "draft.npz"
            np.savez(draft, **arrays)  # type: ignore[arg-type]  # numpy's stub takes a keyword for `allow_pickle`
            draft.replace(remembered)
    return arrays
