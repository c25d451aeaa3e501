"""Four hosts with a table and a key each, from `fedpeer init` to `fedpeer predict`, as in the README; then power cuts,
partitions, lost packets and pauses: nothing is lost, no one has to intervene, and as much is learned.

One run has a pause, two power cuts and packets that arrive late or twice. Other runs take a minute each: `make soak`.
"""

from __future__ import annotations

import csv
import io
import json
import signal
import time
from collections.abc import Callable

import pytest
from safetensors.torch import load_file

from tests.net.conftest import LONG, ROUNDS, Calm, all_reach, started
from tests.net.hosts import Hosts
from tests.net.masses import mass_errors
from tests.net.peers import Peer, finish, mean_accuracy, until
from tests.net.relay import Relay

pytestmark = pytest.mark.slow

Made = Callable[..., dict[str, Peer]]
#: One percentage point of accuracy, mean over the peers, which test on 450 rows together.
POINT = 0.01


def test_the_peers_learned_together(calm: Calm) -> None:
    assert calm.accuracy > 0.92
    assert max(mass_errors([peer.file for peer in calm.peers]).values()) < 1e-6
    for peer in calm.peers:
        assert peer.logged("went_on_without") == []
        assert [line["text"] for line in peer.lines if line["level"] in ("warning", "error")] == []


def test_a_model_answers_for_new_rows(calm: Calm) -> None:
    north = calm.peers[0]
    with (north.folder / "north.csv").open() as file:
        rows = list(csv.DictReader(file))
    answered = north.run("predict", "north.yaml", "north.csv")
    assert answered.returncode == 0, answered.stderr
    answers = list(csv.DictReader(io.StringIO(answered.stdout)))
    right = sum(answer["prediction"] == row["digit"] for answer, row in zip(answers, rows, strict=True))
    assert right / len(rows) > 0.92
    assert all(abs(sum(float(answer[f"probability {digit}"]) for digit in range(10)) - 1) < 1e-3 for answer in answers)


def test_a_model_is_measured_and_exported(calm: Calm) -> None:
    east = calm.peers[1]
    measured = east.run("evaluate", "east.yaml", "--json")
    assert measured.returncode == 0, measured.stderr
    assert json.loads(measured.stdout)["accuracy"] == pytest.approx(east.accuracy)
    exported = east.run("export", "east.yaml", "--to", "east.safetensors")
    assert exported.returncode == 0, exported.stderr
    assert sum(tensor.numel() for tensor in load_file(east.folder / "east.safetensors").values()) == 65 * 50 + 51 * 10


# ---------------------------------------------------------------------------------------------------------- with faults


def judge(peers: list[Peer], calm: Calm, rounds: int = ROUNDS) -> None:
    """Check that all have finished, that nothing was lost, and that as much was learned as without any fault."""
    finish(peers)
    assert {peer.done for peer in peers} == {rounds}
    assert max(mass_errors([peer.file for peer in peers]).values()) < 1e-6
    assert mean_accuracy(peers) > calm.accuracy - POINT


@pytest.mark.parametrize("hosts", [Relay(delay=(0.0, 0.02), repeated=0.1, seed=1)], indirect=True, ids=["relay"])
def test_killed_or_paused_in_the_middle_and_started_again(made: Made, calm: Calm) -> None:
    """Peers that are killed or paused in the middle and restarted lose nothing, while packets arrive late, out of
    order, or twice."""
    peers = started(made(), round=3)
    pause(peers[3])
    for victim in (peers[1], peers[2]):
        victim.kill()
    for victim in peers[1:]:
        victim.start()
    for victim in peers[1:]:
        assert "going on in round" in victim.logs("resumed")
    judge(peers, calm)


def pause(peer: Peer) -> None:
    began = time.monotonic()
    peer.signal(signal.SIGTERM)
    assert peer.ended() == 0
    assert time.monotonic() - began < 5
    assert "paused; everything is kept" in peer.said


@pytest.mark.soak
def test_a_partition_heals(made: Made, calm: Calm, hosts: Hosts) -> None:
    peers = started(made(**LONG), round=3)
    hosts.cut(["north", "east"], ["south", "west"])
    for one, other in ((0, "south"), (1, "west"), (2, "north"), (3, "east")):
        peers[one].logs("membership", f"{other} is dead")
    before = max(peer.done for peer in peers)
    all_reach(peers, before + 4)  # both sides go on learning
    hosts.heal()
    for one, other in ((0, "south"), (1, "west"), (2, "north"), (3, "east")):
        until(lambda one=one, other=other: alive_again(peers[one], other), f"{peers[one].id} sees {other} again")  # type: ignore[misc]
    judge(peers, calm)


def alive_again(peer: Peer, other: str) -> bool:
    said = peer.logged("membership", f"{other} is ")
    return bool(said) and "dead" not in said[-1]


@pytest.mark.soak
def test_three_of_ten_packets_are_dropped(made: Made, calm: Calm, hosts: Hosts) -> None:
    """Nothing is lost at 30 % loss; a round takes seconds instead of a fraction of one, so there are fewer rounds."""
    peers = made(rounds=5, **LONG)
    hosts.lose(0.3)
    judge(started(peers), calm, rounds=5)


@pytest.mark.soak
@pytest.mark.parametrize("hosts", [Relay(delay=(0.0, 0.1), repeated=0.1, seed=1)], indirect=True, ids=["relay"])
def test_late_and_out_of_order(made: Made, calm: Calm) -> None:
    judge(started(made(**LONG)), calm)


@pytest.mark.soak
def test_paused_by_sigterm_and_resumed_while_the_others_go_on(made: Made, calm: Calm) -> None:
    peers = started(made(**LONG), round=3)
    pause(peers[3])
    peers[3].start()
    assert "going on in round" in peers[3].logs("resumed")
    judge(peers, calm)


@pytest.mark.soak
def test_stopped_for_some_seconds(made: Made, calm: Calm) -> None:
    peers = started(made(**LONG), round=3)
    peers[0].signal(signal.SIGSTOP)
    peers[1].logs("membership", "north is dead")
    all_reach(peers[1:], peers[1].done + 3)  # nobody waits for it
    peers[0].signal(signal.SIGCONT)
    until(lambda: alive_again(peers[1], "north"), "east sees north again")
    judge(peers, calm)
