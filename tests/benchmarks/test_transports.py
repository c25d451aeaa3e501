"""The transports of a slice that the wire benchmark compares: each reports that it is done only when it is."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

import pytest
import torch

from benchmarks.transports import Fedpeer, Grpc, Job, Keys, Naive, Sockets, Transport

LENGTH = 10_000

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the receiving process, which the benchmark starts anew, a fork of one that has imported torch."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        forkserver = multiprocessing.get_context("forkserver")
        monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: forkserver)


@pytest.mark.parametrize(
    "make",
    [Fedpeer, Sockets, *(pytest.param(make, marks=pytest.mark.soak) for make in (Grpc, Naive))],
    ids=lambda make: make.__name__,
)
def test_a_slice_is_carried_checked_merged_and_saved(make: Callable[[Job, int], Transport]) -> None:
    transport = make("saved", LENGTH)
    try:
        for _ in range(2):
            transport.send(torch.randn(LENGTH))
        with pytest.raises(Exception, match=r".*"):  # each transport fails in its own way, and none silently
            transport.send(torch.full((LENGTH,), torch.nan))
    finally:
        transport.close()


@pytest.mark.parametrize(
    "make", [Fedpeer, pytest.param(Sockets, marks=pytest.mark.soak)], ids=lambda make: make.__name__
)
def test_a_slice_is_carried_by_tls(make: Callable[[Job, int, Keys], Transport]) -> None:
    keys = Keys()
    transport = make("moved", LENGTH, keys)
    try:
        transport.send(torch.randn(LENGTH))
    finally:
        transport.close()
        keys.close()
