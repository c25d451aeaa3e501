"""Frames for the disk: they are read back to the last bit, and damage is always noticed."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_128

from fedpeer.gossip.tensor_bytes import raw
from fedpeer.peer.wire.framing import (
    DIGEST_BYTES,
    FrameError,
    FrameNewerError,
    frame,
    pack,
    unframe,
    unframe_any,
    unpack,
    unpack_each,
)

TENSORS = {
    "x_n": torch.tensor([1.5, -0.0, 1e-40]),
    "held_D": torch.tensor([[1.0, 2.0], [torch.pi, -1e-300]], dtype=torch.float64),
    "half_D": torch.tensor([0.5, -2.0]).bfloat16(),
    "index_D": torch.tensor([0, 2**62]),
    "payload": torch.arange(5, dtype=torch.uint8),
    "scalar": torch.tensor(3.0),
    "nothing": torch.empty(0, 4),
}
FIELDS = ("ann", 3, -1, 2**63, 0.1, None, True, b"\0\1", (), ("a", (1, 2)), {"everyone": (1, 2.5), "": None})
WHOLE = frame("snapshot", FIELDS, TENSORS)
#: A frame in version 1 of the format, in hexadecimal. It never changes: later releases read today's files.
GOLDEN = (
    "46445046020000001c0000000c0000000000000093a5656e74727993a3616c6c01c39193a178a7666c6f6174333291030000"
    "803f00000040000040402e9e73c0154a83ade94b1775488cc9de"
)
#: The same in version 1 of the format.
GOLDEN_1 = (
    "46445046010000001c0000000c0000000000000093a5656e74727993a3616c6c01c39193a178a7666c6f6174333291030000"
    "803f000000400000404039346aa9ba299b8f61e0bf05eea902d4"
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are equal to the last bit, which == does not compare for -0.0."""
    return one.dtype == other.dtype and one.shape == other.shape and bytes(raw(one)) == bytes(raw(other))


def test_what_goes_in_comes_out() -> None:
    fields, tensors = unframe("snapshot", WHOLE)
    assert fields == FIELDS
    assert list(tensors) == list(TENSORS)
    assert all(same(tensors[name], TENSORS[name]) for name in TENSORS)
    assert frame("snapshot", fields, tensors) == WHOLE
    assert unframe_any(WHOLE)[:2] == ("snapshot", FIELDS)


@pytest.mark.slow
@given(PLAIN)
@settings(max_examples=100, deadline=None)
def test_any_plain_fields_come_back_as_they_were(fields: Any) -> None:
    assert unframe("entry", frame("entry", fields, {}))[0] == fields


@given(
    st.lists(st.integers(0, 4), max_size=4),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64]),
)
@settings(deadline=None)
def test_tensors_of_any_shape_come_back_as_they_were(shape: list[int], dtype: torch.dtype) -> None:
    tensor = torch.arange(torch.Size(shape).numel()).to(dtype).reshape(shape)
    assert same(
        unframe("entry", frame("entry", None, {"x": tensor.T if len(shape) == 2 else tensor}))[1]["x"],
        tensor.T if len(shape) == 2 else tensor,
    )


def test_the_tensors_do_not_share_memory_with_the_file() -> None:
    data = bytearray(WHOLE)
    _, tensors = unframe("snapshot", data)
    data[:] = bytes(len(data))
    assert same(tensors["x_n"], TENSORS["x_n"])
    tensors["x_n"][0] = 7


def test_every_flipped_bit_is_noticed() -> None:
    for bit in range(8 * len(WHOLE)):
        damaged = bytearray(WHOLE)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError) as found:
            unframe("snapshot", damaged)
        assert not isinstance(found.value, FrameNewerError), "damage is not a newer release"


