"""Bytes of which many are zero, for less: a bitmap of the 4-byte words that are not, and these words.

An update has zeros where nothing was learned, or where it was pruned. They travel as one bit a word instead of 32, so
this form is the shorter one as soon as one word in 32 is zero. Nothing is rounded: what comes out is what went in, to
the bit. Each content has exactly one such form, and everything else is refused.

    ceil(W / 8) bytes   bit i of byte j: whether word 8 j + i is not zero; bits behind the last word are 0
    4 bytes a word      the words that are not zero, in their order
    0 to 3 bytes        what is left behind the last whole word, as it is
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpeer.gossip.tensor_bytes import Bytes

_WORD_BYTES = 4


def pack_words(content: Bytes) -> bytes:
    """The form above; longer than the content where hardly any word is zero (`wire_bytes` tells)."""
    words_W, rest = _cut(content)
    kept_W = words_W != 0
    return b"".join((np.packbits(kept_W, bitorder="little").tobytes(), words_W[kept_W].tobytes(), rest))


def restore_words(data: Bytes, size: int) -> bytes | None:
    """The content of `size` bytes, or None if this is not its packed form. Takes about 1.5 `size` of memory."""
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
    """Bytes of the packed form of `size` zeros: none is shorter."""
    words, rest = divmod(size, _WORD_BYTES)
    return -(-words // 8) + rest


def wire_bytes(content: Bytes) -> int:
    """How many bytes this content takes as the tail of an update: those of the shorter form."""
    words_W, _ = _cut(content)
    return min(len(content), packed_bytes_min(len(content)) + _WORD_BYTES * int(np.count_nonzero(words_W)))


def _cut(content: Bytes) -> tuple[NDArray[np.uint32], bytes]:
    """All whole words, and the bytes behind them."""
    view = memoryview(content)
    whole = len(view) // _WORD_BYTES * _WORD_BYTES
    return np.frombuffer(view[:whole], "<u4"), bytes(view[whole:])
