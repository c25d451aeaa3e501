"""Only the listed files are unpickled, and only numbers, text and containers come out of them."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.data import official_pickle
from fedpeer.data.dataset import DataError

KINDS = [np.uint8, np.int64, np.float32, np.float64, np.bool_, np.dtype(">i4"), np.dtype(">f8")]


class Calls:
    """An object that pickles as a call of `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


def read(content: bytes) -> Any:
    """Read one pickle, as a member of an archive."""
    stream, info = io.BytesIO(), tarfile.TarInfo("batch")
    info.size = len(content)
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(info, io.BytesIO(content))
    whole = stream.getvalue()
    found = official_pickle.read_tar(whole, sha256={digest(whole)}, what="archive", wanted=lambda name: True)
    return found["batch"]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_numbers_come_back_as_they_were(protocol: int, kind: Any) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(kind)
    for each in (x, np.asfortranarray(x), x[:, ::2], x[0, 0, 1:2].reshape(())):
        found = read(pickle.dumps({"data": each, "labels": [1, 2], "name": ("a", b"b", None, 1.5)}, protocol))
        np.testing.assert_array_equal(found["data"], each)
        assert found["data"].dtype == each.dtype
        assert found["data"].flags.writeable
        assert (found["labels"], found["name"]) == ([1, 2], ("a", b"b", None, 1.5))


def test_arrays_of_objects_hold_plain_objects_only() -> None:
    held = np.empty((2, 2), object)
    held[:] = [[np.arange(3), "text"], [{"a": np.ones(1)}, None]]
    held[0, 1] = ["a list", "of two"]
    found = read(pickle.dumps(held, 2))
    assert found.shape == (2, 2)
    np.testing.assert_array_equal(found[0, 0], np.arange(3))
    np.testing.assert_array_equal(found[1, 0]["a"], np.ones(1))
    assert (found[0, 1], found[1, 1]) == (["a list", "of two"], None)


def test_python_2_text_is_read_as_latin1() -> None:
    # Output of Python 2's cPickle.dumps(..., 2) for {"data": numpy.array([200, 7], "uint8"), "label": "é"}.
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b"
        b"\x87Rq\x05(K\x01K\x02\x85cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x02\xc8\x07tbU\x05labelq\x08U\x01\xe9u."
    )
    found = read(content)
    assert (found["data"].tolist(), found["label"]) == ([200, 7], "é")


def hostile(victim: Path) -> dict[str, Any]:
    """Return objects whose pickles run code, or make numpy take bytes for pointers."""
    reconstruct: Any = np.zeros(1).__reduce__()[0]
    no_list = Calls(np.dtype, "O8", False, True, state=(3, "|", None, None, None, -1, -1, 0))
    return {
        "os.system": Calls(os.system, f"touch {victim}"),
        "eval": Calls(eval, f"open({str(victim)!r}, 'w')"),
        "getattr of a module": Calls(getattr, Calls(__import__, "os"), "system"),
        "numpy function": Calls(np.fromfile, str(victim)),
        "numpy load": Calls(np.load, str(victim)),
        "another codec": Calls(__import__("_codecs").encode, "uryyb", "rot13"),
        "class with state": Calls(Calls, print, state={"x": 1}),
        "object in an array": np.array([Calls(os.system, f"touch {victim}")], object),
        "objects as bytes": Calls(reconstruct, np.ndarray, (0,), b"b", state=(1, (1,), no_list, False, b"\x01" * 8)),
        "too short": Calls(reconstruct, np.ndarray, (0,), b"b", state=(1, (9,), np.dtype("f8"), False, b"\x01" * 8)),
        "two dtypes in one": Calls(
            reconstruct, np.ndarray, (0,), b"b", state=(1, (1,), Calls(np.dtype, "u1,u1"), False, b"\1\2")
        ),
        "byte order of more": Calls(
            reconstruct,
            np.ndarray,
            (0,),
            b"b",
            state=(1, (1,), Calls(np.dtype, "u1", state=(3, "u1,")), False, b"\1\2"),
        ),
        "dtype of fields": np.zeros(2, [("a", "i4"), ("b", "O")]),
        "array class": Calls(reconstruct, np.matrix, (0,), b"b", state=(1, (1,), np.dtype("u1"), False, b"\x01")),
        "set": {1, 2},
        "bytearray": bytearray(b"1"),
        "complex": np.ones(1, complex),
        "date": np.ones(1, "M8[s]"),
    }


@pytest.mark.parametrize("way", hostile(Path("x")))
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_asks_for_more_is_refused(way: str, protocol: int, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    with pytest.raises(DataError, match="batch: its pickle was rejected"):
        read(pickle.dumps(hostile(victim)[way], protocol))
    assert not victim.exists()


def test_state_for_the_stand_ins_themselves_is_refused() -> None:
    """The opcode BUILD on a global must not change our classes."""
    for name in (
        b"cnumpy\nndarray\n",
        b"cnumpy\ndtype\n",
        b"cnumpy.core.multiarray\n_reconstruct\n",
        b"c_codecs\nencode\n",
    ):
        with pytest.raises(DataError, match="rejected"):
            read(b"\x80\x02" + name + b"}U\x01xK\x01sb.")


def test_another_file_is_not_even_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official_pickle, "_Unpickler", None)
    monkeypatch.setattr(official_pickle.tarfile, "open", None)  # type: ignore[attr-defined]
    content = pickle.dumps([1], 2)
    with pytest.raises(DataError, match=f"SHA-256 {digest(content)} is not a known one"):
        official_pickle.read_npy(content, sha256={digest(b"another")}, what="batch")
    with pytest.raises(DataError, match="nothing of it was read"):
        official_pickle.read_tar(content, sha256=frozenset(), what="batch", wanted=lambda name: True)


def test_an_npy_file_holds_one_object() -> None:
    def npy(held: Any) -> bytes:
        stream = io.BytesIO()
        np.save(stream, np.array(held, object), allow_pickle=True)
        return stream.getvalue()

    def read_npy(content: bytes) -> Any:
        return official_pickle.read_npy(content, sha256={digest(content)}, what="watch")

    np.testing.assert_array_equal(read_npy(npy({"X": [np.eye(2)]}))["X"][0], np.eye(2))
    with pytest.raises(DataError, match="pickle was rejected"):
        read_npy(npy({"X": Calls(os.getcwd)}))
    with pytest.raises(DataError, match=r"object of shape \(2,\), not one object"):
        read_npy(npy([1, 2]))
    with pytest.raises(DataError, match=r"no \.npy header"):
        read_npy(b"nothing of the kind")


def test_a_tar_gives_its_wanted_members(tmp_path: Path) -> None:
    path = tmp_path / "batches.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (("b/one", pickle.dumps(1, 2)), ("b/readme", b"text")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    content = path.read_bytes()
    found = official_pickle.read_tar(content, sha256={digest(content)}, what="b", wanted=lambda name: name == "b/one")
    assert found == {"b/one": 1}


def is_plain(found: Any) -> bool:
    if isinstance(found, dict):
        return all(map(is_plain, found)) and all(map(is_plain, found.values()))
    if isinstance(found, (list, tuple)):
        return all(map(is_plain, found))
    return found is None or isinstance(found, (str, bytes, bool, int, float, np.ndarray))


BATCH = pickle.dumps({"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [3, 4], "names": ["a", "b"]}, 2)


@given(st.lists(st.tuples(st.integers(0, len(BATCH) - 1), st.integers(0, 255)), max_size=6), st.integers(0, len(BATCH)))
def test_a_changed_batch_is_read_as_plain_values_or_refused(changes: list[tuple[int, int]], length: int) -> None:
    content = bytearray(BATCH)
    for place, value in changes:
        content[place] = value
    try:
        found = read(bytes(content[:length]))
    except DataError:
        return
    assert is_plain(found)
