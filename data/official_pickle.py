"""The only place where pickled bytes are read: the CIFAR batches and seglearn's watch recordings, as published.

Unpickling can run code, so there are two checks. First, the SHA-256 of the whole file must be in an explicit list;
nothing is parsed before that. Second, the unpickler admits only the five global names with which numpy writes an array,
and replaces each by a class of this module that accepts plain numbers, text and lists only: numpy's own code never sees
a pickled state (a hand-made dtype state can make numpy take bytes for object pointers). The result has only dicts,
lists, tuples, text, numbers and arrays.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import tarfile
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpeer.data.dataset import DataError

#: Names of dtypes that are accepted: numbers with their size in bytes, and objects. numpy would accept "i4,O", too.
_KIND = re.compile(r"[biuf]\d{1,2}|O\d?")


def read_npy(content: bytes, *, sha256: Collection[str], what: str) -> Any:
    """Read the one object in an .npy file of dtype object and shape (), as `numpy.save` writes a dict."""
    _known(content, sha256, what)
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, _, dtype = header(stream)
    except (ValueError, KeyError) as problem:
        raise _refused(what, f"it has no .npy header ({problem})") from problem
    if shape != () or dtype != np.dtype(object):
        raise _refused(what, f"it holds {dtype} of shape {shape}, not one object")
    held = _unpickled(stream.read(), what)
    return held.item() if isinstance(held, np.ndarray) else held


def read_tar(content: bytes, *, sha256: Collection[str], what: str, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Unpickle the wanted members of a tar archive (any compression), if it is known by its digest.

    Args:
        content: the whole file.
        sha256: hex digests of the files that may be read.
        what: the name of the file, for the error.
        wanted: whether a member of this name is read.

    Returns:
        The members by name.

    Raises:
        DataError: another digest, or content that is rejected.
    """
    _known(content, sha256, what)
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:*") as archive:
        return {
            member.name: _unpickled(stream.read(), f"{what}: {member.name}")
            for member in archive
            if member.isfile() and wanted(member.name) and (stream := archive.extractfile(member))
        }


def _known(content: bytes, sha256: Collection[str], what: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found not in sha256:
        raise _refused(what, f"its SHA-256 {found} is not a known one, so nothing of it was read")


def _refused(what: str, problem: str) -> DataError:
    return DataError(f"{what}: {problem}; delete it and fetch the official file")


def _unpickled(content: bytes, what: str) -> Any:
    try:
        return _plain(_Unpickler(io.BytesIO(content), encoding="latin1").load())
    except Exception as problem:  # a hostile pickle can raise anything at all
        raise _refused(what, f"its pickle was rejected ({type(problem).__name__}: {problem})") from problem


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ADMITTED[module, name]


class _StandIn:
    """Base class with a `__setstate__`, so that the pickle opcode BUILD cannot set attributes of the classes below."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError(f"{type(self).__name__} has no state")


class _Latin1(_StandIn):
    """Stand-in for `_codecs.encode`, with which Python 3 writes bytes in protocol 2."""

    def __new__(cls, text: str, encoding: str) -> bytes:  # type: ignore[misc]
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"text in {encoding!r}")
        return text.encode("latin1")


class _NdArray(_StandIn):
    """Stand-in for `numpy.ndarray`, which a pickle names but never calls."""

    def __new__(cls, *_: object) -> _NdArray:
        raise pickle.UnpicklingError("an array without its state")


class _Dtype(_StandIn):
    """Stand-in for `numpy.dtype` of plain numbers and of objects."""

    __slots__ = ("kind",)

    def __init__(self, kind: str | bytes, align: object = 0, copy: object = 1) -> None:
        self.kind = kind.decode("ascii") if isinstance(kind, bytes) else str(kind)
        if not _KIND.fullmatch(self.kind):
            raise pickle.UnpicklingError(f"dtype {self.kind!r}")

    def __setstate__(self, state: object) -> None:
        assert isinstance(state, tuple)
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"byte order {order!r}")
        self.kind = order + self.kind


class _Array(_StandIn):
    """Stand-in for `numpy.core.multiarray._reconstruct`: an empty array that `__setstate__` fills."""

    __slots__ = ("value",)
    value: NDArray[Any]

    def __init__(self, kind: object, shape: object, typecode: object) -> None:
        """Ignore the arguments, which describe an empty array: the state repeats them."""

    def __setstate__(self, state: object) -> None:
        assert isinstance(state, tuple)
        _, shape, dtype, fortran, content = state
        assert isinstance(dtype, _Dtype)
        if "O" in dtype.kind:
            self.value = np.fromiter(content, object, len(content)).reshape(shape)
            return
        raw = content.encode("latin1") if isinstance(content, str) else content
        flat = np.frombuffer(raw, np.dtype(dtype.kind))
        self.value = flat.reshape(shape, order="F" if fortran else "C").copy()


_ADMITTED: dict[tuple[str, str], type[_StandIn]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,  # numpy 1
    ("numpy._core.multiarray", "_reconstruct"): _Array,  # numpy 2
    ("numpy", "ndarray"): _NdArray,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Latin1,
}


def _plain(found: object) -> Any:
    """Return `found` with arrays in place of their stand-ins; reject anything that is not plain."""
    if isinstance(found, _Array):
        if found.value.dtype == object:
            objects = map(_plain, found.value.ravel())
            return np.fromiter(objects, object, found.value.size).reshape(found.value.shape)
        return found.value
    if isinstance(found, dict):
        return {_plain(key): _plain(value) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        return type(found)(_plain(each) for each in found)
    if found is None or isinstance(found, (str, bytes, bool, int, float)):
        return found
    raise pickle.UnpicklingError(f"a {type(found).__name__}")
