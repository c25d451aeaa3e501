"""Connections between hosts: two peers share one, and it is known whether the network or the other peer is slow."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.net.conftest import ENDLESS, started
from tests.net.hosts import REPOSITORY, Hosts
from tests.net.masses import mass_errors
from tests.net.peers import Peer, finish, mean_accuracy, until

pytestmark = pytest.mark.soak

#: Sends a byte to a listener that reads nothing, each tenth of a second, and prints whether the connection has stalled.
SENDER = """
import socket, sys, time
from fedpeer.peer.runtime.two_way import has_stalled
with socket.create_connection((sys.argv[1], 9000)) as made:
    while True:
        made.sendall(b"x")
        time.sleep(0.1)
        print(int(has_stalled(made)), flush=True)
"""
LISTENER = """
import socket, time
with socket.create_server(("0.0.0.0", 9000)) as listening:
    print("ready", flush=True)
    kept = listening.accept()
    time.sleep(600)
"""


def connections(hosts: Hosts, host: str) -> int:
    """Return the number of connections to the peer port of a host that are open there."""
    listed = hosts.start(host, ["ss", "-Htln"], folder=REPOSITORY, out=subprocess.PIPE)
    assert listed.stdout is not None
    ports = {line.split()[3].rpartition(":")[2] for line in listed.stdout.read().decode().splitlines()}
    listed = hosts.start(host, ["ss", "-Htn", "state", "established"], folder=REPOSITORY, out=subprocess.PIPE)
    assert listed.stdout is not None
    own = [line.split()[2] for line in listed.stdout.read().decode().splitlines()]
    return sum(each.rpartition(":")[2] in ports and not each.startswith("127.") for each in own)


def test_two_peers_share_one_connection(made: Callable[..., dict[str, Peer]], hosts: Hosts) -> None:
    """If both peers have opened a connection, one of the two is closed after a moment."""
    peers = started(made(**ENDLESS), round=5)
    pairs = len(peers) * (len(peers) - 1) // 2
    until(lambda: sum(connections(hosts, peer.id) for peer in peers) == pairs, "one connection for each pair", 120)
    before = [peer.done for peer in peers]
    until(lambda: all(peer.done > done + 20 for peer, done in zip(peers, before, strict=True)), "rounds go on", 60)
    assert sum(connections(hosts, peer.id) for peer in peers) == pairs


def test_a_connection_has_stalled_while_packets_are_lost_and_not_while_nobody_reads(hosts: Hosts) -> None:
    ann, bob, *_ = hosts.address
    listener = hosts.start(bob, [sys.executable, "-c", LISTENER], folder=REPOSITORY, out=subprocess.PIPE)
    assert listener.stdout is not None
    assert listener.stdout.readline() == b"ready\n"
    command = [sys.executable, "-c", SENDER, hosts.address[bob]]
    sender = hosts.start(ann, command, folder=REPOSITORY, out=subprocess.PIPE)
    assert sender.stdout is not None
    told = sender.stdout

    def within(wanted: bytes, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (line := told.readline()) != wanted and time.monotonic() < end:
            pass
        return line == wanted

    assert [told.readline() for _ in range(10)] == [b"0\n"] * 10
    hosts.cut([ann], [bob])
    assert within(b"1\n", 2)
    hosts.heal()
    assert within(b"0\n", 5)
    assert [told.readline() for _ in range(10)] == [b"0\n"] * 10


@pytest.mark.parametrize("written", [True, False], ids=["listen: none", "listening in vain"])
def test_two_of_four_to_whom_nobody_can_connect_take_part(
    written: bool, made: Callable[..., dict[str, Peer]], hosts: Hosts
) -> None:
    """The two average with the two others over connections that they open, and mass is conserved."""
    rounds = 30 if written else 200  # enough rounds until the peers report that nobody has connected
    wards = made(rounds=rounds)
    shielded = [wards["north"], wards["west"]]
    hosts.shield(*(peer.host for peer in shielded))
    if written:
        for peer in shielded:
            text = peer.file.read_text(encoding="utf-8")
            peer.file.write_text(re.sub(r"(?m)^listen: .*$", "listen: none", text), encoding="utf-8")
    peers = started(wards, round=3)
    if not written:
        for peer in shielded:
            assert "nobody has connected to this peer" in peer.logs("outbound_only")
    finish(peers)
    assert [peer.done for peer in peers] == [rounds] * 4
    waits = [line for peer in peers for line in peer.logged("went_on_without", "after the deadline")]
    assert not waits, "nobody waits for shares that cannot come"
    assert max(mass_errors([peer.file for peer in peers]).values()) <= 1e-12
    assert mean_accuracy(peers) > 0.85
    assert not [peer for peer in peers if peer not in shielded and peer.logged("outbound_only")]
