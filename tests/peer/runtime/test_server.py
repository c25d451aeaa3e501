"""The peer port under raw requests: good messages pass; each bad input gets its rejection and changes nothing."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from aiohttp import StreamReader
from aiohttp.http_exceptions import HttpProcessingError

from fedpeer.config.address import source_host
from fedpeer.gossip.transfers import WINDOW, NumberedTransfer
from fedpeer.peer.runtime.admission import HASHED_AT_ONCE_BYTES
from fedpeer.peer.runtime.identity import client_context, peer_of, put_out, server_context
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.listener import ListenError, bind_socket
from fedpeer.peer.runtime.transient import NoAddressError, PortInUseError
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_policy import ConsensusSpec
from fedpeer.peer.wire.message_spec import ParsedMetadata
from fedpeer.peer.wire.messages import Message, ModelReply, RejectMessage, RosterNews, Transfer
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.peer.wire.roster import expel, to_bytes
from fedpeer.peer.wire.tails import content_digest
from fedpeer.rejection import Rejection
from tests.ipv6 import needs_ipv6
from tests.peer.frames import ENVELOPE, MESSAGES, PARTY, POLICY, framed, spec
from tests.peer.hostile import HOSTILE, transfer
from tests.peer.runtime.people import People
from tests.peer.runtime.port import PATIENCE, Port, answer, ask, connected, request, serving

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quick_loop")]


def same(one: Message, other: Message) -> bool:
    """Return whether two messages have equal bytes; tensors have no equality of their own."""
    return framed(one) == framed(other)


# --------------------------------------------------------------------------------------------------------- what comes


async def test_a_message_of_each_kind_arrives_as_it_was_sent() -> None:
    port, sizes = Port(), list[int]()
    async with serving(port, accepted=lambda size, message: sizes.append(size)):
        for name, said in MESSAGES.items():
            came = await ask(port, request(framed(said)))
            assert (came.status, port.refusals) == (204, []), name
            assert sizes.pop() == len(framed(said)), name
            sender, envelope, message = port.delivered.pop()
            assert (sender, envelope, port.delivered) == ("ann", ENVELOPE, []), name
            assert same(message, said), name


async def test_a_large_tensor_in_many_pieces_lies_in_its_lease() -> None:
    length = 1_000_003
    port = Port(policy=replace(POLICY, groups={"all": spec(length=length)}), keep=True)
    value_D = torch.arange(length, dtype=torch.float32)
    share = NumberedTransfer(seq=1, round=1, exchange=1, weight=0.5, form="float32", payload=value_D)
    said = request(framed(Transfer(group="all", share=share)))
    async with serving(port), connected(port) as (reader, writer):
        for start in range(0, len(said), 100_001):
            writer.write(said[start : start + 100_001])
            await writer.drain()
        assert (await answer(reader)).status == 204
    got = port.delivered[0][2]
    assert isinstance(got, Transfer)
    assert torch.equal(got.share.payload, value_D)
    view = port.leases[0].view
    assert len(view) == 4 * length
    assert got.share.payload.data_ptr() == np.frombuffer(view, dtype=np.uint8).ctypes.data


async def test_a_removed_peer_takes_its_buffers_along() -> None:
    """Each member that was revoked would leave buffers of the size of a model until the process ends."""
    port = Port()
    async with serving(port) as server:
        assert (await ask(port, request(framed(MESSAGES["transfer"])))).status == 204
        assert port.pool.kept_bytes
        server.review(["ann"], Limits())
        assert not port.pool.kept_bytes


async def test_a_large_model_is_hashed_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * (HASHED_AT_ONCE_BYTES // 256 + 1)
    consensus = ConsensusSpec(
        members=POLICY.consensus_by_group["all"].members, update_bytes=(0, 8), model_bytes=(0, len(content))
    )
    port = Port(policy=replace(POLICY, consensus_by_group={"all": consensus}))
    threads, finish = list[threading.Thread](), codec.finish

    def noted(parsed: ParsedMetadata, tail: memoryview) -> Message | Rejection:
        if parsed.kind is ModelReply:
            threads.append(threading.current_thread())
        return finish(parsed, tail)

    monkeypatch.setattr(codec, "finish", noted)
    model = ModelReply(group="all", digest=content_digest(content), content=content)
    async with serving(port):
        assert (await ask(port, request(framed(model)))).status == 204
        assert (await ask(port, request(framed(replace(model, digest=bytes(32)))))).code == "digest_mismatch"
    ((_, _, got),) = port.delivered
    assert got == model
    assert threading.main_thread() not in threads
    assert len(threads) == 2


async def test_a_lead_and_a_commit_may_come_at_once() -> None:
    """An unprocessed message holds its buffer; there is room for the signatures of two leads and two commits."""
    port = Port(keep=True)
    async with serving(port):
        for _ in range(2):
            for name in ("ballot-lead", "ballot-commit"):
                assert (await ask(port, request(framed(MESSAGES[name])))).status == 204
        assert (await ask(port, request(framed(MESSAGES["ballot-lead"])))).code == "too_many_requests"
        assert (await ask(port, request(framed(MESSAGES["model"])))).status == 204
        assert (await ask(port, request(framed(MESSAGES["model"])))).code == "too_many_requests"


async def test_one_connection_carries_many_messages() -> None:
    port = Port()
    async with serving(port), connected(port) as (reader, writer):
        for name in MESSAGES:
            writer.write(request(framed(MESSAGES[name])))
            assert (await answer(reader)).status == 204
    assert len(port.delivered) == len(MESSAGES)


# -------------------------------------------------------------------------------------------------------- bad frames


async def test_a_bad_frame_is_refused_by_name_and_counted_once() -> None:
    port = Port(keep=True)
    async with serving(port):
        for bad in HOSTILE:
            if bad.id == "T03":  # without certificates the envelope states the sender; it is tested with TLS, below
                continue
            port.refusals.clear()
            came = await ask(port, request(bad.build(PARTY)))
            assert (came.code, port.codes, port.delivered) == (bad.code, [bad.code], []), bad.id
            assert isinstance(came.said, RejectMessage), bad.id
            assert came.said.text.startswith(REJECTIONS[bad.code].advice), bad.id


async def test_what_was_refused_leaves_every_buffer_free() -> None:
    port = Port()
    async with serving(port):
        for _ in range(WINDOW + 2):
            assert (await ask(port, request(transfer(PARTY, tail=b"\xff" * 28)))).code == "not_finite"
        assert (await ask(port, request(transfer(PARTY)))).status == 204


# ----------------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("said", "code"),
    [
        pytest.param(request(b"", content_length="999999999999"), "body_too_large", id="T04"),
        pytest.param(request(b"", content_length=None), "body_too_large", id="T05-nothing"),
        pytest.param(
            request(b"5\r\nFDPR", content_length=None, transfer_encoding="chunked"), "body_too_large", id="T05-chunked"
        ),
        pytest.param(request(b"", line="POST /v1/other HTTP/1.1"), "unknown_route", id="T09-path"),
        pytest.param(request(b"", line="POST /v1/message?a=b HTTP/1.1"), "unknown_route", id="T09-query"),
        pytest.param(request(b"", line="GET /v1/message HTTP/1.1"), "unknown_route", id="T09-method"),
        pytest.param(request(b"", content_type="text/html"), "unknown_route", id="T09-type"),
        pytest.param(request(b"", content_type=None), "unknown_route", id="T09-no-type"),
        pytest.param(request(b"", content_encoding="gzip"), "unknown_route", id="T10-gzip"),
        pytest.param(request(b"", content_encoding="identity"), "unknown_route", id="T10-identity"),
        pytest.param(request(b"", expect="100-continue"), "unknown_route", id="T10-expect"),
        pytest.param(request(b"", upgrade="websocket", connection="Upgrade"), "unknown_route", id="T10-upgrade"),
    ],
)
async def test_a_bad_request_is_refused_before_its_body_is_read(said: bytes, code: str) -> None:
    """No request sends the body that it announces, and each is answered at once."""
    port = Port()
    async with serving(port):
        came = await ask(port, said)
    assert (came.code, port.codes, port.delivered) == (code, [code], [])
    assert 400 <= came.status < 500


async def test_what_the_groups_allow_bounds_the_body() -> None:
    most = codec.frame_bytes_max(replace(POLICY, other=None))
    port = Port()
    async with serving(port):
        assert (await ask(port, request(b"", content_length=str(most + 1)))).code == "body_too_large"
        async with connected(port) as (_, writer):
            writer.write(request(b"", content_length=str(most)))
            writer.close()
            await port.until(lambda: len(port.codes) == 2)
    assert port.codes[1] == "body_truncated"


@pytest.mark.parametrize(
    "said",
    [b"hello, is this the post office?\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"GET /" + b"x" * 5000],
    ids=["words", "TLS", "long"],
)
async def test_what_is_not_http_is_counted(said: bytes) -> None:
    port = Port()
    async with serving(port), connected(port) as (reader, writer):
        writer.write(said + b"\r\n\r\n")
        await port.until(lambda: bool(port.codes))
        assert len(await reader.read()) < 1000
    assert port.codes == ["unknown_route"]


CHUNKED = request(b"", content_length=None, transfer_encoding="chunked")


@pytest.mark.parametrize("said", [b"words\r\n\r\n", b"GET /" + b"x" * 100_000, CHUNKED + b"\xff" * 100_000])
async def test_what_is_not_http_is_freed_with_its_connection(said: bytes) -> None:  # P11
    """A member must not fill memory with objects that only the garbage collector frees."""
    port = Port()
    gc.collect()
    gc.disable()
    try:
        async with serving(port), connected(port) as (reader, writer):
            writer.write(said)
            await port.until(lambda: bool(port.codes))
            with suppress(ConnectionError):
                await reader.read()
        assert [each for each in gc.get_objects() if isinstance(each, HttpProcessingError)] == []
    finally:
        gc.enable()
    assert port.codes == ["unknown_route"]


@pytest.mark.parametrize("sent", [0, 5, 20, 30, -28, -1])
async def test_a_body_that_ends_early_is_truncated(sent: int) -> None:  # T06
    port, body = Port(), framed(MESSAGES["transfer"])
    async with serving(port), connected(port) as (_, writer):
        writer.write(request(b"", content_length=str(len(body))) + body[:sent])
        writer.close()
        await port.until(lambda: bool(port.codes))
    assert (port.codes, port.delivered) == (["body_truncated"], [])
    assert all(channel.lent == 0 for peer in port.pool._peers.values() for channel in peer.values())


async def test_a_body_slower_than_the_floor_is_given_up() -> None:  # T07
    """Single bytes now and then do not help; a body above the floor may take longer than `floor_s`."""
    limits = Limits(floor_s=0.2, floor_bytes_per_s=1000.0)
    port, body = Port(), framed(MESSAGES["transfer"])
    async with serving(port, limits), connected(port) as (reader, writer):
        writer.write(request(b"", content_length=str(len(body))))

        async def drip() -> None:
            for byte in body[:-1]:
                writer.write(bytes((byte,)))
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        came = await answer(reader)
        dripping.cancel()
    assert (came.status, came.code, port.codes) == (408, "body_too_slow", ["body_too_slow"])


# ------------------------------------------------------------------------------------------------------------- limits


async def test_no_more_requests_at_once_than_allowed() -> None:  # T08
    port, body = Port(), framed(MESSAGES["transfer"])
    async with serving(port, Limits(requests_at_once=1)) as server, connected(port) as (reader, writer):
        writer.write(request(body)[:-1])
        async with asyncio.timeout(10):
            while not server.admission.at_once:
                await asyncio.sleep(0)
        assert (await ask(port, request(body))).code == "too_many_requests"
        writer.write(body[-1:])
        assert (await answer(reader)).status == 204
        assert (await ask(port, request(body))).status == 204


@pytest.mark.parametrize("limits", [Limits(requests_per_second=2.0), Limits(requests_per_second_of_all=2.0)])
async def test_no_more_requests_a_second_than_allowed(limits: Limits) -> None:  # T08
    port, said = Port(), request(framed(MESSAGES["ack"]))
    async with serving(port, limits):
        statuses = [(await ask(port, said)).status for _ in range(4)]
    assert statuses == [204, 204, 429, 429]
    assert port.codes == ["too_many_requests"] * 2


async def test_transfers_that_nobody_dealt_with_are_bounded() -> None:
    port, said = Port(keep=True), request(transfer(PARTY))
    async with serving(port):
        statuses = [(await ask(port, said)).status for _ in range(WINDOW + 3)]
        assert statuses == [204] * (WINDOW + 1) + [429] * 2
        assert (await ask(port, request(framed(MESSAGES["ack"])))).status == 204  # other messages are not held up
        port.leases[0].release()
        assert (await ask(port, said)).status == 204


@pytest.mark.parametrize("said", [b"", b"POST /v1/mess", b"POST /v1/message HTTP/1.1\r\nHost: b"])
async def test_a_connection_on_which_no_request_gets_done_is_closed(said: bytes) -> None:
    """This also holds if a byte comes now and then: only whole requests count."""
    port = Port()
    async with serving(port, Limits(idle_s=0.2)), connected(port) as (reader, writer):
        writer.write(said)

        async def trickle() -> None:
            while True:
                writer.write(b"a" if said else b"")
                await asyncio.sleep(0.01)

        trickling = asyncio.create_task(trickle())
        async with asyncio.timeout(PATIENCE):
            with suppress(OSError):
                assert await reader.read() == b""
        trickling.cancel()
    assert port.delivered == []


async def test_an_edge_that_rests_is_told_so() -> None:
    port = Port(listens=False)
    async with serving(port):
        came = await ask(port, request(framed(MESSAGES["ack"])))
    assert (came.code, port.delivered) == ("too_many_requests", [])


async def test_connections_in_all_are_bounded() -> None:
    port = Port()
    async with serving(port, Limits(connections=2)), connected(port) as one, connected(port) as two:
        for reader, writer in (one, two):
            writer.write(request(framed(MESSAGES["ack"])))
            assert (await answer(reader)).status == 204
        async with connected(port) as (reader, _):
            assert await reader.read() == b""
        assert port.codes == ["too_many_requests"]


async def test_a_mistake_of_our_own_refuses_the_message_on_which_it_happens() -> None:  # M09
    port = Port()

    def broken(*said: object) -> None:
        raise AssertionError("broken")

    async with serving(port) as server:
        deliver = server.admission.host.deliver
        server.admission.host = replace(server.admission.host, deliver=broken)
        came = await ask(port, request(framed(MESSAGES["ack"])))
        assert (came.status, came.code) == (500, "internal_error")
        server.admission.host = replace(server.admission.host, deliver=deliver)
        assert (await ask(port, request(framed(MESSAGES["ack"])))).status == 204
    assert port.mistakes == [("ann", "broken")]
    assert port.codes == ["internal_error"]
    assert all(channel.lent == 0 for peer in port.pool._peers.values() for channel in peer.values())


async def test_a_port_that_is_taken_is_a_sentence() -> None:
    with (
        bind_socket("127.0.0.1", 0) as taken,
        pytest.raises(PortInUseError, match=r"cannot listen on .* \(another process"),
    ):
        bind_socket("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(NoAddressError, match=r"cannot listen on 192\.0\.2\.1:7401 .* bring up the interface"):
        bind_socket("192.0.2.1", 7401)
    with pytest.raises(ListenError, match="cannot listen on"):
        bind_socket("no-such-host.invalid", 7401)
    with pytest.raises(ListenError, match=r"0\.0\.0\.0 is not this machine"):
        bind_socket("0.0.0.0", 0, plain=True)
    with pytest.raises(ListenError, match=r"cannot listen on a\.\.b:7401 \(no host can have this name\)"):
        bind_socket("a..b", 7401)


@needs_ipv6
async def test_all_interfaces_of_ipv6_are_those_of_ipv4_too() -> None:
    with bind_socket("::", 0) as listening:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, listening.getsockname()[1])):
                came, address = await asyncio.get_running_loop().sock_accept(listening)
                came.close()
                assert source_host(address[0]) == host


@needs_ipv6
async def test_a_port_of_ipv6_that_is_taken_is_named_in_brackets() -> None:
    with bind_socket("::1", 0) as taken, pytest.raises(PortInUseError, match=r"cannot listen on \[::1\]:\d+ "):
        bind_socket("::1", taken.getsockname()[1])


# ---------------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture
def people(tmp_path: Path) -> People:
    return People.at(tmp_path / "wards")


async def test_tls_says_who_sends(people: People) -> None:
    """The certificate's owner (ann) may send, in its own name only (T03), and only while it is in the roster (T02)."""
    port = Port()
    bob, ann = people.identity("bob"), people.identity("ann")
    to_bob = client_context(ann, people.roster.by_id["bob"].key)
    ders: list[bytes] = []

    def identify(der: bytes | None) -> str | Rejection:
        assert der is not None
        ders.append(der)
        return peer_of(der, people.roster)

    async with serving(port, tls=server_context(bob)) as server:
        server.admission.host = replace(server.admission.host, identify=identify)
        async with connected(port, to_bob) as (reader, writer):
            writer.write(request(framed(MESSAGES["ack"])))
            assert (await answer(reader)).status == 204
            assert port.delivered[0][0] == "ann"
            people.roster = replace(people.roster, entries=people.roster.entries[:1])
            writer.write(request(framed(MESSAGES["ack"])))
            assert (await answer(reader)).code == "unknown_peer"
        people.identity("cas")
        port.refusals.clear()
        cas = client_context(people.identity("cas2"), people.roster.by_id["bob"].key)
        assert (await ask(port, request(framed(MESSAGES["ack"])), cas)).code == "sender_mismatch"
    assert port.codes == ["sender_mismatch"]
    assert len(port.delivered) == 1


