"""Connections through a third peer: two peers that cannot connect to each other have one that the third cannot read."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from aiohttp import ClientSession

from fedpeer.config.address import PeerUrl
from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.runtime.carrier import Carrier, Neighborhood
from fedpeer.peer.runtime.client import PeerLinks
from fedpeer.peer.runtime.identity import Identity, client_context, peer_of, server_context
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.listener import bind_socket
from fedpeer.peer.runtime.opener import Attempts
from fedpeer.peer.runtime.outcomes import DeliveryReceipt, LinkDown, Outcome
from fedpeer.peer.runtime.server import LINK_ROUTE, PeerServer
from fedpeer.peer.runtime.streams import BYTES, CARRIED, CARRY, END, LinkLostError
from fedpeer.peer.runtime.two_way import TwoWayLink
from fedpeer.peer.wire.codec import encode
from fedpeer.peer.wire.messages import Message, Transfer
from tests.peer.frames import ENVELOPE, MESSAGES, POLICY, spec
from tests.peer.runtime.bob import bob_at
from tests.peer.runtime.people import People
from tests.peer.runtime.port import PATIENCE, Port, serving

LENGTH = 500_000
ACK = MESSAGES["ack"]


@dataclass
class Member:
    """One peer: what it receives, its server, links and carrier, and the outcomes of its messages by recipient."""

    id: str
    port: Port
    server: PeerServer
    links: PeerLinks
    carrier: Carrier
    outbound: bool
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    reached: list[tuple[str, str]] = field(default_factory=list)

    def send(self, to: Member, message: Message) -> None:
        envelope = replace(ENVELOPE, sender=self.id, recipient=to.id)
        self.links.send(to.id, to.address, *encode(envelope, message), both_ways=True)

    @property
    def address(self) -> str:
        return str(PeerUrl.nowhere(self.id)) if self.outbound else self.port.url

    def receipts(self, of: Member) -> int:
        return sum(isinstance(each, DeliveryReceipt) for each in self.outcomes.get(of.id, []))

    async def gets_through(self, to: Member) -> None:
        """Send a short message until one has arrived, as a node does."""
        before = self.receipts(to)
        async with asyncio.timeout(PATIENCE):
            while self.receipts(to) == before:
                self.send(to, ACK)
                await asyncio.sleep(0.01)

    async def brings(self, to: Member, message: Message) -> None:
        """Send a message once, and wait until it has arrived."""
        before = len(self.outcomes.setdefault(to.id, []))
        self.send(to, message)
        async with asyncio.timeout(PATIENCE):
            while len(self.outcomes[to.id]) == before:
                await asyncio.sleep(0.01)
        assert isinstance(self.outcomes[to.id][before], DeliveryReceipt)

    async def until_linked(self, to: Member) -> TwoWayLink:
        async with asyncio.timeout(PATIENCE):
            while (link := self.links.link(to.id)) is None:
                await asyncio.sleep(0.01)
        return link

    def transfers(self) -> list[tuple[str, Transfer]]:
        """Return the slices that the peer has received, each with its sender."""
        return [(sender, message) for sender, _, message in self.port.delivered if isinstance(message, Transfer)]


class Federation:
    """Members by id; the authority's roster is in force at all of them at once.

    outbound   peers to which nobody can connect
    rate       bytes per second that each carrier forwards
    """

    def __init__(self, people: People, outbound: list[str], rate: float, limits: Limits) -> None:
        self.people, self.outbound, self.rate, self.limits = people, outbound, rate, limits
        self.members = dict[str, Member]()

    async def add(self, me: str, others: set[str], identity: Identity, stack: AsyncExitStack) -> None:
        """Run a member until the stack ends."""
        groups = {"all": spec(length=LENGTH, members=frozenset({me, *others}), neighbors=frozenset(others))}
        port = Port(policy=replace(POLICY, me=me, groups=groups, consensus_by_group={}, other=None))
        server = await stack.enter_async_context(
            serving(
                port,
                self.limits,
                server_context(identity),
                outbound=me in self.outbound,
                linked=lambda peer, link: self.members[me].links.linked(peer, link),
                identify=lambda der: peer_of(der, self.people.roster),
                begun=lambda sender, *stream: self.members[me].carrier.begun(sender, *stream),
            )
        )
        known = Neighborhood(
            link=lambda peer: self.members[me].links.link(peer, direct=True),
            member=lambda peer: peer in self.people.roster.by_id,
        )
        carrier = Carrier(me, known, server.take, self.limits, rate=self.rate)
        links = PeerLinks(
            lambda peer: client_context(identity, self.people.roster.by_id[peer].key),
            lambda peer, outcome: self.members[me].outcomes.setdefault(peer, []).append(outcome),
            self.limits,
            me=me,
            receive=server.admission.take_over,
            strange=server.admission.strange,
            outbound=me in self.outbound,
            carrier=carrier,
            carried=lambda peer, through: self.members[me].reached.append((peer, through)),
        )
        stack.push_async_callback(links.close)
        stack.push_async_callback(carrier.close)
        self.members[me] = Member(me, port, server, links, carrier, me in self.outbound)

    def revoke(self, peer: str) -> None:
        """Take a peer off the roster, which all members hear at once."""
        self.leave_out(peer)
        for each in self.members.values():
            each.server.review([peer], each.server.admission.limits)
            each.links.forget(peer)

    def leave_out(self, peer: str) -> None:
        """Take a peer off the roster; its connections stay."""
        roster = self.people.roster
        self.people.roster = replace(roster, entries=tuple(each for each in roster.entries if each.id != peer))


@asynccontextmanager
async def federation(
    tmp_path: Path, *, carriers: str = "cas", rate: float = math.inf, limits: Limits | None = None
) -> AsyncIterator[Federation]:
    """Run ann and bob, to whom nobody can connect, and carriers, to each of which both are connected."""
    outbound, all_ids = ["ann", "bob"], ["ann", "bob", *carriers.split()]
    made = Federation(People.at(tmp_path / "wards"), outbound, rate, limits or Limits())
    identities = {me: made.people.identity(me) for me in all_ids}
    async with AsyncExitStack() as stack:
        for me in all_ids:
            await made.add(me, {*all_ids} - {me}, identities[me], stack)
        for one in outbound:
            for other in carriers.split():
                await made.members[one].gets_through(made.members[other])
                await made.members[one].until_linked(made.members[other])
        yield made


def slice_of(seq: int) -> Transfer:
    payload = torch.arange(LENGTH, dtype=torch.float32) + seq
    share = NumberedTransfer(seq=seq, round=1, exchange=1, weight=0.5, form="float32", payload=payload)
    return Transfer(group="all", share=share)


@pytest.mark.asyncio
async def test_two_peers_to_which_nobody_can_connect_reach_each_other_through_a_third(tmp_path: Path) -> None:
    async with federation(tmp_path) as all_of:
        ann, bob, cas = all_of.members.values()
        await ann.gets_through(bob)
        assert (await bob.until_linked(ann)).carried
        assert bob.server.reached is None, "nobody has connected to it by itself"
        bob.port.keep = ann.port.keep = True
        await ann.brings(bob, slice_of(1))
        await bob.brings(ann, slice_of(2))
        for member, seq, sender in ((bob, 1, "ann"), (ann, 2, "bob")):
            ((who, got),) = member.transfers()
            assert who == sender
            assert torch.equal(got.share.payload, slice_of(seq).share.payload)
        assert ("bob", "cas") in ann.reached or ("ann", "cas") in bob.reached
        bytes_of_two_slices = 2 * 4 * LENGTH
        assert bytes_of_two_slices < cas.carrier.carried["ann", "bob"] < 1.1 * bytes_of_two_slices + 20_000
        assert cas.transfers() == []
        assert not [code for each in all_of.members.values() for code in each.port.codes]


@pytest.mark.asyncio
async def test_who_can_be_reached_after_all_is_soon_carried_no_longer(tmp_path: Path) -> None:
    async with federation(tmp_path, carriers="cas dan") as all_of:
        ann, _, cas, dan = all_of.members.values()
        await cas.gets_through(dan)
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            nowhere = f"https://127.0.0.1:{closed.getsockname()[1]}"
            frame = encode(replace(ENVELOPE, sender="ann", recipient="dan"), ACK)
            link = await ann.until_linked(dan)
            ann.links.forget("dan")
            async with asyncio.timeout(PATIENCE):
                while (found := ann.links.link("dan")) is None or not found.carried:
                    ann.links.send("dan", nowhere, *frame, both_ways=True)
                    await asyncio.sleep(0.01)
        assert found is not link
        async with asyncio.timeout(PATIENCE):
            while (found := ann.links.link("dan")) is None or found.carried:
                ann.send(dan, ACK)
                await asyncio.sleep(0.01)
        await ann.gets_through(dan)
        await ann.brings(dan, slice_of(1))
        assert cas.carrier.carried["ann", "dan"] < LENGTH


@pytest.mark.asyncio
async def test_who_listened_too_late_for_the_first_attempt_is_tried_again_though_it_has_connected(
    tmp_path: Path,
) -> None:
    """Ann's attempt comes before dan listens; dan, whose id is larger, connects to her, and would wait for callers."""
    people = People.at(tmp_path / "wards")
    ann, dan = people.identity("ann"), people.identity("dan")
    with bind_socket("127.0.0.1", 0) as taken:
        at = taken.getsockname()[1]
    links = PeerLinks(
        lambda peer: client_context(ann, people.roster.by_id["dan"].key),
        lambda peer, outcome: None,
        Limits(),
        me="ann",
        receive=lambda *message: asyncio.sleep(0, b""),
    )
    reached = asyncio.Event()
    links.send("dan", f"https://127.0.0.1:{at}", *encode(ENVELOPE, ACK), both_ways=True)
    async with asyncio.timeout(PATIENCE):
        while not links._links["dan"].attempts.failed:
            await asyncio.sleep(0.01)
        from_dan = Mock(open=True, opened=False, carried=False, since=0.0)
        links._links["dan"].attempts.improve_s = 0.05
        listening = bind_socket("127.0.0.1", at)
        async with serving(
            Port(owner="dan"), tls=server_context(dan), listening=listening, linked=lambda *link: reached.set()
        ):
            links.linked("dan", from_dan)
            await reached.wait()
            await links.close()


