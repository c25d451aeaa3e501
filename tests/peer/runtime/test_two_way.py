"""One connection for both directions: messages and answers of both sides share it, and nothing else is accepted."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
import torch
from aiohttp import (
    ClientSession,
    ClientWebSocketResponse,
    ServerDisconnectedError,
    WSMessage,
    WSMsgType,
    WSServerHandshakeError,
    web,
)

from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.runtime.client import PeerLinks
from fedpeer.peer.runtime.identity import client_context, server_context
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.opener import LinkOpener
from fedpeer.peer.runtime.outcomes import DeliveryReceipt, LinkDown, Outcome
from fedpeer.peer.runtime.server import LINK_ROUTE, PeerServer
from fedpeer.peer.runtime.streams import CARRY
from fedpeer.peer.runtime.two_way import PIECE_BYTES, Chunks, TwoWayLink, has_stalled
from fedpeer.peer.wire.codec import encode
from fedpeer.peer.wire.message_policy import MessagePolicy
from fedpeer.peer.wire.messages import Message, RejectMessage, RosterNews, Transfer
from fedpeer.rejection import Rejection
from tests.peer.frames import ENVELOPE, MESSAGES, POLICY, framed, spec
from tests.peer.runtime.people import People
from tests.peer.runtime.port import PATIENCE, Port, Reports, serving

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quick_loop")]

#: A slice of many pieces.
LENGTH = 500_000
BEGIN, MORE, ANSWER = 1, 2, 3


@dataclass
class Side:
    """One peer: its port, and its links, which report to `outcomes`."""

    id: str
    other: str
    port: Port
    server: PeerServer
    links: PeerLinks
    reports: Reports

    def send(self, to: Side, message: Message) -> None:
        envelope = replace(ENVELOPE, sender=self.id, recipient=to.id)
        self.links.send(to.id, to.port.url, *encode(envelope, message), both_ways=True)

    async def first(self, count: int) -> list[Outcome]:
        return await self.reports.first(count)

    @property
    def outcomes(self) -> list[Outcome]:
        return self.reports.outcomes

    @property
    def link(self) -> TwoWayLink | None:
        return self.links._links[self.other].two_way if self.other in self.links._links else None

    async def until_linked(self) -> TwoWayLink:
        async with asyncio.timeout(PATIENCE):
            while self.link is None or not self.link.open:
                await asyncio.sleep(0)
        return self.link

    @property
    def connections(self) -> int:
        """Number of connections that the other side opened."""
        self.server._listener._forget_closed()
        return len(self.server._listener._open)


@asynccontextmanager
async def both(tmp_path: Path, limits: Limits | None = None) -> AsyncIterator[tuple[Side, Side]]:
    """Run ann and bob, who know each other's keys."""
    people, sides, limits = People.at(tmp_path / "wards"), dict[str, Side](), limits or Limits()
    identities = {me: people.identity(me) for me in ("ann", "bob")}
    async with AsyncExitStack() as stack:
        for me, other in (("ann", "bob"), ("bob", "ann")):
            groups = {"all": spec(length=LENGTH, neighbors=frozenset({other}))}
            policy = replace(POLICY, me=me, groups=groups, consensus_by_group={})
            port, identity = Port(policy=replace(policy, other=None), owner=other), identities[me]

            def linked(peer: str, link: TwoWayLink, me: str = me) -> None:
                sides[me].links.linked(peer, link)

            server = await stack.enter_async_context(serving(port, limits, server_context(identity), linked=linked))
            reports, tls = Reports(other), client_context(identity, people.roster.by_id[other].key)
            links = PeerLinks(
                lambda peer, tls=tls: tls,  # type: ignore[misc]
                reports,
                limits,
                me=me,
                receive=server.admission.take_over,
                strange=server.admission.strange,
            )
            stack.push_async_callback(links.close)
            sides[me] = Side(me, other, port, server, links, reports)
        yield sides["ann"], sides["bob"]


def slice_of(seq: int) -> Transfer:
    payload = torch.arange(LENGTH, dtype=torch.float32) + seq
    share = NumberedTransfer(seq=seq, round=1, exchange=1, weight=0.5, form="float32", payload=payload)
    return Transfer(group="all", share=share)


def delivered(port: Port) -> list[Message]:
    return [message for _, _, message in port.delivered]