async def test_a_handshake_that_fails_is_counted_with_its_reason(people: People) -> None:  # T01, T11
    port = Port()
    bob = people.identity("bob")
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    async with serving(port, Limits(handshake_s=0.1), tls=server_context(bob)):
        async with connected(port) as (_, writer):
            writer.write(request(framed(MESSAGES["ack"])))
            await port.until(lambda: len(port.codes) == 1)
        async with connected(port, stranger) as (_, writer):
            await port.until(lambda: len(port.codes) == 2)
        async with connected(port):  # sends nothing
            await port.until(lambda: len(port.codes) == 3)
        async with connected(port) as (_, writer):
            writer.close()
            await port.until(lambda: len(port.codes) == 4)
    assert port.codes == ["tls_refused"] * 2 + ["handshake_cut"] * 2, "an honest peer that pauses breaks off, too"
    texts = [text for _, _, text in port.refusals]
    for text, wanted in zip(texts, ("plain HTTP", "no certificate", "handshake", "handshake"), strict=True):
        assert text.startswith("127.0.0.1: ")
        assert wanted in text, text


async def test_handshakes_under_way_are_bounded_for_each_address(people: People) -> None:
    port = Port()
    limits = Limits(handshakes_per_address=2)
    async with (
        serving(port, limits, tls=server_context(people.identity("bob"))),
        connected(port),
        connected(port),
        connected(port) as (reader, _),
    ):
        assert await reader.read() == b""
        assert port.codes == ["too_many_requests"]


