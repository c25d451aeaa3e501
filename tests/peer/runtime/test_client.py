"""Links: a message arrives at the right peer or is reported lost; none waits forever or behind a model."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.runtime.client import BULK_BYTES, PeerLinks
from fedpeer.peer.runtime.identity import client_context, put_out, server_context
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.listener import bind_socket
from fedpeer.peer.runtime.outcomes import DeliveryReceipt, LinkDown, Outcome
from fedpeer.peer.runtime.posts import Posts
from fedpeer.peer.wire.codec import encode
from fedpeer.peer.wire.consensus_messages import Certificate, Commit, HeartbeatReply, Progress, Proposal
from fedpeer.peer.wire.messages import Ack, ConsensusMessage, Message, RejectMessage, RosterNews, Transfer
from fedpeer.peer.wire.roster import expel, to_bytes
from fedpeer.rejection import Rejection
from tests.peer.frames import ENVELOPE, MESSAGES, POLICY, framed, spec
from tests.peer.runtime.people import People
from tests.peer.runtime.port import Port, Reports, serving

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quick_loop")]


@asynccontextmanager
async def links_of_ann(
    limits: Limits | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[PeerLinks, Reports]]:
    reports = Reports()
    links = PeerLinks((lambda peer: tls) if tls is not None else None, reports, limits)
    try:
        yield links, reports
    finally:
        await links.close()


def send(links: PeerLinks, url: str, message: Message) -> None:
    links.send("bob", url, *encode(ENVELOPE, message))


#: Made once, outside a test's event loop: filling so much memory takes too long there while other programs run.
NUMBERS = torch.arange(10_000_000, dtype=torch.float32)


def big(length: int, seq: int = 1) -> Transfer:
    payload = NUMBERS[:length]
    share = NumberedTransfer(seq=seq, round=1, exchange=1, weight=0.5, form="float32", payload=payload)
    return Transfer(group="all", share=share)


def with_length(length: int) -> Port:
    return Port(policy=replace(POLICY, groups={"all": spec(length=length)}))


@asynccontextmanager
async def somebody(
    speak: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Run a server that is no peer and yield its URL; its connections end with it."""
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            await speak(reader, writer)
        except (asyncio.CancelledError, ConnectionError, EOFError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks)


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read everything and answer nothing."""
    while await reader.read(65536):
        pass


# -------------------------------------------------------------------------------------------------------- what arrives


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return bob's context as a server and ann's as a client."""
    people = People.at(folder / "wards")
    bob, ann = people.identity("bob"), people.identity("ann")
    return server_context(bob), client_context(ann, people.roster.by_id["bob"].key)


