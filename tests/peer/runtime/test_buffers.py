"""Receive buffers: exactly of the requested length, with one holder at a time, bounded, and reused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.peer.runtime.buffers import BufferPool, Lease

MOST = 3


def address(lease: Lease) -> int:
    return int(np.frombuffer(lease.view, dtype=np.uint8).ctypes.data)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y"]), st.integers(1, 64), st.booleans())))
def test_nobody_writes_into_what_another_holds(steps: list[tuple[str, str, int, bool]]) -> None:
    """Each holder fills its buffer with a mark of its own, and finds it there until it gives the buffer back."""
    pool, held = BufferPool(), list[tuple[str, str, Lease, int]]()
    for mark, (peer, channel, length, give_back) in enumerate(steps):
        lent = Counter((peer, channel) for peer, channel, _, _ in held)
        lease = pool.lease(peer, channel, length, most=MOST, kept=True)
        assert (lease is None) == (lent[peer, channel] == MOST)
        if lease is not None:
            assert len(lease.view) == length
            lease.view[:] = bytes([mark % 256]) * length
            held.append((peer, channel, lease, mark))
        if give_back and held:
            held.pop(mark % len(held))[2].release()
        assert all(bytes(each.view) == bytes([own % 256]) * len(each.view) for _, _, each, own in held)


def test_the_same_memory_serves_one_message_after_another() -> None:
    pool = BufferPool()
    seen = set()
    for _ in range(5):
        lease = pool.lease("a", "x", 1_000_000, most=MOST, kept=True)
        assert lease is not None
        seen.add(address(lease))
        lease.release()
    assert len(seen) == 1
    assert pool.kept_bytes == 1_000_000


def test_a_buffer_serves_what_is_shorter_and_makes_way_for_what_is_longer() -> None:
    pool = BufferPool()
    for length, kept in ((1000, 1000), (10, 1000), (2000, 2000)):
        lease = pool.lease("a", "x", length, most=MOST, kept=True)
        assert lease is not None
        assert len(lease.view) == length
        lease.release()
        assert pool.kept_bytes == kept


def test_what_is_not_to_be_kept_is_not() -> None:
    pool = BufferPool()
    lease = pool.lease("a", "RosterNews", 1000, most=1, kept=False)
    assert lease is not None
    assert pool.lease("a", "RosterNews", 1000, most=1, kept=False) is None
    lease.release()
    assert pool.kept_bytes == 0


def test_a_buffer_is_given_back_once() -> None:
    lease = BufferPool().lease("a", "x", 1, most=1, kept=True)
    assert lease is not None
    lease.release()
    with pytest.raises(AssertionError, match="once"):
        lease.release()


def test_a_peer_that_is_gone_takes_its_buffers_along() -> None:
    pool = BufferPool()
    lent, rests = (pool.lease("a", "x", 10, most=2, kept=True) for _ in range(2))
    assert lent is not None
    assert rests is not None
    rests.release()
    pool.forget("a")
    assert pool.kept_bytes == 0
    lent.view[:] = b"0123456789"
    lent.release()
    assert pool.kept_bytes == 0
