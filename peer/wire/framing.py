"""Frames on disk: values and tensors as bytes, and back. Snapshots and journal entries are frames.

A frame has a fixed head, msgpack fields, raw little-endian tensors and a digest of all of it. It is read completely or
not at all: a flipped bit, a cut, zeros and trailing bytes each raise a `FrameError` that says so. Nothing in a frame
can become code, and reading allocates no more memory than the data has bytes. The caller knows what the fields mean.

    magic 4 | version u16 | reserved u16 | metadata length u32 | tensors length u64 | metadata | tensors | digest 16

Metadata is [kind, fields, [[name, dtype, shape], ...]]; the tensors follow in that order, one directly after the other.
The digest detects damage but not forgery, for which a key would be needed; so it is a fast one, XXH3 with 128 bits.
Frames of version 1 have BLAKE2b.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from struct import Struct
from typing import Any, BinaryIO

import msgpack
import torch
from torch import Tensor
from xxhash import xxh3_128

from fedpeer.gossip.tensor_bytes import Bytes, raw

MAGIC = b"FDPF"
#: Version of this format. Files of the version before are read, too.
_VERSION = 2
DIGEST_BYTES = 16

_HEAD = Struct("<4sHHIQ")
#: Types of parameters, masses, counters, indices and payloads, and of all wire encodings without packing.
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8)
}


class FrameError(ValueError):
    """Bytes that are not a valid frame; the message says what is wrong with them."""


class FrameNewerError(FrameError):
    """An undamaged frame of a later version of the format."""


def pack(fields: object) -> bytes:
    """Return a value as msgpack: None, bool, int, float, str, bytes; tuples, lists, dicts (with str keys) of them."""
    return bytes(msgpack.packb(fields, use_bin_type=True))


def unpack(data: Bytes, *, str_max: int, bin_max: int, array_max: int, map_max: int) -> Any:
    """Return the value that exactly these bytes encode, with tuples for arrays; no extension types, so no timestamps.

    `str_max` and `bin_max` count bytes, the others elements. An unpacker allocates as many elements as an array
    declares, at each of up to 1024 levels, so the limits have to be small for untrusted bytes.

    Raises:
        FrameError: not msgpack, cut short, with bytes after the value, or beyond a limit.
    """
    try:
        return msgpack.unpackb(
            data, raw=False, use_list=False, strict_map_key=True, max_ext_len=0,
            max_str_len=str_max, max_bin_len=bin_max, max_array_len=array_max, max_map_len=map_max,
        )  # fmt: skip
    except (ValueError, msgpack.UnpackException) as error:  # ValueError: limits, UTF-8, depth, a cut
        raise FrameError(f"not msgpack within the limits: {type(error).__name__}") from error


def unpack_each(data: Bytes, *, str_max: int, bin_max: int, array_max: int, map_max: int) -> Iterator[Any]:
    """Yield the values that these bytes encode one after the other; limits and errors are those of `unpack`."""
    unpacker = msgpack.Unpacker(
        None, raw=False, use_list=False, strict_map_key=True, max_buffer_size=max(len(data), 1), max_ext_len=0,
        max_str_len=str_max, max_bin_len=bin_max, max_array_len=array_max, max_map_len=map_max,
    )  # fmt: skip
    unpacker.feed(data)
    while unpacker.tell() < len(data):
        try:
            value = unpacker.unpack()
        except (ValueError, msgpack.UnpackException) as error:
            raise FrameError(f"not msgpack within the limits: {type(error).__name__}") from error
        yield value


def frame(kind: str, fields: object, tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of one frame.

    Args:
        kind: type of the content, such as "snapshot"; readers name the kind that they expect.
        fields: see `pack`.
        tensors: on the CPU, float32, float64, bfloat16, int64 or uint8, of any shape.
    """
    entries = [(name, str(each.dtype).removeprefix("torch."), tuple(each.shape)) for name, each in tensors.items()]
    assert all(dtype in _DTYPES for _, dtype, _ in entries), f"one of the types {', '.join(_DTYPES)}"
    metadata = pack((kind, fields, entries))
    bodies = [raw(each) for each in tensors.values()]
    head = _HEAD.pack(MAGIC, _VERSION, 0, len(metadata), sum(map(len, bodies)))
    digest = xxh3_128()
    parts: list[Bytes] = [head, metadata, *bodies]
    for part in parts:
        digest.update(part)
    return b"".join((*parts, digest.digest()))


