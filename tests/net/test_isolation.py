"""One host that is cut off, or one process that stands still, for half a minute or five: what the others lose by it.

The settings are ten exchanges in a complete graph and a deadline of 30 s: with these a peer that was alone used to take
the weight of all, and to cost a deadline in every round. `tests/faults/isolation.py` has many more cases in virtual
time.

Packets take 20 ms, so that a round takes as long as its messages: other load on the machine changes no rate.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.net.conftest import all_reach, started
from tests.net.hosts import Hosts
from tests.net.masses import mass_errors
from tests.net.peers import Peer, until
from tests.net.relay import Relay

pytestmark = pytest.mark.soak

#: Seconds in which the rate of rounds is measured, and seconds from the heal until the measurement.
MEASURED_S, BACK_S = 20.0, 10.0
#: Least fraction of the rate before; least and most weight at the end of a round; rounds that a peer may finish alone.
RATE, LEAST, MOST, ALONE_ROUNDS = 0.8, 0.2, 2.0, 2


def passes(seconds: float) -> None:
    """Let real time pass: the number of rounds in it is measured."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end, "time passes", seconds + 5)


def rate(peers: list[Peer]) -> float:
    """Return the rounds per second of the slowest peer."""
    begin, before = time.monotonic(), [peer.done for peer in peers]
    passes(MEASURED_S)
    return min(peer.done - done for peer, done in zip(peers, before, strict=True)) / (time.monotonic() - begin)


@pytest.mark.parametrize("hosts", [Relay(delay=(0.02, 0.02))], indirect=True, ids=["20 ms"])
@pytest.mark.parametrize(("how", "seconds"), [("cut", 30.0), ("freeze", 30.0), ("cut", 300.0)])
def test_soon_after_one_was_alone_nobody_notices(
    made: Callable[..., dict[str, Peer]], hosts: Hosts, how: str, seconds: float
) -> None:
    averaging = ", topology: complete, exchanges: 10"
    peers = started(made(rounds=100_000, deadline=30, steps=50, averaging=averaging), round=5)
    alone, others = peers[0], peers[1:]
    usual = rate(peers)
    before = alone.done
    if how == "cut":
        hosts.cut([alone.id], [peer.id for peer in others])
    else:
        alone.signal(signal.SIGSTOP)
    passes(seconds)
    assert alone.done - before <= ALONE_ROUNDS, "who is alone keeps its number"
    hosts.heal() if how == "cut" else alone.signal(signal.SIGCONT)
    passes(max(BACK_S, 2 / usual))
    since = [peer.done for peer in peers]
    again = rate(peers)
    assert again >= RATE * usual, f"{again:.2f} rounds a second, and {usual:.2f} before"
    for peer, done in zip(peers, since, strict=True):
        weights = [weight for round, row in peer.rows.items() if round > done for weight in row["weight"].values()]
        assert min(weights) >= LEAST
        assert max(weights) <= MOST
    all_reach(peers, max(peer.done for peer in peers) + 2)
    for peer in peers:
        peer.signal(signal.SIGTERM)
    assert [peer.ended() for peer in peers] == [0] * len(peers)
    assert max(mass_errors([peer.file for peer in peers]).values()) < 1e-6
