"""Files of data sets: their places, their download, and one clear error for a damaged file."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from fedpeer.data import store
from fedpeer.data.dataset import DataError
from fedpeer.data.store import DatasetSource, OfficialFile

CONTENT = b"official content"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404 if "absent" in self.path else 200)
        self.send_header("Content-Length", str(len(CONTENT) + ("short" in self.path)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def source(url: str | None, known_hash: str | None = None) -> DatasetSource:
    file = OfficialFile(path="set/raw/a.gz", also=("set/a",), url=url, known_hash=known_hash)
    return DatasetSource(name="aset", origin="o", licence="l", size="s", files=(file,), by_hand="ask its authors")


def fetch(source: DatasetSource) -> Path:
    return store.fetch(source, source.files[0])


def test_the_data_folder_comes_before_the_cache(folder: Path, cache: Path) -> None:
    aset = source(None)
    assert not aset.here
    for path in (cache / "set/a", cache / "set/raw/a.gz", folder / "set/a", folder / "set/raw/a.gz"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        assert fetch(aset) == path
    assert aset.here


def test_a_download_is_checked_and_kept(cache: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDPEER_DATA", raising=False)
    aset = source(f"{server}/a.gz", f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")
    assert fetch(aset) == cache / "set/raw/a.gz"
    assert (cache / "set/raw/a.gz").read_bytes() == CONTENT
    assert fetch(source("http://127.0.0.1:9/never-asked-again")) == cache / "set/raw/a.gz"


def test_a_terminal_sees_the_progress(
    folder: Path, cache: Path, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    fetch(source(f"{server}/a.gz"))
    shown = capsys.readouterr()
    assert "a.gz" in shown.err
    assert f"{len(CONTENT)}/{len(CONTENT)} bytes" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("path", "known_hash", "reason"),
    [
        ("a.gz", "md5:" + "0" * 32, "does not match the known hash"),
        ("short/a.gz", None, "IncompleteRead"),
        ("absent/a.gz", None, "404"),
    ],
)
def test_a_bad_download_leaves_nothing(
    path: str, known_hash: str | None, reason: str, folder: Path, cache: Path, server: str
) -> None:
    with pytest.raises(DataError, match=reason):
        fetch(source(f"{server}/{path}", known_hash))
    assert [each for each in cache.rglob("*") if each.is_file()] == []


def test_without_a_connection_the_error_says_what_where_and_how(folder: Path, cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        fetch(source("http://127.0.0.1:9/a.gz"))
    message = str(caught.value)
    assert "aset: set/raw/a.gz is missing" in message
    assert f"expected at {folder / 'set/raw/a.gz'} or {cache / 'set/raw/a.gz'}" in message
    assert "the download from http://127.0.0.1:9/a.gz failed (no connection)" in message
    assert "`fedpeer data prepare aset`" in message


def test_what_cannot_be_downloaded_says_how_to_make_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDPEER_DATA", raising=False)
    with pytest.raises(
        DataError, match=r"\$FEDPEER_DATA/set/raw/a.gz \(FEDPEER_DATA is not set\) or .*ask its authors"
    ):
        fetch(source(None))


def test_what_was_parsed_is_remembered_until_the_file_changes(cache: Path, tmp_path: Path) -> None:
    path, parsed = tmp_path / "table", []

    def parse(path: Path) -> store.Arrays:
        parsed.append(path.read_text())
        return {"x": np.array([float(path.read_text())]), "names": np.array(["a", "bc"])}

    def x(version: int = 1) -> float:
        arrays = store.parsed_source("aset", path, parse, version=version)
        assert arrays["names"].tolist() == ["a", "bc"]
        return float(arrays["x"][0])

    path.write_text("1")
    assert (x(), x(), parsed) == (1, 1, ["1"])
    path.write_text("2")
    assert (x(), x(), parsed) == (2, 2, ["1", "2"])
    assert (x(version=2), parsed) == (2, ["1", "2", "2"])
    for remembered in (cache / "parsed").iterdir():
        remembered.write_bytes(remembered.read_bytes()[:100])
    assert (x(), x(), len(parsed)) == (2, 2, 4)


def test_a_cache_that_cannot_be_written_is_no_error(cache: Path, tmp_path: Path) -> None:
    cache.write_text("a file in place of the folder")
    (tmp_path / "table").write_text("1")
    assert store.parsed_source("aset", tmp_path / "table", lambda path: {"x": np.ones(1)}, version=1)["x"].tolist() == [
        1
    ]


def test_members_of_an_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("folder/x.txt", "1")
        archive.writestr("folder/y.txt", "2")
    assert list(store.members(tmp_path / "a.zip", lambda name: name.endswith("y.txt"))) == [("folder/y.txt", b"2")]


CLIMBING = ("../../up.txt", "/tmp/up-of-fedpeer.txt", "a/../../up.txt", "..\\up.txt")


@pytest.mark.parametrize("packed", ["a.zip", "a.tar.gz"])
def test_members_that_climb_out_are_read_where_they_are(tmp_path: Path, packed: str) -> None:
    """Nothing is ever unpacked onto the disk, so a member's name is only a name; links are not files."""
    folder = tmp_path / "inner" / "inner"
    folder.mkdir(parents=True)
    path = folder / packed
    if packed.endswith("zip"):
        with zipfile.ZipFile(path, "w") as archive:
            for name in CLIMBING:
                archive.writestr(name, "1")
    else:
        with tarfile.open(path, "w:gz") as tar:
            for name in CLIMBING:
                info = tarfile.TarInfo(name)
                info.size = 1
                tar.addfile(info, io.BytesIO(b"1"))
            for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
                info = tarfile.TarInfo("link.txt")
                info.type, info.linkname = kind, "/etc/passwd"
                tar.addfile(info)
    before = sorted(tmp_path.rglob("*"))
    found = dict(store.members(path, lambda name: name.endswith(".txt")))
    assert set(found.values()) == {b"1"}
    assert len(found) == len(CLIMBING)
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/tmp/up-of-fedpeer.txt").exists()


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar.xz", "a.gz"])
def test_a_damaged_archive_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x1f\x8b\x08 not what the name says")
    with pytest.raises(DataError, match=f"{name} cannot be used"), store.reading(path):
        _ = store.content(path) if name == "a.gz" else list(store.members(path, lambda name: True))