async def test_a_fault_of_ours_in_sending_one_frame_costs_that_frame_and_not_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The frame used to count as being sent forever, and its queue as busy, so that no later message left."""
    failed, post = asyncio.Event(), Posts.post

    async def fail(*_: object) -> Outcome:
        monkeypatch.setattr(Posts, "post", post)
        failed.set()
        raise KeyError("a fault")

    monkeypatch.setattr(Posts, "post", fail)
    port = Port()
    async with serving(port), links_of_ann() as (links, reports):
        send(links, port.url, MESSAGES["ack"])
        (failing,) = links._links["bob"].small.tasks
        await failed.wait()
        assert isinstance((await asyncio.gather(failing, return_exceptions=True))[0], KeyError)
        send(links, port.url, MESSAGES["ack"])
        assert isinstance((await reports.first(1))[0], DeliveryReceipt)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
async def test_every_kind_of_message_arrives_and_is_reported(secure: bool, tmp_path: Path) -> None:
    port, server, client = Port(), None, None
    if secure:
        server, client = await asyncio.to_thread(contexts, tmp_path)  # making certificates would block the loop
    async with serving(port, tls=server), links_of_ann(tls=client) as (links, reports):
        for message in MESSAGES.values():
            send(links, port.url, message)
        outcomes = await reports.first(len(MESSAGES))
    assert [type(outcome) for outcome in outcomes] == [DeliveryReceipt] * len(MESSAGES)
    sizes = [len(framed(message)) for message in MESSAGES.values()]
    assert [outcome.bytes for outcome in outcomes if isinstance(outcome, DeliveryReceipt)] == sizes
    assert [framed(message) for _, _, message in port.delivered] == [framed(message) for message in MESSAGES.values()]


async def test_a_large_tensor_arrives_whole() -> None:
    port = with_length(2_000_003)
    async with serving(port), links_of_ann() as (links, reports):
        send(links, port.url, big(2_000_003))
        assert isinstance((await reports.first(1))[0], DeliveryReceipt)
    got = port.delivered[0][2]
    assert isinstance(got, Transfer)
    assert torch.equal(got.share.payload, big(2_000_003).share.payload)


async def small_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer small requests, and read nothing of a model."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        if length > 10_000:
            await asyncio.Event().wait()
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")


async def test_small_messages_overtake_bulk() -> None:
    """The other side reads nothing of a model, and acknowledgements still pass on a connection of their own."""
    async with somebody(small_only) as url, links_of_ann() as (links, reports):
        send(links, url, big(5_000_000))
        for taken in range(5):
            send(links, url, Ack(group="all", taken=taken, round=1))
        assert [type(outcome) for outcome in await reports.first(5)] == [DeliveryReceipt] * 5


async def test_a_consensus_message_does_not_wait_behind_a_model_however_many_signatures_it_has() -> None:
    roll = tuple((f"peer{number:03}", bytes(64)) for number in range(100))
    ballot = ConsensusMessage(group="all", message=Commit(Certificate(Proposal(2, 3, 1, b"m" * 32), roll)))
    head, tail = encode(ENVELOPE, ballot)
    assert BULK_BYTES < len(tail) < 10_000
    async with somebody(small_only) as url, links_of_ann() as (links, reports):
        send(links, url, big(5_000_000))
        links.send("bob", url, head, tail, urgent=True)
        assert [type(outcome) for outcome in await reports.first(1)] == [DeliveryReceipt]


async def test_a_heartbeat_goes_before_all_that_waits() -> None:
    """If there is no time to send everything, a message that waits in the queue is old before it leaves."""
    head, tail = encode(ENVELOPE, ConsensusMessage(group="all", message=HeartbeatReply(3, Progress())))
    async with somebody(small_only) as url, links_of_ann() as (links, reports):
        for taken in range(60):
            send(links, url, Ack(group="all", taken=1000 + taken, round=1))
        links.send("bob", url, head, tail, urgent=True)
        outcomes = [each for each in await reports.first(61) if isinstance(each, DeliveryReceipt)]
    assert len(outcomes) == 61
    assert outcomes[0].bytes == len(head) + len(tail)


# -------------------------------------------------------------------------------------------------------- what does not


@pytest.mark.parametrize("length", [1, 3_000_000], ids=["small", "large"])
async def test_a_refusal_is_reported_by_name(length: int) -> None:
    """This also holds if most of the body was not read."""
    port = with_length(7)
    async with serving(port), links_of_ann() as (links, reports):
        send(links, port.url, big(length))
        (outcome,) = await reports.first(1)
    assert isinstance(outcome, RejectMessage)
    assert outcome.code == ("wrong_shape" if length == 1 else "body_too_large")
    assert port.codes == [outcome.code]


async def test_nobody_there_is_reported_and_tried_again_after_a_rest() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    limits, port = Limits(backoff_s=0.1, backoff_max_s=0.1), Port()
    async with links_of_ann(limits) as (links, reports):
        url = f"http://127.0.0.1:{number}"
        send(links, url, MESSAGES["ack"])
        send(links, url, MESSAGES["fetch"])
        first, second = await reports.first(2)
        assert isinstance(first, LinkDown)
        assert "refused" in first.reason.lower() or "connect" in first.reason.lower()
        assert first.refused, "whoever waits for it need not wait"
        assert second == LinkDown(first.reason), "not tried so soon: for the same reason"
        async with serving(port):
            for count in itertools.count(3):
                send(links, port.url, MESSAGES["ack"])
                if isinstance((await reports.first(count))[-1], DeliveryReceipt):
                    break
    assert len(port.delivered) == 1


async def test_a_peer_that_speaks_is_answered_at_once_and_not_after_the_rest() -> None:
    """Such a peer has just started, and a dropped answer, such as a Hello, is sent again only many ticks later."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    port = Port()
    async with links_of_ann(Limits(backoff_s=3600.0, backoff_max_s=3600.0)) as (links, reports):
        send(links, url, MESSAGES["ack"])
        await reports.first(1)
        async with serving(port):
            send(links, port.url, MESSAGES["ack"])
            assert isinstance((await reports.first(2))[-1], LinkDown), "it rests"
            links.received("bob")
            send(links, port.url, MESSAGES["fetch"])
            assert isinstance((await reports.first(3))[-1], DeliveryReceipt)


