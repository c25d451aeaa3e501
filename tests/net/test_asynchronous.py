"""Peers that train and exchange without rounds in common wait for no other, even if one is ten times slower."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psutil
import pytest

from tests.net.masses import mass_errors
from tests.net.peers import Peer

pytestmark = pytest.mark.soak  # a minute and more, with three runs of real peers after one another

Made = Callable[..., dict[str, Peer]]
#: Rounds that no test waits for.
ENDLESS = 100_000
#: Rounds of each quick peer that are timed; the slow peer does some of its own meanwhile.
WINDOW = 40
#: Least fraction of their rate that the other peers keep beside the slow one. With a barrier it was 0.4 (measured);
#: other load on the machine changed it by a third.
KEPT = 0.6
#: Seconds that the slow peer runs or rests at a time, far below those after which a peer counts as dead.
SLICE_S = 0.02


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def slowed(peer: Peer, pace: Peer, times: float) -> Iterator[None]:
    """Stop this peer, inside the context, whenever it has had more than its part of the other peer's computing time."""
    slow, quick, over = psutil.Process(peer.pid), psutil.Process(pace.pid), threading.Event()
    begun = cpu_s(slow), cpu_s(quick)

    def brake() -> None:
        while not over.wait(SLICE_S):
            ahead = cpu_s(slow) - begun[0] > (cpu_s(quick) - begun[1]) / times
            peer.signal(signal.SIGSTOP if ahead else signal.SIGCONT)

    braking = threading.Thread(target=brake, daemon=True)
    braking.start()
    try:
        yield
    finally:
        over.set()
        braking.join()
        peer.signal(signal.SIGCONT)


def rate(peers: Sequence[Peer]) -> float:
    """Return the mean rounds per second of a peer, until each has done `WINDOW` more."""
    before, began = [peer.done for peer in peers], time.monotonic()
    for peer, first in zip(peers, before, strict=True):
        peer.reaches(first + WINDOW)
    took = time.monotonic() - began
    return sum(peer.done - first for peer, first in zip(peers, before, strict=True)) / len(peers) / took


def test_a_peer_ten_times_slower_slows_nobody(made: Made) -> None:
    peers = list(made(rounds=ENDLESS, mode="asynchronous", steps=500).values())
    *quick, slow = peers
    for peer in quick:
        peer.start()
    for peer in quick:
        peer.reaches(2)
    before = rate(quick)
    slow.start()
    slow.reaches(2)
    with slowed(slow, quick[0], times=10):
        first = slow.done
        beside = rate(quick)
        crawled = slow.done - first
    slow.kill()
    after = rate(quick)
    assert beside > KEPT * (before + after) / 2, f"{before:.2f}, {beside:.2f}, {after:.2f} rounds a second"
    assert 0 < crawled < WINDOW / 5, "it was slow, and did its part"

    for peer in quick:
        peer.signal(signal.SIGTERM)
    assert [peer.ended() for peer in quick] == [0, 0, 0]
    assert max(mass_errors([peer.file for peer in peers]).values()) < 1e-6
