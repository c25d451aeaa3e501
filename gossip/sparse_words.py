"""Lossless packing of bytes with many zeros: a bitmap of the nonzero 4-byte words, followed by these words.

An update has zeros where nothing was learned, or where it was pruned. Such a word takes one bit instead of 32, so the
packed form is the shorter one as soon as one word in 32 is zero. Unpacking restores every bit. Each content has exactly
one packed form, and everything else is rejected.

    ceil(W / 8) bytes   bit i of byte j: whether word 8 j + i is nonzero; bits after the last word are 0
    4 bytes a word      the nonzero words, in order
    0 to 3 bytes        the bytes after the last whole word, unchanged
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpeer.gossip.tensor_bytes import Bytes

_WORD_BYTES = 4


def pack_words(content: Bytes) -> bytes:
    """Return the packed form, which is longer than the content if hardly any word is zero (see `wire_bytes`)."""
    words_W, rest = _cut(content)
    kept_W = words_W != 0
    return b"".join((np.packbits(kept_W, bitorder="little").tobytes(), words_W[kept_W].tobytes(), rest))


def restore_words(data: Bytes, size: int) -> bytes | None:
    """Return the content of `size` bytes, or None if this is not a packed form of it; needs 1.5 `size` of memory."""
    words, rest = divmod(size, _WORD_BYTES)
    bitmap = -(-words // 8)
    view = memoryview(data)
    if len(view) < bitmap + rest:
        return None
    bits = np.unpackbits(np.frombuffer(view[:bitmap], np.uint8), bitorder="little").astype(np.bool_)
    kept_W = bits[:words]
    count = int(np.count_nonzero(kept_W))
    if len(view) != bitmap + _WORD_BYTES * count + rest or bits[words:].any():
        return None
    values = np.frombuffer(view[bitmap : bitmap + _WORD_BYTES * count], "<u4")
    if not values.all():
        return None
    content_W = np.zeros(words, "<u4")
    content_W[kept_W] = values
    return b"".join((content_W.tobytes(), view[len(view) - rest :]))


def packed_bytes_min(size: int) -> int:
    """Return the bytes of the packed form of `size` zero bytes, the shortest of all packed forms."""
    words, rest = divmod(size, _WORD_BYTES)
    return -(-words // 8) + rest


def wire_bytes(content: Bytes) -> int:
    """Return how many bytes this content takes as the tail of an update: those of the shorter form."""
    words_W, _ = _cut(content)
    return min(len(content), packed_bytes_min(len(content)) + _WORD_BYTES * int(np.count_nonzero(words_W)))


def _cut(content: Bytes) -> tuple[NDArray[np.uint32], bytes]:
    """Return all whole words, (W,), and the bytes after them."""
    view = memoryview(content)
    whole = len(view) // _WORD_BYTES * _WORD_BYTES
    return np.frombuffer(view[:whole], "<u4"), bytes(view[whole:])