async def test_a_peer_that_reconnects_replaces_its_oldest_connection(people: People) -> None:
    port = Port()
    bob, ann = people.identity("bob"), people.identity("ann")
    to_bob = client_context(ann, people.roster.by_id["bob"].key)
    async with (
        serving(port, Limits(connections_per_peer=2), tls=server_context(bob)),
        connected(port, to_bob) as old,
        connected(port, to_bob) as middle,
    ):
        for reader, writer in (old, middle):
            writer.write(request(framed(MESSAGES["ack"])))
            assert (await answer(reader)).status == 204
        async with connected(port, to_bob) as (reader, writer):
            writer.write(request(framed(MESSAGES["ack"])))
            assert (await answer(reader)).status == 204
            assert await old[0].read() == b""
            middle[1].write(request(framed(MESSAGES["ack"])))
            assert (await answer(middle[0])).status == 204
    assert port.codes == []


async def test_who_was_put_out_is_told_by_the_roster_itself_once_a_second(people: People) -> None:
    port = Port()
    bob, ann = people.identity("bob"), people.identity("ann")
    to_bob = client_context(ann, people.roster.by_id["bob"].key)
    stranger = client_context(people.identity("eve", admitted=False), people.roster.by_id["bob"].key)
    later = expel(people.roster, "ann", people.key)
    news = RosterNews(number=later.number, text=to_bytes(later))
    async with serving(port, tls=server_context(bob)) as server:
        server.admission.host = replace(
            server.admission.host,
            identify=lambda der: peer_of(der, later),
            farewell=lambda der: news if put_out(der, later) else None,
        )
        for said in (news, RejectMessage):
            async with connected(port, to_bob) as (reader, writer):
                writer.write(request(framed(MESSAGES["ack"])))
                came = await answer(reader)
                assert came.status == 403
                assert came.said == said if said is news else isinstance(came.said, RejectMessage)
                assert await reader.read() == b"", "it is the last answer"
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await ask(port, request(framed(MESSAGES["ack"])), stranger)
    assert port.codes == ["unknown_peer"] * 3
    assert not port.delivered


