"""Strangers, and members that send forbidden messages, are rejected: the log has the reason, and so has the sender."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.runtime.authority import open_authority
from fedpeer.peer.runtime.certificates import peer_certificate, pem
from fedpeer.peer.runtime.server import CONTENT_TYPE, ROUTE
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Ack, Message, RejectMessage, Transfer
from tests.net.conftest import ENDLESS, federation
from tests.net.groups import LABEL, WARDS, write_tables
from tests.net.hosts import Hosts
from tests.net.masses import state_in
from tests.net.peers import Peer, settle, until

pytestmark = pytest.mark.slow

STRANGER, FLOODER = (str(Path(__file__).with_name(name)) for name in ("stranger.py", "flooder.py"))


@dataclass(frozen=True)
class RunningPeers:
    """One federation for all tests of this file: each test disturbs one peer of it, or adds a process beside it."""

    hosts: Hosts
    folder: Path
    peers: dict[str, Peer]

    def learning(self, *names: str) -> list[Peer]:
        """Start these peers, or all if none has been started yet, and return these once each of them learns."""
        begun = any(peer.process for peer in self.peers.values())
        for peer in [self.peers[name] for name in (names if begun else self.peers)]:
            if not peer.runs:
                peer.start()
        for name in names:
            self.peers[name].reaches(1)
            self.peers[name].steps_aside()
        return [self.peers[name] for name in names]


@pytest.fixture(scope="module")
def running(can_have_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPeers]:
    folder = tmp_path_factory.mktemp("town")
    with Hosts([*WARDS, "guest"]) as hosts:
        yield RunningPeers(hosts, folder, settle(hosts, folder, write_tables(folder), federation(**ENDLESS), LABEL))


class Speaker:
    """A sender with the keys of a peer, on that peer's host."""

    def __init__(self, hosts: Hosts, peer: Peer, federation_id: bytes) -> None:
        self._hosts, self._peer, self._federation = hosts, peer, federation_id
        self.certificate = peer.folder / "keys" / f"{peer.id}.crt"

    def say(self, to: str, message: Message, sender: str = "", federation_id: bytes = b"") -> str:
        envelope = Envelope(
            federation=federation_id or self._federation,
            sender=sender or self._peer.id,
            recipient=to,
            incarnation=1,
            to_incarnation=1,
        )
        head, tail = codec.encode(envelope, message)
        frame = self._peer.folder / "frame"
        frame.write_bytes(head + bytes(tail))
        keys = self._peer.folder / "keys"
        words = [self.certificate, keys / f"{self._peer.id}.key", keys / "federation-ca.crt", frame]
        process = self._hosts.start(
            self._peer.host,
            [sys.executable, STRANGER, self._hosts.address[to], "7401", ROUTE, CONTENT_TYPE, *map(str, words)],
            folder=self._peer.folder,
            out=subprocess.PIPE,
            err=subprocess.STDOUT,
        )
        return self._meaning(process.communicate(timeout=60)[0].decode().strip())

    def _meaning(self, told: str) -> str:
        """Return the code and the sentence of the rejection, "taken", or why there was no answer."""
        status, _, body = told.partition(" ")
        if status == "204":
            return "taken"
        if not status.isdigit():
            return told
        said = codec.decode_answer(bytes.fromhex(body))
        return f"{said.code}: {said.text}" if isinstance(said, RejectMessage) else told


def next_transfers(peer: Peer, to: str) -> list[Transfer]:
    """Return what this peer, which does not run, would send next on its channel: the open transfers and one more."""
    holding = state_in(peer.file).groups["everyone"]
    channel, (round, exchange) = holding.out[to], holding.at
    next_share = NumberedTransfer(
        seq=channel.made + 1,
        round=round,
        exchange=exchange,
        weight=0.01,
        form="float32",
        payload=(0.01 * holding.held.estimate_D).float(),
    )
    return [Transfer(group="everyone", share=share) for share in (*channel.open, next_share)]