async def test_one_connection_carries_the_messages_of_both(tmp_path: Path) -> None:
    async with both(tmp_path) as (ann, bob):
        ann.send(bob, MESSAGES["ack"])
        await ann.first(1)
        link = await bob.until_linked()
        assert not link.opened
        posts = bob.connections
        bob.send(ann, MESSAGES["ack"])
        ann.send(bob, MESSAGES["hello"])
        assert all(isinstance(each, DeliveryReceipt) for each in [*await bob.first(1), *await ann.first(2)])
        assert delivered(ann.port) == [MESSAGES["ack"]]
        assert delivered(bob.port) == [MESSAGES["ack"], MESSAGES["hello"]]
        assert ann.connections == 0, "bob opened none"
        assert bob.connections == posts
        assert ann.port.delivered[0][0] == "bob"


async def test_slices_both_ways_at_once_arrive_whole_and_a_short_message_overtakes_them(tmp_path: Path) -> None:
    async with both(tmp_path) as (ann, bob):
        ann.send(bob, MESSAGES["ack"])
        await bob.until_linked()
        await ann.first(1)
        ann.port.keep = bob.port.keep = True
        ann.send(bob, slice_of(1))
        bob.send(ann, slice_of(2))
        ann.send(bob, MESSAGES["hello"])
        await bob.first(1)
        await ann.first(3)
        for port, seq in ((bob.port, 1), (ann.port, 2)):
            (got,) = (each for each in delivered(port) if isinstance(each, Transfer))
            assert torch.equal(got.share.payload, slice_of(seq).share.payload)
        assert delivered(bob.port)[1] == MESSAGES["hello"], "the slice began before it, and arrived after it"
        assert (ann.connections, len(bob.port.refusals)) == (0, 0)


async def test_a_rejection_is_an_answer_like_any_other(tmp_path: Path) -> None:
    async with both(tmp_path) as (ann, bob):
        ann.send(bob, MESSAGES["ack"])
        await bob.until_linked()
        await ann.first(1)
        bob.port.policy = replace(bob.port.policy, groups={})
        ann.send(bob, slice_of(1))
        rejected = (await ann.first(2))[1]
        assert isinstance(rejected, RejectMessage)
        assert rejected.code == bob.port.codes[0]
        ann.send(bob, MESSAGES["hello"])
        assert isinstance((await ann.first(3))[2], DeliveryReceipt), "the connection goes on"


async def test_a_long_answer_arrives_whole(tmp_path: Path) -> None:
    news = RosterNews(number=7, text=bytes(range(256)) * 1000)
    async with both(tmp_path) as (ann, bob):
        ann.send(bob, MESSAGES["ack"])
        await bob.until_linked()
        await ann.first(1)
        bob.port.owner = Rejection("unknown_peer")
        bob.server.admission.host = replace(bob.server.admission.host, farewell=lambda der: news)
        ann.send(bob, MESSAGES["hello"])
        assert (await ann.first(2))[1] == news


async def test_if_both_open_one_the_smaller_ids_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpeer.peer.runtime.client._OTHER_OPENS_S", 0.0)
    async with both(tmp_path) as (ann, bob):
        ann.send(bob, MESSAGES["ack"])
        bob.send(ann, MESSAGES["ack"])
        await ann.first(1)
        await bob.first(1)
        async with asyncio.timeout(PATIENCE):
            while not (ann.link and ann.link.open and ann.link.opened and bob.link and not bob.link.opened):
                await asyncio.sleep(0.01)
        for message in (MESSAGES["hello"], MESSAGES["ack"]):
            bob.send(ann, message)
        await bob.first(3)
        assert not [each for each in ann.outcomes + bob.outcomes if not isinstance(each, DeliveryReceipt)]


async def test_two_that_meet_open_one_connection_and_post_nothing(tmp_path: Path) -> None:
    async with both(tmp_path) as (ann, bob):
        ann.send(bob, MESSAGES["hello"])
        bob.send(ann, MESSAGES["hello"])
        ann.send(bob, slice_of(1))
        assert all(isinstance(each, DeliveryReceipt) for each in [*await ann.first(2), *await bob.first(1)])
        assert (ann.connections, bob.connections) == (0, 1)


async def test_who_has_the_larger_id_opens_it_after_a_moment_if_the_other_does_not(tmp_path: Path) -> None:
    async with both(tmp_path) as (ann, bob):
        bob.send(ann, MESSAGES["hello"])
        assert isinstance((await bob.first(1))[0], DeliveryReceipt)
        assert (ann.connections, bob.connections) == (1, 0)
        assert bob.link is not None
        assert bob.link.opened


async def test_a_peer_of_an_earlier_release_gets_posts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(self: PeerServer, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=404)

    monkeypatch.setattr(PeerServer, "_linked", unknown)
    async with both(tmp_path) as (ann, bob):
        ann.send(bob, MESSAGES["hello"])
        assert isinstance((await ann.first(1))[0], DeliveryReceipt)
        assert delivered(bob.port) == [MESSAGES["hello"]]
        assert ann.link is None