async def test_who_speaks_and_cannot_be_reached_is_tried_again_once_in_a_rest() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    port = Port()
    async with links_of_ann(Limits(backoff_s=3600.0, backoff_max_s=3600.0)) as (links, reports):
        for count in (1, 2):
            send(links, url, MESSAGES["ack"])
            await reports.first(count)
            links.received("bob")
        async with serving(port):
            send(links, port.url, MESSAGES["ack"])
            assert isinstance((await reports.first(3))[-1], LinkDown), "not for each word that comes from it"


async def test_another_peer_at_the_address_gets_nothing(tmp_path: Path) -> None:
    people, port = People.at(tmp_path / "wards"), Port()
    cas, ann = people.identity("cas"), people.identity("ann")
    people.identity("bob")
    to_bob = client_context(ann, people.roster.by_id["bob"].key)
    async with serving(port, tls=server_context(cas)), links_of_ann(tls=to_bob) as (links, reports):
        send(links, port.url, MESSAGES["ack"])
        (outcome,) = await reports.first(1)
    assert outcome == LinkDown("the peer at this address has another key than expected")
    assert port.delivered == []


async def test_a_peer_whose_certificate_is_refused_hears_of_it(tmp_path: Path) -> None:
    people, port = People.at(tmp_path / "wards"), Port()
    others = People.at(tmp_path / "others", "others")
    bob, ann = people.identity("bob"), others.identity("ann")
    ann = replace(ann, authority_file=people.folder / "ca.crt")
    to_bob = client_context(ann, people.roster.by_id["bob"].key)
    async with serving(port, tls=server_context(bob)), links_of_ann(tls=to_bob) as (links, reports):
        send(links, port.url, MESSAGES["ack"])
        (outcome,) = await reports.first(1)
        await port.until(lambda: bool(port.codes))
    assert isinstance(outcome, LinkDown)
    assert "does not know our authority" in outcome.reason
    assert port.codes == ["tls_refused"]
    assert "another authority" in port.refusals[0][2]


@pytest.mark.parametrize("length", [7, 8_000_000], ids=["small", "large"])
async def test_an_answer_that_does_not_come_is_not_waited_for(length: int) -> None:
    limits = Limits(floor_s=0.05, answer_s=0.05, floor_bytes_per_s=1e9)
    async with somebody(never) as url, links_of_ann(limits) as (links, reports):
        send(links, url, big(length))
        assert await reports.first(1) == [LinkDown("it did not answer in time")]


