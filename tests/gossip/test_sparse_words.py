"""Contents with many zeros: the shorter form, compared with one made word by word, and bytes that are no such form."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.gossip.sparse_words import pack_words, packed_bytes_min, restore_words, wire_bytes


def packed_slowly(content: bytes) -> bytes:
    """Pack the content word by word, as the description of the form says."""
    whole = len(content) // 4 * 4
    words = [content[at : at + 4] for at in range(0, whole, 4)]
    bitmap = bytearray((len(words) + 7) // 8)
    for number, word in enumerate(words):
        bitmap[number // 8] |= (word != bytes(4)) << number % 8
    return bytes(bitmap) + b"".join(word for word in words if word != bytes(4)) + content[whole:]


#: Words, many of them zero, followed in CONTENTS by up to three bytes.
WORDS = st.sampled_from([bytes(4), bytes(4), b"\0\0\0\x80", b"\1\0\0\0"]) | st.binary(min_size=4, max_size=4)
CONTENTS = st.builds(lambda words, rest: b"".join(words) + rest, st.lists(WORDS), st.binary(max_size=3))


@given(CONTENTS | st.binary(max_size=60))
@settings(deadline=None)
def test_what_is_packed_comes_back_and_is_what_packing_by_hand_gives(content: bytes) -> None:
    form = pack_words(content)
    assert form == packed_slowly(content)
    assert restore_words(form, len(content)) == content
    assert wire_bytes(content) == min(len(content), len(form))
    assert len(form) >= packed_bytes_min(len(content))


@pytest.mark.slow
@given(st.binary(max_size=40), st.integers(0, 80))
@settings(max_examples=150, deadline=None)
def test_bytes_are_the_form_of_one_content_or_of_none(data: bytes, size: int) -> None:
    content = restore_words(data, size)
    assert content is None or (len(content) == size and pack_words(content) == data)


@pytest.mark.parametrize(
    ("data", "size"),
    [
        pytest.param(b"", 4, id="nothing"),
        pytest.param(b"\x01\0\0\0\0", 4, id="a-zero-among-the-words"),
        pytest.param(b"\x02", 4, id="a-bit-behind-the-last-word"),
        pytest.param(b"\x01\1\1\1", 4, id="half-a-word"),
        pytest.param(b"\x01\1\1\1\1\2", 4, id="a-byte-more"),
        pytest.param(b"\x00\1\1\1\1", 4, id="a-word-without-its-bit"),
        pytest.param(b"\x01\1\1\1\1", 5, id="without-the-rest"),
    ],
)
def test_what_is_malformed_is_none(data: bytes, size: int) -> None:
    assert restore_words(data, size) is None


def test_negative_zeros_and_nan_are_kept_to_the_bit() -> None:
    content = struct.pack("<4f", -0.0, 0.0, 1e-45, 1.0) + b"\x01\x00\xc0\x7f"
    assert restore_words(pack_words(content), len(content)) == content
    assert len(pack_words(content)) == 1 + 4 * 4


def test_an_update_with_nine_tenths_pruned_travels_in_an_eighth() -> None:
    values = np.zeros(100_000, "<f4")
    values[::10] = 1.5
    assert wire_bytes(values.tobytes()) == 100_000 // 8 + 4 * 10_000
    dense = np.ones(100_000, "<f4").tobytes()
    assert wire_bytes(dense) == len(dense), "as it is, where the form would be longer"


def test_the_largest_of_contents_takes_its_own_memory_and_little_more() -> None:
    """This holds for any bytes, because the size was bounded before."""
    size = 1 << 22
    data = pack_words(bytes(size))
    tracemalloc.start()
    assert restore_words(data, size) == bytes(size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * size