def unframe(kind: str, data: Bytes) -> tuple[Any, dict[str, Tensor]]:
    """Return the fields and the tensors of a frame of this kind.

    Raises as `unframe_any` does, and FrameError for another kind.
    """
    found, fields, tensors = unframe_any(data)
    if found != kind:
        raise FrameError(f"a frame of kind {found[:40]!r} instead of {kind!r}")
    return fields, tensors


def leading_fields(file: BinaryIO) -> tuple[str, Any]:
    """Return the kind and the fields of a frame that was checked before; only its beginning is read.

    Raises:
        FrameError: this is not the beginning of a frame.
    """
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise FrameError("cut short")
    magic, version, _, metadata_bytes, _ = _HEAD.unpack(head)
    if magic != MAGIC or version > _VERSION:
        raise FrameError("another kind of file, or a later version")
    data = file.read(metadata_bytes)
    metadata = unpack(data, str_max=len(data), bin_max=len(data), array_max=len(data), map_max=len(data))
    match metadata:
        case (str(kind), fields, tuple()):
            return kind, fields
    raise FrameError("its metadata is not [kind, fields, tensors]")


def unframe_any(data: Bytes) -> tuple[str, Any, dict[str, Tensor]]:
    """Return the kind, the fields (tuples for lists) and the tensors of a frame; they share no memory with `data`.

    Raises:
        FrameNewerError: the frame is undamaged, but of a later version.
        FrameError: the frame is damaged, or of another format.
    """
    view = memoryview(data).cast("B")
    if len(view) < _HEAD.size + DIGEST_BYTES:
        raise FrameError(f"cut short: {len(view)} bytes, fewer than the shortest frame has")
    magic, version, _, metadata_bytes, tensors_bytes = _HEAD.unpack_from(view)
    body = view[:-DIGEST_BYTES]
    # The digest first: a flipped bit in the version would otherwise pass for a newer release, and get other advice.
    if _digest(version, body) != view[-DIGEST_BYTES:]:
        whole = _HEAD.size + metadata_bytes + tensors_bytes + DIGEST_BYTES
        raise FrameError(_damage(view, magic, whole))
    if magic != MAGIC:
        raise FrameError("another kind of file")
    if version > _VERSION:
        raise FrameNewerError(f"version {version} of the format; this release reads up to {_VERSION}")
    most = metadata_bytes
    metadata = unpack(
        body[_HEAD.size : _HEAD.size + metadata_bytes], str_max=most, bin_max=most, array_max=most, map_max=most
    )
    match metadata:
        case (str(kind), fields, tuple(entries)):
            return kind, fields, _tensors(entries, body[_HEAD.size + metadata_bytes :])
    raise FrameError("its metadata is not [kind, fields, tensors]")


def _digest(version: int, body: memoryview) -> bytes:
    return blake2b(body, digest_size=DIGEST_BYTES).digest() if version == 1 else xxh3_128(body).digest()


def _damage(view: memoryview, magic: bytes, whole: int) -> str:
    if not any(view[: _HEAD.size]):
        return "zero bytes where its head belongs"
    if magic == MAGIC and len(view) < whole:
        return f"cut short: {len(view)} of {whole} bytes"
    if magic == MAGIC and len(view) > whole:
        return f"{len(view) - whole} bytes after its end"
    return "its digest is wrong: it was changed after it was written"


def _tensors(entries: tuple[Any, ...], body: memoryview) -> dict[str, Tensor]:
    tensors = {}
    at = 0
    for entry in entries:
        match entry:
            case (str(name), str(named), tuple(shape)) if named in _DTYPES and all(type(n) is int for n in shape):
                dtype, end = _DTYPES[named], at + math.prod(shape) * _DTYPES[named].itemsize
            case _:
                raise FrameError("an entry of its list of tensors is not [name, dtype, shape]")
        if min(shape, default=0) < 0 or end > len(body):
            raise FrameError(f"tensor {name[:40]!r} is longer than its bytes")
        # torch cannot view empty buffers; a copy is aligned and outlives the file's bytes.
        flat = torch.frombuffer(bytearray(body[at:end]), dtype=dtype) if end > at else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(shape)
        at = end
    if at != len(body):
        raise FrameError("bytes after its last tensor")
    return tensors
