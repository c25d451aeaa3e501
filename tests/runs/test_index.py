"""The index: a copy of the folders that may be lost or damaged, and that several processes may use at once."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from fedpeer.runs.index import Index, row_of
from tests.forked import python
from tests.runs.run_factory import METHODS, made


def test_a_row_holds_what_a_listing_shows(tmp_path: Path) -> None:
    run = made(tmp_path, peers=4, rounds=3, seeds=(5, 6))
    [row] = Index(tmp_path).rows()
    assert row.id == run.id
    assert (row.name, row.dataset, row.peers, row.rounds, row.seeds) == ("digits", "digits", 4, 3, (5, 6))
    assert (row.methods, row.status, row.measure) == (METHODS, "finished", "accuracy")
    assert row.seconds is not None
    expected = 0.5 + 0.01 * len("local") + 0.02 * 3 + 0.001 * 5.5 + 0.01 * 1.5 / 4
    assert row.scores["local"] == pytest.approx(expected)


def test_the_latest_run_comes_first(tmp_path: Path) -> None:
    ids = [made(tmp_path, name=name).id for name in ("zebra", "ant", "moth")]
    assert [row.id for row in Index(tmp_path).rows()] == ids[::-1]


def test_a_lost_index_is_made_again_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        made(tmp_path)
    assert caplog.text == ""
    before = Index(tmp_path).rows()
    (tmp_path / "index.sqlite").unlink()
    assert Index(tmp_path).rows() == before
    assert "rebuilt from 3 run folders" in caplog.text


def test_a_damaged_index_is_made_again_and_said_and_kept_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made(tmp_path)
    path = tmp_path / "index.sqlite"
    path.write_bytes(b"this is no database, " * 100)
    (tmp_path / "index.sqlite-journal").write_bytes(b"nor is this")
    second = made(tmp_path)
    assert len(Index(tmp_path).rows()) == 2
    assert Index(tmp_path).rows()[0].id == second.id
    assert "was damaged" in caplog.text
    assert (tmp_path / "index.damaged").read_bytes().startswith(b"this is no database")


def test_an_index_of_another_version_is_made_again(tmp_path: Path) -> None:
    run = made(tmp_path)
    with closing(sqlite3.connect(tmp_path / "index.sqlite")) as connection, connection:
        connection.execute("DROP TABLE runs")
        connection.execute("CREATE TABLE runs (something)")
        connection.execute("PRAGMA user_version = 999")
    assert [row.id for row in Index(tmp_path).rows()] == [run.id]


def test_deleted_folders_go_and_folders_from_elsewhere_come(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    gone, moved = made(here), made(there)
    shutil.rmtree(gone.path)
    shutil.copytree(moved.path, here / moved.id)
    assert [row.id for row in Index(here).rows()] == [moved.id]


def test_a_folder_that_cannot_be_read_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good, bad = made(tmp_path), made(tmp_path)
    (tmp_path / "index.sqlite").unlink()
    (bad.path / "settings.json").write_text("{")
    assert [row.id for row in Index(tmp_path).rows()] == [good.id]
    assert "settings.json is damaged" in caplog.text


def test_a_row_made_from_the_folder_is_the_row_of_the_index(tmp_path: Path) -> None:
    run = made(tmp_path, measure="error")
    assert Index(tmp_path).rows() == [row_of(run.path)]
    assert row_of(run.path).measure == "error"


MANY = """
import sys
from pathlib import Path
from tests.runs.run_factory import made
sys.stdin.readline()
print(*(made(Path(sys.argv[1]), rounds=1).id for _ in range(8)))
"""


def test_two_processes_write_the_index_at_once(tmp_path: Path) -> None:
    command = [*python(), "-c", MANY, str(tmp_path)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ids = {run_id for process in processes for run_id in process.communicate()[0].split()}
    rows = Index(tmp_path).rows()
    assert len(ids) == 16
    assert {row.id for row in rows} == ids
    assert {row.status for row in rows} == {"finished"}