def test_every_cut_is_noticed_and_called_so() -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(FrameError, match="cut short"):
            unframe("snapshot", WHOLE[:length])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bytes(len(WHOLE)), "zero bytes"),
        (WHOLE[:-1] + b"\0\0", "after its end"),
        (WHOLE + b"\0", "after its end"),
        (WHOLE + WHOLE, "after its end"),
        (b"x" * 100, "digest"),
        (WHOLE[:100] + bytes(len(WHOLE) - 100), "digest"),
        (b"", "cut short"),
    ],
)
def test_damage_is_named(data: bytes, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        unframe("snapshot", data)


def sealed(body: bytes) -> bytes:
    return body + xxh3_128(body).digest()


def test_what_is_whole_but_not_ours_is_named() -> None:
    with pytest.raises(FrameError, match=r"kind 'snapshot' instead of 'entry'"):
        unframe("entry", WHOLE)
    with pytest.raises(FrameError, match="another kind of file"):
        unframe("snapshot", sealed(b"x" * 50))
    newer = sealed(WHOLE[:4] + b"\3\0" + WHOLE[6:-DIGEST_BYTES])
    with pytest.raises(FrameNewerError, match="version 3"):
        unframe("snapshot", newer)


@pytest.mark.parametrize(
    "metadata",
    [
        7,
        ("entry",),
        ("entry", None, (("x", "float32", (2,)),)),
        ("entry", None, (("x", "float32", (-1,)),)),
        ("entry", None, (("x", "float32", (2**40, 2**40)),)),
        ("entry", None, (("x", "float16", (1,)),)),
        ("entry", None, (("x", "float32", 1),)),
        ("entry", None, (("x", "float32", (True,)),)),
        ("entry", None, (("x",),)),
        ("entry", None, ()),
        (b"entry", None, (("x", "float32", (1,)),)),
    ],
)
def test_metadata_that_does_not_fit_its_tensors_is_refused(metadata: Any) -> None:
    """The digest is right: the frame was made by mistake, or on purpose."""
    packed = pack(metadata)
    head = WHOLE[:8] + len(packed).to_bytes(4, "little") + (4).to_bytes(8, "little")
    with pytest.raises(FrameError):
        unframe("entry", sealed(head + packed + b"\0\0\x80\x3f"))


@given(st.binary(max_size=200))
def test_any_bytes_are_no_frame(data: bytes) -> None:
    with pytest.raises(FrameError):
        unframe("snapshot", data)


def test_declared_lengths_allocate_nothing() -> None:
    tracemalloc.start()
    for at in range(8, 20):
        damaged = bytearray(WHOLE)
        damaged[at] = 0xFF
        with pytest.raises(FrameError):
            unframe("snapshot", damaged)
    with pytest.raises(FrameError):
        unpack(b"\xdd\xff\xff\xff\xff", str_max=9, bin_max=9, array_max=9, map_max=9)
    assert tracemalloc.get_traced_memory()[1] < 1 << 18
    tracemalloc.stop()


def test_fields_of_other_types_are_our_own_mistake() -> None:
    with pytest.raises(TypeError):
        pack({1, 2})
    with pytest.raises(AssertionError, match="bfloat16"):
        frame("entry", None, {"x": torch.ones(1, dtype=torch.complex64)})


def test_values_one_behind_the_other_are_read_to_the_end_or_not_at_all() -> None:
    limits = {"str_max": 3, "bin_max": 2, "array_max": 2, "map_max": 0}
    values = [("a", b"12"), (1, None), "abc"]
    data = b"".join(map(pack, values))
    assert list(unpack_each(data, **limits)) == values
    assert list(unpack_each(b"", **limits)) == []
    for wrong in (data[:-1], data + b"\xc1", data + b"\xa4abcd", data + pack((1, 2, 3)), data + b"\x80\xdf\xff"):
        with pytest.raises(FrameError):
            list(unpack_each(wrong, **limits))


def test_the_format_never_changes() -> None:
    written = frame("entry", ("all", 1, True), {"x": torch.tensor([1.0, 2.0, 3.0])})
    assert written.hex() == GOLDEN


@pytest.mark.parametrize("golden", [GOLDEN, GOLDEN_1])
def test_both_versions_are_read_and_checked(golden: str) -> None:
    data = bytes.fromhex(golden)
    fields, tensors = unframe("entry", data)
    assert (fields, tensors["x"].tolist()) == (("all", 1, True), [1.0, 2.0, 3.0])
    for at in range(len(data)):
        with pytest.raises(FrameError):
            unframe("entry", data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
