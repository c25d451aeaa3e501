"""Peers come and go: they leave, are invited, and are revoked."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forked import fedpeer_command
from tests.net.conftest import ENDLESS, LONG, ROUNDS, all_reach, started
from tests.net.hosts import Hosts
from tests.net.masses import mass_errors, state_in
from tests.net.peers import ENVIRONMENT, Peer, finish, run, status_of, until

pytestmark = pytest.mark.slow

Made = Callable[..., dict[str, Peer]]


def leaves(peer: Peer) -> None:
    left = peer.run("leave", "--config", f"{peer.id}.yaml")
    assert left.returncode == 0, left.stderr
    assert peer.ended() == 0
    assert "left; what was held is handed over" in peer.said
    assert peer.logged("written_off") == []


def test_one_of_them_tells_how_all_are(made: Made) -> None:
    """Rounds go on without end, and a status is up to a second old, so it is polled until it is as wanted."""
    peers = started(made(**ENDLESS))

    def told() -> bool:
        status = status_of(peers[0])
        states = {each["id"]: each["state"] for each in status["peers"]}
        asked = {peer.id: "me" if peer is peers[0] else "alive" for peer in peers}
        return states == asked and all(group["weight"] > 0 for group in status["groups"]) and bool(status["groups"])

    until(told, lambda: f"the states of all in {status_of(peers[0])}")


@pytest.mark.soak
def test_one_leaves_and_the_others_finish(made: Made) -> None:
    peers = started(made(**LONG), round=3)
    west = peers.pop()
    leaves(west)
    finish(peers)
    assert {peer.done for peer in peers} == {ROUNDS}
    assert max(mass_errors([peer.file for peer in (*peers, west)]).values()) < 1e-6


def test_one_leaves_and_one_more_is_invited_joins_late_and_is_put_out(made: Made, hosts: Hosts, tmp_path: Path) -> None:
    peers = started(made(**ENDLESS), round=2)
    leaves(peers.pop())
    all_reach(peers, peers[0].done + 2)
    office, machine = tmp_path / "office", tmp_path / "machines"
    address = f"https://{hosts.address['guest']}:7401"
    inviting = hosts.start(
        "north",
        fedpeer_command("invite", "guest", "--address", address, "--in", str(office)),
        folder=tmp_path,
        out=subprocess.PIPE,
        err=subprocess.STDOUT,
        env=ENVIRONMENT,
    )
    assert inviting.stdout is not None, "it was asked for"
    token = next(line for line in map(bytes.decode, inviting.stdout) if line.startswith("fedpeer join ")).split()[-1]
    shutil.copy(machine / "north" / "north.csv", tmp_path / "guest.csv")
    joined = run(hosts, "guest", machine, "join", token, "--data", f"csv:{tmp_path / 'guest.csv'},label=digit")
    assert joined.returncode == 0, joined.stderr
    told = inviting.communicate(timeout=60)[0].decode()
    assert inviting.returncode == 0
    assert "guest has joined: roster 2 has 5 peers" in told
    guest = Peer(hosts, "guest", "guest", machine / "guest" / "guest.yaml")
    guest.start()
    assert "with the values of everyone" in guest.logs("joined")
    guest.reaches(max(guest.rows, default=1) + 1)

    out = run(hosts, "north", tmp_path, "revoke", "guest", "--in", str(office))
    assert out.returncode == 0, out.stderr
    assert "guest has been removed: roster 3 has 4 peers" in out.stdout
    peers[0].logs("roster", "guest is revoked")
    assert guest.ended() == 2
    assert "guest was revoked by roster 3" in guest.said


#: Seconds within which the remaining peers have closed their channels with a revoked peer.
BOOKS_CLOSED_S = 10.0


def test_who_is_put_out_takes_nothing_with_it(made: Made, hosts: Hosts, tmp_path: Path) -> None:
    """The remaining peers are killed soon after `fedpeer revoke`: their stores hold the weight that they put in less
    the weight that they wrote off for the revoked peer."""
    everybody = made(**ENDLESS)
    peers = started(everybody, round=3)
    gone, rest = peers[-1], peers[:-1]
    out = run(hosts, "north", tmp_path, "revoke", gone.id, "--in", str(tmp_path / "office"))
    assert out.returncode == 0, out.stderr
    for peer in rest:
        peer.logs("written_off", f"{gone.id} is revoked", BOOKS_CLOSED_S)
    done = {peer.id: peer.done for peer in rest}
    for peer in rest:
        peer.reaches(done[peer.id] + 2)
    assert gone.ended() == 2, "they tell it before they are killed"
    for peer in rest:
        peer.kill()
    for peer in rest:
        for group, holding in state_in(peer.file).groups.items():
            assert not {gone.id} & {*holding.out, *holding.into}, f"{peer.id} has a lane with {gone.id} in {group}"
    assert max(mass_errors([peer.file for peer in rest]).values()) < 1e-9
