"""Fixtures for tests of the doors of a peer."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.peer.runtime.bob import Bob, bob_at
from tests.peer.runtime.loop_lag import slow_callbacks


@pytest.fixture(scope="module")
def _frozen() -> Iterator[None]:
    """What earlier modules left in this process is no business of the loop: a collection of it takes half a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def quick_loop(_frozen: None) -> Iterator[None]:
    """The event loop is never held up while the test runs."""
    with slow_callbacks() as slow:
        yield
    assert not slow, "the event loop was blocked:\n" + "\n".join(slow)


@pytest.fixture(scope="module")
def bob(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bob]:
    """A running peer, and those who speak to it."""
    with bob_at(tmp_path_factory.mktemp("bob")) as running:
        yield running
