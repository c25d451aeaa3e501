"""Packets are lost from the first start on: no living peer stays declared dead, and a round takes little more than its
bytes.

The time of a round is compared with that of the same bytes over the same kind of connections between the same hosts,
with nothing of fedpeer around them (`bare.py`), after a rest as long as a round takes without loss: most of that is
training, and late messages meanwhile delay no peer. The loss is the same, in the same run. Each test takes some
minutes: `make soak`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.net.conftest import all_reach, started
from tests.net.hosts import REPOSITORY, Hosts
from tests.net.peers import Peer, until

pytestmark = pytest.mark.soak

Made = Callable[..., dict[str, Peer]]
#: Rounds of the start, which are left out; rounds that are timed under loss, and afterwards without. Under loss a few
#: rounds wait for many seconds until TCP repeats what was lost: the mean of a hundred varies by a sixth between runs,
#: that of 24 by a third.
FIRST, TIMED, CALM = 2, 96, 12
#: Exchanges of `floor`: as many as timed rounds.
EXCHANGES = TIMED
#: Most time that a round may take, as a multiple of that of `floor`.
TIMES = 1.5
#: Seconds of P8, 200 ticks of 25 ms, for which a false death may last; and how many there may be in the whole run: one
#: in twelve rounds.
REFUTED_S, DEATHS_MAX = 5.0, TIMED // 12
#: Seconds within which a death is known, 400 ticks: waits grow with answers that TCP makes late
#: (`tests/gossip/test_membership.py -k no_further`), so a few answers that were late by chance just before cost more.
KNOWN_S = 10.0
PATIENCE_S = 1200.0


def deaths(peer: Peer) -> list[float]:
    """Return the seconds of each time in which this peer considered another one dead, although none has died."""
    peer.look()
    told = [line for line in peer.lines if line["what"] == "membership"]
    lasted = []
    for other in {line["fields"]["peer"] for line in told}:
        about = [(line["t"], line["fields"]["state"]) for line in told if line["fields"]["peer"] == other]
        lasted += [after[0] - before[0] for before, after in pairwise(about) if before[1] == "dead"]
        lasted += [PATIENCE_S] if about[-1][1] == "dead" else []
    return lasted


def changes(peer: Peer) -> int:
    """Return how often this peer logged that another one came or went, with the lines that its log merged into
    others."""
    peer.look()
    told = [line for line in peer.lines if line["what"] == "membership" and line["level"] == "info"]
    return sum(1 + int(line.get("more", 0)) for line in told)


def seconds(peers: list[Peer], first: int, last: int) -> float:
    """Return the seconds of a round after the first of these up to the last, the mean over the peers."""
    took = [float(peer.rows[round]["seconds"]) for peer in peers for round in range(first + 1, last + 1)]
    return sum(took) / len(took)


def floor(hosts: Hosts, peers: list[Peer], length: int, work: float) -> float:
    """Return the mean seconds of so much work and an exchange of so many bytes a share."""
    where = [f"{peer.host}={hosts.address[peer.host]}" for peer in peers]
    running = []
    for peer in peers:
        keys = [str(peer.folder / "keys" / name) for name in (f"{peer.id}.crt", f"{peer.id}.key", "federation-ca.crt")]
        command = [
            sys.executable,
            "tests/net/bare.py",
            peer.host,
            *keys,
            str(length),
            str(EXCHANGES),
            str(work),
            *where,
        ]
        running.append(hosts.start(peer.host, command, folder=REPOSITORY, out=subprocess.PIPE))
    lines = [process.stdout.readline().decode() for process in running if process.stdout is not None]
    took = [float(word) for line in lines for word in line.split()]
    assert len(took) == EXCHANGES * len(peers), lines
    return sum(took) / len(took)


@pytest.mark.parametrize("loss", [0.1, 0.3])
def test_a_round_takes_little_more_than_its_bytes_and_nobody_is_buried(made: Made, hosts: Hosts, loss: float) -> None:
    peers = made(rounds=10_000, deadline=30)
    hosts.lose(loss)
    running = started(peers, round=FIRST)
    for peer in running:
        peer.reaches(FIRST + TIMED, PATIENCE_S)
    buried, told = [lasted for peer in running for lasted in deaths(peer)], max(map(changes, running))
    hosts.heal()
    reached = max(peer.done for peer in running) + FIRST
    all_reach(running, reached + CALM)
    lossy, calm = seconds(running, FIRST, FIRST + TIMED), seconds(running, reached, reached + CALM)
    share = min(row["bytes_sent"] for row in running[0].rows.values() if row["round"] > reached) // (len(peers) - 1)
    for peer in running:
        peer.kill()
    hosts.lose(loss)
    bare = floor(hosts, running, share, calm)
    text = (
        f"loss {loss}: a round {lossy:.2f} s, without loss {calm:.2f} s, as much rest and a bare exchange {bare:.2f} s"
    )
    print(f"{text}: {lossy / bare:.2f} times as long; shares of {share} bytes; buried {buried}")
    assert len(buried) <= DEATHS_MAX
    assert told <= len(peers) - 1 + 2 * DEATHS_MAX, "each other one came once"
    assert max(buried, default=0.0) <= REFUTED_S
    assert lossy <= TIMES * bare


def test_at_ten_percent_loss_a_death_is_soon_known(made: Made, hosts: Hosts) -> None:
    """A death is soon known without a kernel that reports it: the kernel of a killed peer would do so at once, so its
    host is cut off instead."""
    running = started(made(rounds=10_000, deadline=30), round=FIRST)
    hosts.lose(0.1)
    all_reach(running, running[0].done + 5)
    gone, others = running[0], running[1:]
    hosts.cut([gone.host], [peer.host for peer in others])
    until(lambda: all(peer.logged("membership", f"{gone.id} is dead") for peer in others), "all know", KNOWN_S)