async def test_who_was_revoked_hears_of_it_over_the_connection_that_the_other_opened(tmp_path: Path) -> None:
    """Otherwise it would have to connect anew without knowing why; the other peers may have ended by then."""
    news = RosterNews(number=7, text=b"bob is revoked")
    async with both(tmp_path) as (ann, bob):
        ann.send(bob, MESSAGES["ack"])
        await ann.first(1)
        await bob.until_linked()
        ann.port.owner = Rejection("unknown_peer")
        ann.server.admission.host = replace(ann.server.admission.host, farewell=lambda der: news)
        ann.links.forget("bob")
        bob.send(ann, MESSAGES["hello"])
        assert await bob.first(1) == [news]
        assert ann.connections == 0, "over the same connection"


async def test_a_connection_to_a_peer_that_was_forgotten_ends_soon(tmp_path: Path) -> None:
    async with both(tmp_path, Limits(farewell_s=0.05)) as (ann, bob):
        ann.send(bob, MESSAGES["ack"])
        await ann.first(1)
        link = await bob.until_linked()
        ann.links.forget("bob")
        async with asyncio.timeout(PATIENCE):
            while link.open:
                await asyncio.sleep(0.01)


async def test_where_the_first_connection_does_not_come_posts_are_tried_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost packet may hold up a handshake for seconds."""
    monkeypatch.setattr("fedpeer.peer.runtime.client._MEET_S", 0.0)
    stuck = asyncio.Event()

    async def slow(self: LinkOpener, *args: object) -> None:
        await stuck.wait()

    monkeypatch.setattr(LinkOpener, "open", slow)
    async with both(tmp_path) as (ann, bob):
        ann.send(bob, MESSAGES["ack"])
        await asyncio.sleep(0)
        ann.send(bob, MESSAGES["hello"])
        assert [type(each) for each in await ann.first(2)] == [DeliveryReceipt] * 2
        assert {type(each) for each in delivered(bob.port)} == {type(MESSAGES["ack"]), type(MESSAGES["hello"])}


async def test_a_post_that_cannot_connect_goes_over_the_connection_that_comes_meanwhile(tmp_path: Path) -> None:
    """Otherwise messages to a peer behind a NAT would wait for 5 s to connect, and it would seem dead at its start."""
    patient = Limits(connect_s=10 * PATIENCE, handshake_s=10 * PATIENCE)
    async with both(tmp_path, patient) as (ann, bob):
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            nowhere = f"https://127.0.0.1:{deaf.getsockname()[1]}"
            envelope = replace(ENVELOPE, sender="bob", recipient="ann")
            bob.links.send("ann", nowhere, *encode(envelope, MESSAGES["hello"]))
            ann.send(bob, MESSAGES["ack"])
            assert isinstance((await bob.first(1))[0], DeliveryReceipt)
            assert delivered(ann.port) == [MESSAGES["hello"]]


async def test_what_is_under_way_when_it_ends_is_reported_lost_and_posts_go_on(tmp_path: Path) -> None:
    async with both(tmp_path) as (ann, bob):
        ann.send(bob, MESSAGES["ack"])
        link = await bob.until_linked()
        await ann.first(1)
        holding = asyncio.Event()
        take = bob.server.admission.host.deliver
        bob.server.admission.host = replace(bob.server.admission.host, policy=_stopped(holding, bob))
        ann.send(bob, slice_of(1))
        await asyncio.wait_for(holding.wait(), PATIENCE)
        await link.close()
        assert isinstance((await ann.first(2))[1], LinkDown)
        bob.server.admission.host = replace(bob.server.admission.host, deliver=take)
        async with asyncio.timeout(PATIENCE):
            while not isinstance(ann.outcomes[-1], DeliveryReceipt):
                ann.send(bob, MESSAGES["hello"])
                await ann.first(len(ann.outcomes) + 1)
        await bob.port.until(lambda: "body_truncated" in bob.port.codes)
        assert all(channel.lent == 0 for peer in bob.port.pool._peers.values() for channel in peer.values())


def _stopped(holding: asyncio.Event, side: Side) -> Callable[[str | None], MessagePolicy]:
    """Return a policy that notes when a message has begun to arrive."""
    policy = side.server.admission.host.policy

    def noted(peer: str | None) -> MessagePolicy:
        holding.set()
        return policy(peer)

    return noted


# ---------------------------------------------------------------------------------------------- what no peer does


@asynccontextmanager
async def by_hand(
    tmp_path: Path, port: Port | None = None, limits: Limits | None = None
) -> AsyncIterator[tuple[Port, ClientWebSocketResponse]]:
    """Open a connection to bob with ann's keys, and yield his port and the WebSocket."""
    people, port = People.at(tmp_path / "wards"), port or Port()
    ann, bob = people.identity("ann"), people.identity("bob")
    tls = client_context(ann, people.roster.by_id["bob"].key)
    async with (
        serving(port, limits, tls=server_context(bob)),
        ClientSession() as session,
        session.ws_connect(f"{port.url}{LINK_ROUTE}", ssl=tls) as opened,
    ):
        yield port, opened


