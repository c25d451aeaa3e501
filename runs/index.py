"""The index of all runs under one root: one SQLite file, so that listing thousands of runs opens one file.

The folders have the data and the index is a copy: `row_of` makes every row from its folder, and an index that is
missing, damaged or of another version is made again from the folders. The next listing notices folders that were
deleted or added by hand. Several processes may use the index at once; each access is one transaction.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from fedpeer.runs.disk import RunError, is_locked, read_json, take_lock

log = logging.getLogger(__name__)

RunStatus = Literal["running", "finished", "interrupted", "failed"]
_Result = TypeVar("_Result")

#: Version in the file's header; an index with another one is made again.
_VERSION = 1
#: Seconds to wait for another process's transaction. It takes milliseconds, or some seconds to rebuild 10,000 runs.
PATIENCE = 30.0


@dataclass(frozen=True, kw_only=True)
class IndexRow:
    """A run in a listing.

    rounds     rounds in the settings
    started    UTC, ISO 8601
    seconds    wall time until the end; None while it runs
    measure    "accuracy" (0 to 1, more is better) or "error" (less is better)
    scores     method -> mean over peers and seeds; None before the first evaluation
    """

    id: str
    name: str
    dataset: str
    methods: tuple[str, ...]
    peers: int
    seeds: tuple[int, ...]
    rounds: int
    status: RunStatus
    started: str
    seconds: float | None
    measure: str
    scores: dict[str, float | None]


#: Columns whose values are stored as JSON.
_JSON = ("methods", "seeds", "scores")
_COLUMNS = tuple(field.name for field in fields(IndexRow))


def row_of(folder: Path) -> IndexRow:
    """Read the row of one run from its folder.

    Raises:
        RunError: `run.json` or another file there is missing or damaged.
    """
    run, settings = read_json(folder / "run.json"), read_json(folder / "settings.json")
    summary = read_json(folder / "summary.json") if (folder / "summary.json").exists() else {}
    simulation, methods = settings.get("simulation", {}), summary.get("methods", {})
    measure = "error" if any("error_mean" in result for result in methods.values()) else "accuracy"
    return IndexRow(
        id=folder.name,
        name=run["name"],
        dataset=str(summary.get("dataset") or simulation.get("dataset") or ""),
        methods=tuple(methods or settings.get("methods", ())),
        peers=summary.get("peers") or simulation.get("peers") or 0,
        seeds=tuple(summary.get("seeds") or settings.get("seeds", (settings.get("seed", 0),))),
        rounds=settings.get("learning", {}).get("rounds", 0),
        status=run["status"],
        started=run["started"],
        seconds=run["seconds"],
        measure=measure,
        scores={method: result.get(f"{measure}_mean") for method, result in methods.items()},
    )


def living(folder: Path, status: RunStatus) -> RunStatus:
    """Return the current status: a run with the status running whose process has ended was interrupted."""
    return "interrupted" if status == "running" and not is_locked(folder / "run.lock") else status


def folders(root: Path) -> dict[str, Path]:
    """Return the run folders under `root` by id, oldest id first."""
    return {path.parent.name: path.parent for path in sorted(root.glob("*/run.json"))}


class Index:
    """The index of the runs under `root`. Nothing stays open between calls."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "index.sqlite"

    def ready(self) -> None:
        """Make the index if it is missing or of another version."""
        self._transaction(lambda connection: None)

    def put(self, row: IndexRow) -> None:
        """Add the row, or replace the one with the same id."""
        self._transaction(lambda connection: _put(connection, row))

    def rows(self) -> list[IndexRow]:
        """Return all runs with their current status, the latest first."""
        return [self._now(row) for row in self._transaction(self._matched)]

    def _now(self, row: IndexRow) -> IndexRow:
        """Return the row with the current status, which is in the folder if the process was killed."""
        if row.status != "running":
            return row
        folder = self.root / row.id
        try:
            row = row_of(folder)
        except RunError as problem:
            log.warning("%s", problem)
        return replace(row, status=living(folder, row.status))

    def _matched(self, connection: sqlite3.Connection) -> list[IndexRow]:
        """Update the index to match the folders; return its rows."""
        there, known = folders(self.root), {row.id for row in _all(connection)}
        connection.executemany("DELETE FROM runs WHERE id = ?", [(gone,) for gone in known - there.keys()])
        for run_id in there.keys() - known:
            try:
                _put(connection, row_of(there[run_id]))
            except RunError as problem:
                log.warning("left out of the list: %s", problem)
        return _all(connection)

    def _transaction(self, act: Callable[[sqlite3.Connection], _Result]) -> _Result:
        try:
            return self._attempt(act)
        except sqlite3.DatabaseError as problem:
            if isinstance(problem, sqlite3.OperationalError):  # locked for too long, disk full, read-only: not damage
                raise RunError(f"{self.path} cannot be used ({problem}); check the disk and its permissions") from None
            self._discard()
            log.warning("%s was damaged (%s) and is rebuilt from the run folders", self.path, problem)
            return self._attempt(act)

    def _attempt(self, act: Callable[[sqlite3.Connection], _Result]) -> _Result:
        self.root.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                if version != _VERSION:
                    self._make(connection)
                result = act(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return result

    def _make(self, connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE IF EXISTS runs")
        columns = ", ".join("id PRIMARY KEY" if name == "id" else name for name in _COLUMNS)
        connection.execute(f"CREATE TABLE runs ({columns})")
        connection.execute(f"PRAGMA user_version = {_VERSION}")
        if lost := len(self._matched(connection)):
            log.warning("%s was missing and was rebuilt from %d run folders", self.path, lost)

    def _discard(self) -> None:
        """Move the damaged file away, unless another process has done so already."""
        lock = take_lock(self.root / "index.lock", patience=PATIENCE)
        if lock is None:
            raise RunError(f"{self.path} is damaged, and another process holds {self.root / 'index.lock'}")
        try:
            if not _sound(self.path):
                os.replace(self.path, self.path.with_suffix(".damaged"))
                self.path.with_name(self.path.name + "-journal").unlink(missing_ok=True)  # it is the old file's journal
        finally:
            os.close(lock)


def _sound(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path, timeout=PATIENCE)) as connection:
            return bool(connection.execute("PRAGMA quick_check").fetchone()[0] == "ok")
    except sqlite3.DatabaseError:
        return False


def _put(connection: sqlite3.Connection, row: IndexRow) -> None:
    values = [json.dumps(value) if name in _JSON else value for name, value in zip(_COLUMNS, astuple(row), strict=True)]
    connection.execute(f"REPLACE INTO runs VALUES ({', '.join('?' * len(values))})", values)


def _all(connection: sqlite3.Connection) -> list[IndexRow]:
    found = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM runs ORDER BY started DESC, id DESC")
    return [IndexRow(**dict(_read(zip(_COLUMNS, values, strict=True)))) for values in found]


def _read(columns: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, value in columns:
        content = json.loads(value) if name in _JSON else value
        yield name, tuple(content) if isinstance(content, list) else content
