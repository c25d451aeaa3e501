"""One host or two that are cut off, in both directions or one, or a stalled process: what that costs the other peers.

Most cases have ten exchanges in a complete graph and a deadline of 30 s: with these a peer that was alone used to take
the weight of all, and to cost a deadline in every round. `tests/faults/isolation.py` has all combinations in virtual
time.

Packets take 20 ms, so that a round takes as long as its messages: other load on the machine changes no rate.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.net.conftest import all_reach, federation, started
from tests.net.groups import LABEL, write_tables
from tests.net.hosts import Hosts
from tests.net.masses import mass_errors
from tests.net.peers import Peer, settle, until
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


@dataclass(frozen=True)
class Isolation:
    """One isolation of hosts: which, in which way, for how long, and how the peers average.

    how   cut, freeze; muted: nothing that it sends arrives; deaf: nothing that others send arrives; pair: two of five
    """

    how: str
    seconds: float
    exchanges: int = 10
    deadline: float = 30

    def begin(self, hosts: Hosts, alone: list[Peer], others: list[Peer]) -> None:
        inside, outside = ([peer.host for peer in peers] for peers in (alone, others))
        if self.how == "freeze":
            alone[0].signal(signal.SIGSTOP)
        elif self.how == "muted":
            hosts.mute(inside, to=outside)
        elif self.how == "deaf":
            hosts.mute(outside, to=inside)
        else:
            hosts.cut(inside, outside)

    def end(self, hosts: Hosts, alone: list[Peer]) -> None:
        hosts.heal()
        if self.how == "freeze":
            alone[0].signal(signal.SIGCONT)

    def __str__(self) -> str:
        return f"{self.how} {self.seconds:g} s, {self.exchanges} exchanges, deadline {self.deadline:g}"


#: Each fault, each duration, each number of exchanges and each deadline is in one of these cases.
ISOLATIONS = (
    Isolation("cut", 30),
    Isolation("freeze", 30),
    Isolation("cut", 300),
    Isolation("pair", 30, exchanges=4, deadline=2),
    Isolation("muted", 30, exchanges=1),
    Isolation("deaf", 5, deadline=2),
)


def peers_of(folder: Path, hosts: Hosts, count: int, **settings: Any) -> list[Peer]:
    """Make a federation of so many hosts, and start its peers."""
    tables = write_tables(folder, tuple(hosts.address)[:count])
    made = settle(hosts, folder, tables, federation(rounds=100_000, steps=50, **settings), LABEL)
    return started(made, round=5)


relayed = pytest.mark.parametrize("hosts", [Relay(delay=(0.02, 0.02))], indirect=True, ids=["20 ms"])


@relayed
@pytest.mark.parametrize("isolation", ISOLATIONS, ids=str)
def test_soon_after_one_was_alone_nobody_notices(hosts: Hosts, tmp_path: Path, isolation: Isolation) -> None:
    pair = isolation.how == "pair"
    averaging = f", topology: complete, exchanges: {isolation.exchanges}"
    peers = peers_of(tmp_path, hosts, 5 if pair else 4, deadline=isolation.deadline, averaging=averaging)
    alone, others = (peers[:2], peers[2:]) if pair else (peers[:1], peers[1:])
    usual = rate(peers)
    before = max(peer.done for peer in peers)
    isolation.begin(hosts, alone, others)
    passes(isolation.seconds)
    if not pair:
        heard = max(peer.done for peer in others) if isolation.how == "muted" else before
        assert alone[0].done - heard <= ALONE_ROUNDS, "who is alone keeps its number"
    isolation.end(hosts, alone)
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


@relayed
def test_a_group_with_a_coordinator_goes_on_beside_one_that_is_cut_off_and_with_it_afterwards(
    hosts: Hosts, tmp_path: Path
) -> None:
    peers = peers_of(tmp_path, hosts, 4, deadline=30, protocol="coordinator")
    usual = rate(peers)
    isolation = Isolation("cut", 30)
    isolation.begin(hosts, peers[:1], peers[1:])
    before = [peer.done for peer in peers]
    passes(isolation.seconds)
    gone = [peer.done - done for peer, done in zip(peers, before, strict=True)]
    assert gone[0] <= ALONE_ROUNDS, "who is alone pauses"
    assert min(gone[1:]) > 3, "the others go on"
    isolation.end(hosts, peers[:1])
    passes(max(BACK_S, 2 / usual))
    again = rate(peers)
    assert again >= RATE * usual, f"{again:.2f} rounds a second, and {usual:.2f} before"
    all_reach(peers, max(peer.done for peer in peers) + 2)
    for peer in peers:
        peer.signal(signal.SIGTERM)
    assert [peer.ended() for peer in peers] == [0] * len(peers)
