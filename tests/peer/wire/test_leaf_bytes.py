"""States as bytes: they are read back to the last bit, and bytes that are no valid content are recognized."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedpeer.algorithms.leaves import leaves_of
from fedpeer.config.peer_id import PEER_ID
from fedpeer.peer.wire.leaf_bytes import ENTRY_BYTES_MAX, LeafForm, content_bytes, content_of, split_leaves
from fedpeer.peer.wire.tails import content_digest


@dataclass(frozen=True)
class Inner:
    mask_D: Tensor
    empty_D: Tensor


@dataclass(frozen=True)
class State:
    model_n: Tensor
    count: Tensor
    inner: Inner


def state(seed: int = 0) -> State:
    drawn = torch.Generator().manual_seed(seed)
    mask_D = torch.rand(7, generator=drawn) < 0.5
    model_n = torch.randn((3, 4), generator=drawn, dtype=torch.float64)
    return State(model_n, torch.tensor(40), Inner(mask_D, torch.empty((0, 5))))


def test_a_state_is_read_again_to_the_last_bit() -> None:
    form, other = LeafForm(state()), state(1)
    data = form.written(other)
    assert len(data) == form.size == 12 * 8 + 8 + 7
    found = leaves_of(form.read(data))
    assert found.keys() == leaves_of(other).keys()
    for name, leaf in leaves_of(other).items():
        assert torch.equal(found[name], leaf)
        assert (found[name].shape, found[name].dtype) == (leaf.shape, leaf.dtype)


def test_the_bytes_are_little_endian_leaves_in_the_order_of_fields() -> None:
    pair = State(torch.tensor([1.0, 2.0]), torch.tensor(3), Inner(torch.tensor([True]), torch.empty(0)))
    assert LeafForm(pair).written(pair).hex() == "0000803f00000040030000000000000001"


def test_what_is_read_shares_no_memory() -> None:
    form = LeafForm(state())
    data = bytearray(form.written(state()))
    read = form.read(bytes(data))
    read.model_n.zero_()
    assert torch.equal(form.read(bytes(data)).model_n, state().model_n)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_is_found(bad: float) -> None:
    form, wrong = LeafForm(state()), state()
    assert form.finite(form.written(wrong))
    wrong.model_n[2, 3] = bad
    assert not form.finite(form.written(wrong))


IDS = st.from_regex(PEER_ID, fullmatch=True)
COUNTED = st.dictionaries(IDS, st.integers(0, 2**63 - 1), max_size=5)


@pytest.mark.slow
@settings(max_examples=50)
@given(COUNTED, st.binary(max_size=20))
def test_a_content_has_two_parts(counted: dict[str, int], server: bytes) -> None:
    content = content_of(counted, server)
    assert split_leaves(content, len(server)) == (counted, server)
    least, most = content_bytes(len(server))
    assert least <= len(content) <= most
    assert len(content) <= least + len(counted) * ENTRY_BYTES_MAX


@pytest.mark.slow
@settings(max_examples=50)
@given(COUNTED, st.binary(min_size=1, max_size=20), st.data())
def test_any_other_bytes_are_none_or_another_content(
    counted: dict[str, int], server: bytes, data: st.DataObject
) -> None:
    """Each content has one encoding, so contents with the same meaning have the same digest."""
    content = bytearray(content_of(counted, server))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    found = split_leaves(bytes(content), len(server))
    assert found is None or content_of(*found) == bytes(content)
    assert found != (counted, server)
    assert content_digest(bytes(content)) != content_digest(content_of(counted, server))


@given(st.binary(max_size=60), st.integers(0, 20))
def test_strangers_bytes_are_read_or_not(content: bytes, server_bytes: int) -> None:
    found = split_leaves(content, server_bytes)
    assert found is None or content_of(*found) == content


def test_ids_are_in_order_and_once() -> None:
    def entry(client: bytes) -> bytes:
        return bytes([len(client)]) + client + bytes(8)

    assert split_leaves((2).to_bytes(4, "little") + entry(b"a") + entry(b"b"), 0) == ({"a": 0, "b": 0}, b"")
    for first, second in ((b"b", b"a"), (b"a", b"a"), (b"a", b"\xc3"), (b"a", b"")):
        assert split_leaves((2).to_bytes(4, "little") + entry(first) + entry(second), 0) is None
