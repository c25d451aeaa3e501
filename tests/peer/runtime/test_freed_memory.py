"""Memory that was freed goes back to the system."""

from __future__ import annotations

import sys

import pytest
import torch

from fedpeer.peer.runtime.freed_memory import give_back_freed_memory, resident_bytes

#: Blocks of 64 KiB, which glibc takes from its own store; together 32 MiB.
BLOCKS = 512


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and glibc")
def test_pages_that_are_free_below_a_block_in_use_go_back_too() -> None:
    blocks = [torch.zeros(2**14) for _ in range(BLOCKS)]
    above = torch.zeros(2**14)
    with_all = resident_bytes()
    del blocks
    give_back_freed_memory()
    assert with_all - resident_bytes() > BLOCKS * 2**16 / 2
    assert above.sum() == 0