def test_forged_replayed_expired_and_foreign(running: RunningPeers) -> None:
    north, east, _, west = running.learning(*WARDS)
    authority = open_authority(running.folder / "office")
    west.kill()
    speaker = Speaker(running.hosts, west, authority.roster.federation_id)

    # A message in another peer's name.
    said = speaker.say("north", Ack(group="everyone", taken=1, round=1), sender="east")
    assert said.startswith("sender_mismatch:")
    assert "west" in north.logs("sender_mismatch")

    # A message of another federation.
    said = speaker.say("east", Ack(group="everyone", taken=1, round=1), federation_id=bytes(16))
    assert said.startswith("wrong_federation:")
    assert "west" in east.logs("wrong_federation")

    # A transfer, and the same bytes again: taken once.
    for transfer in (*next_transfers(west, "east"), *next_transfers(west, "east")):
        assert speaker.say("east", transfer) == "taken"
    east.logs("repeated", "west")

    # A certificate that is no longer valid.
    key = load_pem_private_key((west.folder / "keys" / "west.key").read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey), "fedpeer init makes no other"
    then = datetime.now(UTC) - timedelta(days=400)
    expired = peer_certificate(
        authority.certificate,
        authority.identity.key,
        "west",
        key.public_key(),
        running.hosts.address["west"],
        then,
        then + timedelta(30),
    )
    valid = speaker.certificate.read_bytes()
    speaker.certificate.write_bytes(pem(expired))
    said = speaker.say("east", Ack(group="everyone", taken=1, round=1))
    assert said.startswith("no answer"), "the reason may arrive before the connection is closed, or not"
    assert "expired" in east.logs("tls_refused")
    west.start()
    assert west.ended() == 2
    assert f"to {then + timedelta(30):%Y-%m-%d} only; set this machine's clock" in " ".join(west.said.split())
    speaker.certificate.write_bytes(valid)


def test_another_federation_is_not_let_in(running: RunningPeers, tmp_path: Path) -> None:
    """A federation with the same file, the same names and the same hosts, but another authority, is not admitted."""
    (north,), west = running.learning("north"), running.peers["west"]
    if west.runs:
        west.kill()
    known = len(north.logged("handshake_cut", running.hosts.address["west"]))
    other = settle(running.hosts, tmp_path, write_tables(tmp_path), federation(), LABEL)["west"]
    other.start()
    assert "authority" in other.logs("link_down", "authority")
    # The peer that connects sees another authority first, and breaks off; north cannot tell why.
    until(lambda: len(north.logged("handshake_cut", running.hosts.address["west"])) > known, "the other one breaks off")
    other.kill()


@pytest.mark.soak  # a real flood takes a whole core, which tests that run beside it do not leave
def test_who_fills_all_places_keeps_no_member_out(running: RunningPeers) -> None:
    """A flood from five addresses of a host outside the federation keeps no member out: a member that starts meanwhile
    meets the flooded peer, and the others go on with it."""
    north, _, _ = running.learning("north", "east", "south")
    west, hosts = running.peers["west"], running.hosts
    if west.runs:
        west.kill()
    floods = hosts.more_addresses("guest", 4)
    flooder = hosts.start(
        "guest",
        [sys.executable, FLOODER, hosts.address["north"], "7401", *floods],
        folder=running.folder,
        out=subprocess.PIPE,
    )
    assert flooder.stdout is not None, "it was asked for"
    assert flooder.stdout.readline().strip() == b"full"
    met, round = len(north.logged("met", "west")), north.done
    west.start()
    until(lambda: len(north.logged("met", "west")) > met, "west meets north")
    assert flooder.poll() is None, "the flood went on"
    north.reaches(round + 2)
    flooder.kill()


def test_of_two_processes_with_one_identity_the_earlier_stops(running: RunningPeers) -> None:
    """The earlier of two processes with one identity stops; on the same folder the second does not start, and names the
    first."""
    north, _, _ = running.learning("north", "east", "south")
    hosts = running.hosts
    copy = north.folder.parent / "copy"
    subprocess.run(["cp", "-r", north.folder, copy], check=True)
    twin = Peer(hosts, "guest", "north", copy / "north.yaml")
    text = twin.file.read_text().replace(hosts.address["north"], hosts.address["guest"])
    twin.file.write_text(text)
    again = north.run("start", "--config", "north.yaml")
    assert again.returncode == 2
    assert "already runs this peer" in again.stderr
    assert north.runs
    twin.start()
    assert north.ended() == 2
    assert "start north on one machine only" in north.said
    assert twin.runs
    twin.kill()