def test_a_direct_connection_is_tried_soon_and_then_more_and_more_rarely() -> None:
    attempts = Attempts()
    for _ in range(2):
        attempts.opened("cas")
        assert [attempts.next_improvement() for _ in range(7)] == [2, 4, 8, 16, 32, 60, 60]
        attempts.opened("dan")  # another carrier, which makes a direct connection no likelier
        assert attempts.next_improvement() == 60
        attempts.opened("")


@pytest.mark.asyncio
async def test_a_peer_that_just_starts_is_not_looked_for_through_others(tmp_path: Path) -> None:
    """The first attempt to connect to it may fail, although others are connected to it."""
    async with federation(tmp_path, carriers="cas dan") as all_of:
        ann, _, cas, dan = all_of.members.values()
        await cas.gets_through(dan)
        await cas.until_linked(dan)
        ann.links.forget("dan")
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            nowhere = f"https://127.0.0.1:{closed.getsockname()[1]}"
            frame = encode(replace(ENVELOPE, sender="ann", recipient="dan"), ACK)
            ann.links.send("dan", nowhere, *frame, both_ways=True)
            async with asyncio.timeout(PATIENCE):
                while not ann.links._links["dan"].attempts.failed:
                    await asyncio.sleep(0.01)
        ann.send(dan, ACK)
        await ann.gets_through(dan)
        assert not (await ann.until_linked(dan)).carried
        assert ("dan", "cas") not in ann.reached