async def test_who_takes_nothing_is_not_waited_for() -> None:
    """The other side reads nothing, so the body stops when the kernel's buffers are full."""

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    limits = Limits(floor_s=0.1, answer_s=0.05, floor_bytes_per_s=1e9)
    async with somebody(deaf) as url, links_of_ann(limits) as (links, reports):
        send(links, url, big(10_000_000))
        assert await reports.first(1) == [LinkDown("it did not answer in time")]


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 400 Bad\r\nContent-Length: 999999999\r\n\r\n" + bytes(10_000),
        b"no HTTP at all\r\n\r\n",
        b"",
    ],
    ids=["page", "endless", "noise", "nothing"],
)
async def test_what_is_not_a_peer_is_a_link_that_is_down(said: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()

    async with somebody(speak) as url, links_of_ann() as (links, reports):
        send(links, url, MESSAGES["ack"])
        (outcome,) = await reports.first(1)
    assert isinstance(outcome, LinkDown)
    assert outcome.reason


async def test_a_redirect_is_not_followed() -> None:
    port = Port()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 307 There\r\nLocation: {port.url}/v1/message\r\nContent-Length: 0\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()

    async with serving(port), somebody(speak) as url, links_of_ann() as (links, reports):
        send(links, url, MESSAGES["ack"])
        assert await reports.first(1) == [LinkDown("it answered 307, which no peer does")]
    assert (port.delivered, port.codes) == ([], [])


# ------------------------------------------------------------------------------------------------------------- bounds


def never_but_tells(received: asyncio.Event) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        received.set()
        await never(reader, writer)

    return speak


async def test_what_waits_already_is_not_queued_again_and_the_oldest_gives_way() -> None:
    received = asyncio.Event()
    async with somebody(never_but_tells(received)) as url, links_of_ann(Limits(queue=3)) as (links, reports):
        acks = [Ack(group="all", taken=taken, round=1) for taken in range(6)]
        send(links, url, acks[0])
        await received.wait()
        for ack in [acks[0], *acks[1:4], *acks[1:4]]:
            send(links, url, ack)
        assert reports.outcomes == []
        for ack in acks[4:]:
            send(links, url, ack)
        assert (
            reports.outcomes
            == [LinkDown("it accepts messages more slowly than they are made; the oldest was dropped")] * 2
        )
        waiting = list(links._links["bob"].small.waiting)
        assert waiting == [encode(ENVELOPE, ack)[0] for ack in acks[3:]]


async def test_a_peer_that_is_forgotten_is_sent_nothing_more() -> None:
    received = asyncio.Event()
    async with somebody(never_but_tells(received)) as url, links_of_ann() as (links, reports):
        for taken in range(3):
            send(links, url, Ack(group="all", taken=taken, round=1))
        await received.wait()
        links.forget("bob")
        await asyncio.sleep(0)
        assert links._links == {}
    assert reports.outcomes == []


@pytest.mark.parametrize("address", ["http://10.0.0.1:7401", "https://example.org:7401", "http://[2001:db8::1]:1"])
async def test_without_tls_only_loopback_is_spoken_to(address: str) -> None:
    """Another peer states its address, so it ends nobody else."""
    async with links_of_ann() as (links, reports):
        send(links, address, MESSAGES["ack"])
    [outcome] = reports.outcomes
    assert isinstance(outcome, LinkDown)
    assert "this peer uses plain HTTP on this machine only" in outcome.reason


@pytest.mark.parametrize("address", ["", "http://[::1", "http://127.0.0.1:1/x?", "http://127.0.0.1", "http://h\n:1"])
async def test_what_is_no_address_is_reported_and_called_by_nobody(address: str) -> None:
    async with links_of_ann() as (links, reports):
        send(links, address, MESSAGES["ack"])
    [outcome] = reports.outcomes
    assert isinstance(outcome, LinkDown)
    assert "no valid address" in outcome.reason
    assert outcome.reason.isprintable()


async def test_an_address_cannot_talk_us_out_of_tls(tmp_path: Path) -> None:
    people = People.at(tmp_path / "wards")
    to_bob = client_context(people.identity("ann"), people.identity("bob").key.public_key().public_bytes_raw())
    listening = bind_socket("127.0.0.1", 0)
    with listening:
        async with links_of_ann(tls=to_bob) as (links, reports):
            send(links, f"http://127.0.0.1:{listening.getsockname()[1]}", MESSAGES["ack"])
            (outcome,) = await reports.first(1)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert isinstance(outcome, LinkDown)
    assert "TLS only" in outcome.reason


async def test_the_roster_by_which_one_was_put_out_is_an_outcome(tmp_path: Path) -> None:
    people, port = People.at(tmp_path / "wards"), Port(owner=Rejection("unknown_peer"))
    bob, ann = people.identity("bob"), people.identity("ann")
    later = expel(people.roster, "ann", people.key)
    news = RosterNews(number=later.number, text=to_bytes(later))
    to_bob = client_context(ann, people.roster.by_id["bob"].key)
    async with serving(port, tls=server_context(bob)) as server, links_of_ann(tls=to_bob) as (links, reports):
        server.admission.host = replace(
            server.admission.host, farewell=lambda der: news if put_out(der, later) else None
        )
        send(links, port.url, MESSAGES["ack"])
        assert await reports.first(1) == [news]