class Ended:
    """A request whose body has arrived and whose connection has ended before it is handled."""

    method, raw_path, transport = "POST", "/v1/message", None

    def __init__(self, body: bytes) -> None:
        self.headers = {"Content-Type": "application/octet-stream"}
        self.content_length = len(body)
        self.content = StreamReader(Mock(_reading_paused=False), 2**16)
        self.content.feed_data(body)
        self.content.feed_eof()


async def test_whose_connection_has_ended_is_nobody_whatever_the_envelope_says(tmp_path: Path) -> None:
    """Without the certificate of a connection the envelope alone would name the sender, as on a port without TLS."""
    people, port = People.at(tmp_path / "wards"), Port()
    async with serving(port, tls=server_context(people.identity("bob"))) as server:
        roster = people.roster
        server.admission.host = replace(server.admission.host, identify=lambda der: peer_of(der, roster))
        answered = await server._answer(Ended(framed(MESSAGES["ack"])))  # type: ignore[arg-type]
    assert (answered.status, port.codes, port.delivered) == (403, ["unknown_peer"], [])


async def test_it_is_known_whether_anybody_has_connected() -> None:
    async with serving(port := Port()) as server:
        assert server.reached is None
        await ask(port, request(framed(MESSAGES["ack"])))
        assert server.reached == "", "without TLS, too"