@pytest.mark.asyncio
async def test_who_cannot_be_reached_tries_again_by_itself(tmp_path: Path) -> None:
    """Nobody else can open connections to such a peer, so it tries without a message to send."""
    people, port = People.at(tmp_path / "wards"), Port(owner="ann")
    ann, bob = people.identity("ann"), people.identity("bob")
    linked = asyncio.Event()
    with bind_socket("127.0.0.1", 0) as taken:
        at = taken.getsockname()[1]
    links = PeerLinks(
        lambda peer: client_context(ann, people.roster.by_id["bob"].key),
        lambda peer, outcome: None,
        Limits(backoff_max_s=0.1),
        me="ann",
        receive=lambda *message: asyncio.sleep(0, b""),
        outbound=True,
    )
    links.send("bob", f"https://127.0.0.1:{at}", *encode(ENVELOPE, ACK), both_ways=True)
    async with asyncio.timeout(PATIENCE):
        while not links._links["bob"].attempts.failed:
            await asyncio.sleep(0.01)
        listening = bind_socket("127.0.0.1", at)
        async with serving(port, tls=server_context(bob), listening=listening, linked=lambda *link: linked.set()):
            await linked.wait()
            await links.close()


@pytest.mark.asyncio
async def test_one_timer_waits_to_do_without_the_carrier_and_none_after_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However often a carried connection ends, at most one attempt at a direct one is scheduled."""
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    later = loop.call_later

    def kept(delay: float, *call: Any, **options: Any) -> asyncio.TimerHandle:
        timers.append(later(delay, *call, **options))
        return timers[-1]

    def due() -> list[asyncio.TimerHandle]:
        return [timer for timer in timers if not timer.cancelled() and timer.when() > loop.time() + 1]

    opened = 0

    async def carried(peer: str, tls: object, attempts: Attempts, *_: object) -> Attempts:
        nonlocal opened
        opened += 1
        attempts.opened("cas")
        return attempts

    monkeypatch.setattr(loop, "call_later", kept)
    links = PeerLinks(
        lambda peer: ssl.create_default_context(),
        lambda peer, outcome: None,
        Limits(),
        me="ann",
        receive=lambda *message: asyncio.sleep(0, b""),
        outbound=True,
    )
    monkeypatch.setattr(links._opener, "open", carried)
    monkeypatch.setattr(links, "_run", lambda *_: asyncio.sleep(0))  # it ends at once
    async with asyncio.timeout(PATIENCE):
        while opened < 4:
            links.send("bob", "https://127.0.0.1:1", *encode(ENVELOPE, ACK), both_ways=True)
            await asyncio.sleep(0.01)
    assert len(due()) == 1
    await links.close()
    assert not due()


@pytest.mark.asyncio
async def test_when_the_carrier_ends_another_one_takes_over(tmp_path: Path) -> None:
    async with federation(tmp_path, carriers="cas dan") as all_of:
        ann, bob, cas, dan = all_of.members.values()
        await ann.gets_through(bob)
        first = cas if cas.carrier.carried else dan
        other = dan if first is cas else cas
        await first.server.stop()
        await ann.gets_through(bob)
        await bob.gets_through(ann)
        assert other.carrier.carried["ann", "bob"]


def test_both_ask_the_same_peer_first_and_pairs_are_spread() -> None:
    known = Neighborhood(link=lambda peer: object(), member=lambda peer: True)  # type: ignore[arg-type,return-value]
    of = {me: Carrier(me, known, lambda *_: None, Limits(), rate=1.0) for me in (f"peer{n}" for n in range(30))}
    first = {(a, b): of[a].order(b, of)[0] for a in of for b in of if a != b}
    assert all(first[a, b] == first[b, a] not in (a, b) for a, b in first)
    assert len(set(first.values())) == len(of)


@pytest.mark.parametrize(
    ("rate", "revoked", "why"), [(0.0, "", "it carries nothing"), (math.inf, "bob", "it knows no such peer")]
)
@pytest.mark.asyncio
async def test_a_peer_may_refuse_to_carry(rate: float, revoked: str, why: str, tmp_path: Path) -> None:
    async with federation(tmp_path, rate=rate) as all_of:
        ann, bob, cas = all_of.members.values()
        if revoked:
            all_of.leave_out(revoked)
        else:
            ann.send(bob, ACK)
            await asyncio.sleep(0.1)
            assert isinstance(ann.outcomes["bob"][0], LinkDown)
        stream = await (await ann.until_linked(cas)).streams.begin(CARRY, "bob")
        assert len(await asyncio.wait_for(stream.read(), PATIENCE)) == 0
        assert stream.why == why
        assert not cas.carrier.carried
        if not revoked:
            async with asyncio.timeout(PATIENCE):
                while not isinstance(down := ann.outcomes["bob"][-1], LinkDown) or why not in down.reason:
                    ann.send(bob, ACK)
                    await asyncio.sleep(0.01)
            assert down.reason.endswith(f"(cas: {why})")


@pytest.mark.asyncio
async def test_revoking_one_of_the_two_ends_what_is_carried_at_once(tmp_path: Path) -> None:
    async with federation(tmp_path, limits=Limits(farewell_s=10 * PATIENCE)) as all_of:
        ann, bob, cas = all_of.members.values()
        await ann.gets_through(bob)
        await bob.until_linked(ann)
        all_of.revoke("bob")
        async with asyncio.timeout(PATIENCE):
            while ann.links.link("bob") is not None or cas.carrier.under_way:
                await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_who_is_carried_proves_its_own_key(tmp_path: Path) -> None:
    """The carrier may claim what it likes about where a stream comes from."""
    async with federation(tmp_path) as all_of:
        _ann, bob, cas = all_of.members.values()
        stream = await (await cas.until_linked(bob)).streams.begin(CARRIED, "ann")
        await stream.write(b"GET /v2/link HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            while len(await stream.read()):
                pass
        await bob.port.until(lambda: "tls_refused" in bob.port.codes or "handshake_cut" in bob.port.codes)
        assert "ann" not in [sender for sender, _, _ in bob.port.delivered]


@pytest.mark.asyncio
async def test_the_rate_of_a_carrier_is_kept(tmp_path: Path) -> None:
    rate = 4e6
    async with federation(tmp_path, rate=rate) as all_of:
        ann, bob, cas = all_of.members.values()
        await ann.gets_through(bob)
        clock = asyncio.get_running_loop().time
        began, before = clock(), cas.carrier.carried["ann", "bob"]
        await ann.brings(bob, slice_of(1))
        carried = cas.carrier.carried["ann", "bob"] - before
        assert clock() - began >= (carried - 0.2 * rate) / rate


@pytest.mark.asyncio
async def test_bytes_for_which_there_was_no_room_end_the_connection(tmp_path: Path) -> None:
    async with federation(tmp_path) as all_of:
        ann, bob, cas = all_of.members.values()
        await ann.gets_through(bob)
        link = await ann.until_linked(cas)
        stream = await link.streams.begin(CARRY, "bob")
        with suppress(LinkLostError):
            for _ in range(40):
                await link._write(BYTES, stream.number, bytes(60_000))
        await cas.port.until(lambda: "unknown_route" in cas.port.codes)
        assert "room" in cas.port.refusals[-1][2]


@pytest.mark.asyncio
async def test_streams_of_one_peer_are_limited_by_the_second(tmp_path: Path) -> None:
    async with federation(tmp_path, limits=Limits(streams_per_second=2.0)) as all_of:
        ann, _bob, cas = all_of.members.values()
        link = await ann.until_linked(cas)
        streams = [await link.streams.begin(CARRY, "bob") for _ in range(4)]
        assert len(await asyncio.wait_for(streams[3].read(), PATIENCE)) == 0
        assert streams[3].why == "it was asked too often"


@pytest.mark.parametrize(("carry", "why"), [(None, 3), (0, 2)], ids=["no connection to cas", "carry: 0"])
def test_a_running_peer_says_why_it_does_not_carry(carry: float | None, why: int, tmp_path: Path) -> None:
    with bob_at(tmp_path, carry=carry) as bob:

        async def ask() -> bytes:
            async with ClientSession() as session:
                url = bob.people.roster.by_id["bob"].address + LINK_ROUTE
                async with session.ws_connect(url, ssl=bob.tls(bob.keys["ann"])) as opened:
                    await opened.send_bytes(struct.pack("<BI", CARRY, 0) + b"cas")
                    while True:  # bob may have messages of his own
                        record = await asyncio.wait_for(opened.receive_bytes(), PATIENCE)
                        if record[0] == END:
                            return record

        assert bob.peer.wait(ask()) == struct.pack("<BIB", END, 0, why)
        assert bob.peer.line("reachable").text.startswith(f"reachable at {bob.people.roster.by_id['bob'].address}: ")


@pytest.mark.asyncio
async def test_streams_of_one_peer_are_limited(tmp_path: Path) -> None:
    limits = Limits(streams_per_peer=3, streams_per_second=100.0)
    async with federation(tmp_path, limits=limits) as all_of:
        ann, _bob, cas = all_of.members.values()
        link = await ann.until_linked(cas)
        streams = [await link.streams.begin(CARRY, "bob") for _ in range(5)]
        for stream in streams[3:]:
            assert len(await asyncio.wait_for(stream.read(), PATIENCE)) == 0
            assert stream.why == "it carries too many connections"