def begin(number: int, body: bytes, length: int | None = None) -> bytes:
    return struct.pack("<BIQ", BEGIN, number, len(body) if length is None else length) + body


@pytest.mark.parametrize(
    "record",
    [b"", b"\x01", struct.pack("<BI", BEGIN, 1), struct.pack("<BI", 19, 1), struct.pack("<BIQ", BEGIN, 1, 9)[:9]],
    ids=["empty", "no head", "no length", "unknown kind", "half a length"],
)
async def test_what_is_no_record_ends_the_connection_and_is_counted(record: bytes, tmp_path: Path) -> None:
    async with by_hand(tmp_path) as (port, opened):
        await opened.send_bytes(record)
        assert (await asyncio.wait_for(opened.receive(), PATIENCE)).type is WSMsgType.CLOSE
        assert port.codes == ["unknown_route"]
        assert port.refusals[0][1] == "ann"


async def test_text_ends_the_connection(tmp_path: Path) -> None:
    async with by_hand(tmp_path) as (_, opened):
        await opened.send_str("hello")
        assert (await asyncio.wait_for(opened.receive(), PATIENCE)).type is WSMsgType.CLOSE


async def test_a_ping_just_before_the_end_is_no_fault_of_ours(tmp_path: Path) -> None:
    """Both are there when the peer reads, as after it stood still: nobody is left to take the pong."""
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with both(tmp_path) as (ann, bob):
        ann.send(bob, RosterNews(number=1, text=b"{}"))
        opened, taken = (await ann.until_linked())._socket, await bob.until_linked()
        assert isinstance(opened, ClientWebSocketResponse)
        await opened.ping()
        connection = opened._response.connection
        assert connection is not None
        assert connection.transport is not None
        connection.transport.close()
        async with asyncio.timeout(PATIENCE):
            while taken.open:
                await asyncio.sleep(0)
    assert not faults


async def test_a_message_is_checked_as_a_post_is(tmp_path: Path) -> None:
    good = framed(MESSAGES["ack"])
    async with by_hand(tmp_path) as (port, opened):
        for number, (body, code) in enumerate(
            [(good, None), (b"x" * 40, "not_fedpeer"), (good + b"x", "trailing_bytes"), (good, None)]
        ):
            await opened.send_bytes(begin(number, body))
            answer = await asyncio.wait_for(opened.receive_bytes(), PATIENCE)
            assert struct.unpack_from("<BI", answer) == (ANSWER, number)
            assert (len(answer) > 5) == (code is not None)
            assert port.codes[-1:] == ([] if code is None and not port.codes else [code or "trailing_bytes"])
        await opened.send_bytes(begin(9, b"", 1 << 40))
        await asyncio.wait_for(opened.receive_bytes(), PATIENCE)
        assert port.codes[-1] == "body_too_large"
        assert len(delivered(port)) == 2


async def test_bytes_of_no_message_are_bounded(tmp_path: Path) -> None:
    """Some may follow a rejection that has not arrived yet; a flood of them ends the connection."""
    slow = Limits(requests_per_second=10.0)  # less than the slowest machine sends
    async with by_hand(tmp_path, limits=slow) as (port, opened):
        for _ in range(5):
            await opened.send_bytes(struct.pack("<BI", MORE, 1) + b"x")
        await opened.send_bytes(begin(2, framed(MESSAGES["ack"])))
        assert await asyncio.wait_for(opened.receive_bytes(), PATIENCE) == struct.pack("<BI", ANSWER, 2)
        with suppress(ConnectionError):
            for _ in range(1000):
                await opened.send_bytes(struct.pack("<BI", MORE, 1) + b"x")
                await asyncio.sleep(0)  # sending alone does not let bob's side run
        assert (await asyncio.wait_for(opened.receive(), PATIENCE)).type is WSMsgType.CLOSE
        assert port.codes == ["unknown_route"]


async def test_a_record_is_no_longer_than_a_piece(tmp_path: Path) -> None:
    async with by_hand(tmp_path) as (_, opened):
        await opened.send_bytes(begin(1, bytes(2 * PIECE_BYTES)))
        assert (await asyncio.wait_for(opened.receive(), PATIENCE)).type is WSMsgType.CLOSE


