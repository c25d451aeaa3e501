"""The relay does to packets what its fields state, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.net.hosts import Hosts, missing
from tests.net.relay import Relay

#: Number of small packets, a millisecond apart.
PACKETS = 300
#: Bytes in one connection: many packets.
BYTES = 2_000_000

HEAR = """
import socket, sys, time
heard = socket.socket(type=socket.SOCK_DGRAM)
heard.bind(("", 5000))
print("ready", flush=True)
heard.settimeout(5)
try:
    while True:
        packet = heard.recv(100)
        heard.settimeout(1)
        number, sent = packet.split()
        print(int(number), time.monotonic() - float(sent))
except TimeoutError:
    pass
"""
SAY = """
import socket, sys, time
said = socket.socket(type=socket.SOCK_DGRAM)
said.connect((sys.argv[1], 5000))
for number in range(int(sys.argv[2])):
    said.send(f"{number} {time.monotonic()}".encode())
    time.sleep(0.001)
"""
SINK = """
import hashlib, socket
server = socket.create_server(("", 5001))
print("ready", flush=True)
link, _ = server.accept()
found = hashlib.sha256()
while piece := link.recv(65536):
    found.update(piece)
print(found.hexdigest())
"""
SOURCE = """
import hashlib, random, socket, sys
body = random.Random(0).randbytes(int(sys.argv[2]))
with socket.create_connection((sys.argv[1], 5001)) as link:
    link.sendall(body)
print(hashlib.sha256(body).hexdigest())
"""


def between(relay: Relay, hearer: str, speaker: str, amount: int, folder: Path) -> tuple[str, str]:
    """Return the output of two programs on two hosts with this relay between them."""
    if lacks := missing(relay):
        pytest.skip(f"no relay: {lacks}")
    with Hosts(["ann", "bob"], relay) as hosts:
        received = hosts.start("ann", [sys.executable, "-c", hearer], folder=folder, out=subprocess.PIPE)
        assert received.stdout is not None, "it was asked for"
        assert received.stdout.readline() == b"ready\n"
        words = [sys.executable, "-c", speaker, hosts.address["ann"], str(amount)]
        said = hosts.start("bob", words, folder=folder, out=subprocess.PIPE)
        return received.communicate(timeout=60)[0].decode(), said.communicate(timeout=60)[0].decode()


def test_packets_come_late_twice_or_never_and_overtake_one_another(tmp_path: Path) -> None:
    relay = Relay(delay=(0.02, 0.08), lost=0.1, repeated=0.2, seed=1)
    received, _ = between(relay, HEAR, SAY, PACKETS, tmp_path)
    came = [(int(number), float(late_s)) for number, late_s in map(str.split, received.splitlines())]
    assert min(late_s for _, late_s in came) >= relay.delay[0]
    numbers = [number for number, _ in came]
    overtaken = sum(later < before for before, later in pairwise(numbers))
    assert overtaken > PACKETS / 4
    distinct = len(set(numbers))
    assert 0.8 * PACKETS < distinct < 0.98 * PACKETS
    assert 0.1 * distinct < len(numbers) - distinct < 0.3 * distinct


def test_a_connection_over_it_carries_the_same_bytes(tmp_path: Path) -> None:
    received, said = between(Relay(delay=(0.0, 0.01), repeated=0.1, seed=1), SINK, SOURCE, BYTES, tmp_path)
    assert received == said
    assert said
