"""Byte format of a peer's snapshot and journal files: blocks with a digest that shows whether they are intact.

    snapshot   head, block: the bytes of one state
    journal    head, block, block, ...: each block a batch of entries (their number, their lengths, their bytes)

A head is magic, version, the file's number and their checksum; a block is its length and digest, then its bytes. A
digest covers the file's number and the block's offset, so a block that was moved does not pass. It is XXH3 with 128
bits, in files of version 1 BLAKE2b. Numbers are little-endian. This module knows neither what the bytes mean nor which
files there are.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from xxhash import xxh3_128

#: Version of the files written here; files of a later version are left untouched.
VERSION = 2
SNAPSHOT, JOURNAL = b"FDPS", b"FDPJ"
#: Magic, version, number of the file; then their CRC-32, so that a flipped bit does not pass for a later version.
_NAME, _CHECK = struct.Struct("<4sHQ"), struct.Struct("<I")
HEAD_BYTES = _NAME.size + _CHECK.size
#: Length of the bytes that follow, and their digest.
_BLOCK = struct.Struct("<Q16s")
#: Number of a batch's entries, before their lengths.
_COUNT = struct.Struct("<I")
#: Bytes read at once for a digest: a journal may be much larger than a peer's memory should hold.
_READ_BYTES = 1 << 20


class DamagedError(Exception):
    """A file is not as it was written; with `later`, a later version of fedpeer wrote it."""

    def __init__(self, text: str, *, later: bool = False) -> None:
        super().__init__(text)
        self.later = later


@dataclass(frozen=True)
class Batch:
    """Position of one batch's entries in a journal."""

    path: Path
    offset: int
    lengths: tuple[int, ...]

    def entries(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for length in self.lengths:
                yield file.read(length)


@dataclass(frozen=True)
class Scan:
    """Result of checking a journal.

    version       of the file; what is appended has to be of the same
    batches       intact batches
    sound_bytes   bytes up to the end of the last of them
    torn          whether the rest looks like a write that was cut short, not like later damage
    """

    version: int
    batches: tuple[Batch, ...]
    sound_bytes: int
    torn: bool


def head(magic: bytes, number: int) -> bytes:
    """Return the first bytes of a file."""
    name = _NAME.pack(magic, VERSION, number)
    return name + _CHECK.pack(zlib.crc32(name))


def block(number: int, offset: int, parts: Sequence[bytes], version: int = VERSION) -> tuple[bytes, ...]:
    """Return the parts as one block at this offset of file `number`, which has this version."""
    return _BLOCK.pack(sum(map(len, parts)), _digest(version, number, offset, parts)), *parts


def batch(number: int, offset: int, entries: Sequence[bytes], version: int = VERSION) -> tuple[bytes, ...]:
    """Return the entries as one block at this offset of file `number`, which has this version."""
    table = _COUNT.pack(len(entries)) + struct.pack(f"<{len(entries)}Q", *map(len, entries))
    return block(number, offset, (table, *entries), version)


def write(descriptor: int, parts: Sequence[bytes]) -> int:
    """Write all parts and flush them to the disk; return the number of bytes.

    On a full disk a single write may take a part only.
    """
    total = 0
    for part in parts:
        left = memoryview(part)
        while left:
            taken = os.write(descriptor, left)
            if not taken:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left, total = left[taken:], total + taken
    os.fsync(descriptor)
    return total


def read_snapshot(path: Path, number: int) -> bytes:
    """Return the state in a snapshot.

    Raises:
        DamagedError: the file is not as it was written.
    """
    with path.open("rb") as file:
        version = _version_in(file.read(HEAD_BYTES), SNAPSHOT, number)
        length, digest = _block_head(file)
        data = file.read()
    if len(data) != length:
        raise DamagedError(f"has {len(data)} of {length} bytes")
    if _digest(version, number, HEAD_BYTES, (data,)) != digest:
        raise DamagedError("has a wrong digest")
    return data


def check_snapshot(file: BinaryIO, number: int) -> None:
    """Check a snapshot and seek to the beginning of its state; none of it is kept in memory.

    Raises:
        DamagedError: the file is not as it was written.
    """
    version = _version_in(file.read(HEAD_BYTES), SNAPSHOT, number)
    length, digest = _block_head(file)
    begins = file.tell()
    if _digest(version, number, HEAD_BYTES, _pieces(file, length)) != digest or file.read(1):
        raise DamagedError("has a wrong digest")
    file.seek(begins)


def scan(path: Path, number: int) -> Scan:
    """Check a journal from its beginning up to the first damaged block.

    Raises:
        DamagedError: its head is not as it was written.
    """
    size, good = path.stat().st_size, HEAD_BYTES
    batches: list[Batch] = []
    with path.open("rb") as file:
        version = _version_in(file.read(HEAD_BYTES), JOURNAL, number)
        while good < size:
            try:
                length, digest = _block_head(file)
            except DamagedError:
                return Scan(version, tuple(batches), good, torn=True)
            first = good + _BLOCK.size
            end = first + length
            # Space that the file system allocated before the bytes arrived reads as zeros.
            empty = not (length or any(digest))
            if empty or end > size or _digest(version, number, good, _pieces(file, length)) != digest:
                torn = (empty or end >= size) and not _followed(path, version, number, good)
                return Scan(version, tuple(batches), good, torn=torn)
            file.seek(first)
            (count,) = _COUNT.unpack(file.read(_COUNT.size))
            lengths = struct.unpack(f"<{count}Q", file.read(8 * count))
            batches.append(Batch(path, file.tell(), lengths))
            good = end
            file.seek(good)
    return Scan(version, tuple(batches), good, torn=False)


def _followed(path: Path, version: int, number: int, offset: int) -> bool:
    """Return whether an intact batch begins beyond this offset; then what is damaged there was durable before it.

    The length of a damaged block may be wrong, so the next one may begin at any byte. Its digest is computed only where
    its lengths agree with one another, which they hardly do by chance.
    """
    data = np.memmap(path, np.uint8, "r")
    content = data.data
    for begins in range(offset + 1, offset + 9):
        words = data[begins : len(data) - (len(data) - begins) % 8].view("<u8")
        places = np.flatnonzero((words > _COUNT.size) & (words < len(data)))
        places = places[places + 3 < len(words)]
        counts = words[places + 3] % 2**32  # after a length and a digest
        fits = _COUNT.size + 8 * counts <= words[places]
        for at in (begins + 8 * int(place) for place in places[fits]):
            (length, digest), first = _BLOCK.unpack_from(content, at), at + _BLOCK.size
            if first + length > len(data):
                continue
            (count,) = _COUNT.unpack_from(content, first)
            entries = struct.unpack_from(f"<{count}Q", content, first + _COUNT.size)
            if length == _COUNT.size + 8 * count + sum(entries):
                found = _digest(version, number, at, (bytes(content[first : first + length]),))
                if found == digest:
                    return True
    return False


def _version_in(data: bytes, magic: bytes, number: int) -> int:
    """Return the version of the file that begins so, once its head is checked."""
    if len(data) < HEAD_BYTES:
        raise DamagedError(f"ends after {len(data)} bytes")
    found, version, named = _NAME.unpack_from(data)
    if found != magic or _CHECK.unpack_from(data, _NAME.size)[0] != zlib.crc32(data[: _NAME.size]):
        raise DamagedError("has a damaged head")
    if version > VERSION:
        raise DamagedError(f"is of version {version}", later=True)
    if named != number:
        raise DamagedError(f"is file number {named} under another name")
    return int(version)


def _block_head(file: BinaryIO) -> tuple[int, bytes]:
    data = file.read(_BLOCK.size)
    if len(data) < _BLOCK.size:
        raise DamagedError("ends early")
    length, digest = _BLOCK.unpack(data)
    return length, digest


def _pieces(file: BinaryIO, length: int) -> Iterator[bytes]:
    while length:
        piece = file.read(min(length, _READ_BYTES))
        if not piece:
            return
        length -= len(piece)
        yield piece


def _digest(version: int, number: int, offset: int, parts: Iterable[bytes]) -> bytes:
    place = struct.pack("<QQ", number, offset)
    digest = hashlib.blake2b(place, digest_size=16) if version == 1 else xxh3_128(place)
    for part in parts:
        digest.update(part)
    return digest.digest()