async def test_who_is_no_member_opens_none(tmp_path: Path) -> None:
    with pytest.raises(ServerDisconnectedError):
        async with by_hand(tmp_path, Port(owner=Rejection("unknown_peer"))):
            pass


async def test_whose_messages_are_not_taken_opens_none(tmp_path: Path) -> None:
    port = Port(listens=False)
    with pytest.raises(WSServerHandshakeError):
        async with by_hand(tmp_path, port):
            pass
    assert port.codes == ["too_many_requests"]


async def test_a_connection_is_not_stalled_while_the_other_machine_acknowledges(tmp_path: Path) -> None:
    """A peer that is busy does not make another one open further connections."""
    async with both(tmp_path) as (ann, bob):
        ann.send(bob, MESSAGES["ack"])
        await bob.until_linked()
        await ann.first(1)
        link = await ann.until_linked()
        assert not link.stalled
        ann.send(bob, slice_of(1))
        await ann.first(2)
        assert bob.connections == 1


@dataclass
class Kernel:
    """A socket with these packets not acknowledged, sent again; milliseconds since data left, and since one came."""

    told: tuple[int, int, int, int]
    family: int = socket.AF_INET

    def getsockopt(self, level: int, option: int, length: int) -> bytes:
        unacknowledged, again, sent_ms, silent_ms = self.told
        return bytes(24) + struct.pack("<9I", unacknowledged, 0, 0, again, 0, sent_ms, 0, 0, silent_ms)


@pytest.mark.parametrize(
    ("told", "stalled"),
    [
        ((0, 0, 5000, 5000), False),  # idle
        ((1, 0, 2, 5000), False),  # it was idle, and a message has just left
        ((3, 0, 1, 20), False),  # acknowledgements come
        ((1, 0, 150, 150), True),  # the last packet was lost
        ((3, 1, 20, 300), True),  # and has been sent again
    ],
)
async def test_what_left_on_an_idle_connection_has_time_to_arrive(
    told: tuple[int, int, int, int], stalled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "TCP_INFO", 11, raising=False)
    assert has_stalled(cast("socket.socket", Kernel(told))) is stalled


class Unread:
    """A WebSocket whose other side reads nothing: these records arrive, and nothing leaves."""

    closed = False

    def __init__(self, records: list[bytes]) -> None:
        self._records, self.sent, self._never = records, 0, asyncio.Event()

    def get_extra_info(self, name: str) -> None:
        return None

    async def send_bytes(self, data: bytes) -> None:
        self.sent += 1
        await self._never.wait()

    async def close(self) -> None:
        self.closed = True

    async def __aiter__(self) -> AsyncIterator[WSMessage]:
        for record in self._records:
            await asyncio.sleep(0)
            yield WSMessage(WSMsgType.BINARY, record, None)


async def test_an_answer_that_nobody_reads_holds_up_nothing_that_arrives() -> None:
    """Otherwise two peers that send each other much would each wait for the other to read."""
    taken: list[int] = []

    async def receive(length: int, chunks: Chunks) -> bytes:
        taken.append(length)
        return b""

    unread = Unread([begin(number, bytes(number)) for number in range(1, 6)])
    link = TwoWayLink(unread, receive, lambda why: None, Limits(), opened=False)  # type: ignore[arg-type]
    await asyncio.wait_for(link.run(), PATIENCE)
    assert taken == [1, 2, 3, 4, 5]


class Ended(Unread):
    """A WebSocket whose other side is gone: what is written is lost."""

    async def send_bytes(self, data: bytes) -> None:
        self.sent += 1


async def test_a_stream_ends_with_the_connection_that_it_is_in() -> None:
    async def receive(length: int, chunks: Chunks) -> bytes:
        return b""

    link = TwoWayLink(Ended([]), receive, lambda why: None, Limits(), opened=True)  # type: ignore[arg-type]
    stream = await link.streams.begin(CARRY, "bob")
    await link.run()
    assert len(await asyncio.wait_for(stream.read(), PATIENCE)) == 0


async def test_a_peer_that_takes_no_answers_is_closed() -> None:
    strange: list[str] = []

    async def receive(length: int, chunks: Chunks) -> bytes:
        return b""

    unread = Unread([begin(number, b"x") for number in range(2000)])
    link = TwoWayLink(unread, receive, strange.append, Limits(), opened=False)  # type: ignore[arg-type]
    await asyncio.wait_for(link.run(), PATIENCE)
    assert strange == ["it takes no answers"]
    assert unread.sent < 300
