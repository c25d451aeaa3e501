"""Fixtures for the tests of a peer's runtime."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.peer.runtime.bob import Bob, bob_at
from tests.peer.runtime.loop_lag import slow_callbacks


@pytest.fixture(scope="module")
def _frozen() -> None:
    """Freeze the objects of earlier test modules: a garbage collection of them would take the loop half a second.

    They stay frozen, so that each of these modules collects only what has come since.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def quick_loop(_frozen: None) -> Iterator[None]:
    """Fail the test if a callback blocks the event loop while it runs."""
    with slow_callbacks() as slow:
        yield
    assert not slow, "the event loop was blocked:\n" + "\n".join(slow)


@pytest.fixture(scope="module")
def bob(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bob]:
    """A running peer, and the peers that send to it."""
    with bob_at(tmp_path_factory.mktemp("bob")) as running:
        yield running
