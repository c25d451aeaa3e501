"""The dashboard's listener: access, its answers' headers, and the bound on every number of visitors."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.http_exceptions import HttpProcessingError
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fedpeer.config.peer_file import DashboardSettings
from fedpeer.peer.runtime.dashboard import server
from fedpeer.peer.runtime.dashboard.access import (
    DashboardAddress,
    DashboardError,
    DashboardListener,
    listener,
    read_token,
)
from fedpeer.peer.runtime.dashboard.ask import ask
from fedpeer.peer.runtime.dashboard.server import Dashboard
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.metrics import Metrics
from fedpeer.peer.runtime.transient import PortInUseError
from fedpeer.peer.runtime.visitors import VISITORS

from .fake_status import TOKEN, FakePeer

BEARER = {"Authorization": f"Bearer {TOKEN}"}
PATHS = ("/", "/status.json", "/events", "/metrics", "/page.js", "/page.css", "/draw.js")


@asynccontextmanager
async def running(
    peer: FakePeer | None = None, every_s: float = 0.01, limits: Limits = VISITORS, **more: Any
) -> AsyncIterator[Dashboard]:
    """Run a dashboard on a free loopback port."""
    status = (peer or FakePeer()).status.as_json
    board = Dashboard(DashboardListener("127.0.0.1", 0, TOKEN, **more), status, Metrics(status), every_s, limits)
    await board.start()
    try:
        yield board
    finally:
        await board.stop()


@asynccontextmanager
async def visitor(board: Dashboard, **headers: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a client of that dashboard that keeps cookies as a browser does."""
    jar = aiohttp.CookieJar(unsafe=True)  # "unsafe" is needed for numeric addresses
    async with aiohttp.ClientSession(board.listener.door.url, headers=headers, cookie_jar=jar) as session:
        yield session


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Cookie": f"fedpeer={TOKEN}"}],
)
async def test_without_the_token_nothing_is_shown(headers: dict[str, str]) -> None:
    async with running() as board, visitor(board, **headers) as session:
        for path in PATHS:
            async with session.get(path) as answer:
                assert answer.status == (200 if path == "/page.css" else 401), path
                text = await answer.text()
                assert "wards" not in text
                assert TOKEN not in text


@pytest.mark.asyncio
async def test_with_the_token_everything_is() -> None:
    async with running() as board, visitor(board, **BEARER) as session:
        for path in PATHS:
            async with session.get(path) as answer:
                assert answer.status == 200, path
        async with session.post("/status.json") as answer:
            assert answer.status == 405
        async with session.get("/../pyproject.toml") as answer:
            assert answer.status == 404


@pytest.mark.asyncio
async def test_an_address_with_the_token_logs_a_browser_in_once() -> None:
    async with running() as board, visitor(board) as session:
        async with session.get("/", params={"token": TOKEN}, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/")
            cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie
        async with session.get("/status.json") as answer:
            assert answer.status == 200
        async with session.get("/", params={"token": TOKEN[:-1]}, allow_redirects=False) as answer:
            assert answer.status == 401


@pytest.mark.asyncio
async def test_a_cookie_outlives_a_restart_and_opens_no_other_peer() -> None:
    async with running() as board, visitor(board) as session:
        async with session.get("/", params={"token": TOKEN}) as answer:
            assert answer.status == 200
        other = Dashboard(DashboardListener("127.0.0.1", 0, "f" * 32), FakePeer().status.as_json, None)
        await other.start()
        try:
            async with session.get(f"{other.listener.door.url}/status.json") as answer:
                assert answer.status == 401
        finally:
            await other.stop()
        port = board.listener.port
        await board.stop()
        again = Dashboard(DashboardListener("127.0.0.1", port, TOKEN), FakePeer().status.as_json, None)
        await again.start()
        try:
            async with session.get("/status.json") as answer:
                assert answer.status == 200
            async with session.get("/metrics") as answer:
                assert answer.status == 404
        finally:
            await again.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "10.0.0.3:7503", "", "localhost.evil.example", "[::"]
)
async def test_a_name_that_was_pointed_here_is_not_answered(host: str) -> None:
    async with (
        running() as board,
        visitor(board, **BEARER, Host=host) as session,
        session.get("/status.json") as answer,
    ):
        assert answer.status == 421


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1:1", "[::1]:7503", "[::1]"])
async def test_loopback_is_answered_whatever_port_was_forwarded(host: str) -> None:
    async with (
        running() as board,
        visitor(board, **BEARER, Host=host) as session,
        session.get("/status.json") as answer,
    ):
        assert answer.status == 200


@pytest.mark.asyncio
async def test_every_answer_forbids_what_the_page_does_not_need() -> None:
    async with running() as board, visitor(board) as session:
        for path in (*PATHS, "/nothing"):
            async with session.get(path) as answer:
                headers = answer.headers
            assert headers["Cache-Control"] == "no-store"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "aiohttp" not in headers["Server"]


async def events(answer: aiohttp.ClientResponse, count: int) -> list[dict[str, Any]]:
    """Return the next events of a live stream."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            line = await answer.content.readline()
            if line.startswith(b"data: "):
                found.append(json.loads(line.removeprefix(b"data: ")))
    return found


@pytest.mark.asyncio
async def test_the_stream_tells_the_newest_status_and_never_falls_silent() -> None:
    peer = FakePeer()
    async with running(peer) as board, visitor(board, **BEARER) as session, session.get("/events") as answer:
        assert answer.content_type == "text/event-stream"
        first, second = await events(answer, 2)
        assert first["round"] == second["round"] == 0
        peer.round()
        async with asyncio.timeout(20):
            while (await events(answer, 1))[0]["round"] != 1:
                pass


@pytest.mark.asyncio
async def test_streams_are_bounded_and_a_place_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STREAMS_MAX", 2)
    async with running() as board, visitor(board, **BEARER) as session, session.get("/events") as first:
        async with session.get("/events"), session.get("/events") as refused, session.get("/status.json") as other:
            assert (first.status, refused.status, other.status) == (200, 503, 200)
        async with asyncio.timeout(20):
            while True:
                async with session.get("/events") as answer:
                    if answer.status == 200:
                        return


@pytest.mark.asyncio
async def test_requests_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUESTS_MAX", 1)
    async with running() as board, visitor(board, **BEARER) as session, session.get("/events") as stream:
        assert stream.status == 200
        async with session.get("/status.json") as refused:
            assert refused.status == 503


@pytest.mark.asyncio
async def test_a_client_that_reads_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE_S", 0.05)
    peer = FakePeer(64)
    for _ in range(60):
        peer.round()
    async with running(peer, every_s=0.0) as board:
        reader, writer = await asyncio.open_connection("127.0.0.1", board.listener.port, limit=1024)
        request = f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        writer.write(request.encode())
        await reader.readline()
        assert board.streams == 1
        async with asyncio.timeout(20):
            while board.streams:
                await asyncio.sleep(0)
        writer.close()


@pytest.mark.asyncio
async def test_it_stops_while_somebody_watches() -> None:
    async with running() as board, visitor(board, **BEARER) as session, session.get("/events") as answer:
        await events(answer, 1)
        async with asyncio.timeout(5):
            await board.stop()
        assert board.streams == 0


@pytest.mark.asyncio
async def test_a_taken_port_is_named() -> None:
    async with running() as board:
        second = Dashboard(board.listener, FakePeer().status.as_json, None)
        with pytest.raises(PortInUseError, match=f"cannot listen on 127.0.0.1:{board.listener.port}"):
            await second.start()


# -------------------------------------------------------------------------------------------------- beyond loopback


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a P-256 certificate for another name and its key to files; return both paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "peer3")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1)).sign(key, SHA256())
    )  # fmt: skip
    (folder / "board.crt").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "board.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / "board.key").chmod(0o600)
    return folder / "board.crt", folder / "board.key"


def test_a_key_that_every_user_can_read_is_no_key(tmp_path: Path) -> None:
    crt, key = certificate(tmp_path)
    key.chmod(0o644)
    with pytest.raises(DashboardError, match=r"chmod 600 .*board\.key"):
        DashboardListener("0.0.0.0", 0, TOKEN, crt, key).context()
    key.chmod(0o640)  # a group for such keys may read them
    assert DashboardListener("0.0.0.0", 0, TOKEN, crt, key).context() is not None


def token_file(folder: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    file = folder / "peer3.token"
    file.write_text(f"{text}\n")
    file.chmod(mode)
    return file


def test_beyond_loopback_it_needs_a_certificate(tmp_path: Path) -> None:
    token_file(tmp_path)
    certificate(tmp_path)
    open_to_all = DashboardSettings(listen="0.0.0.0:7503", token_file="peer3.token")
    with pytest.raises(DashboardError, match=r"ssh -L 7503:127\.0\.0\.1:7503"):
        listener(open_to_all, tmp_path)
    settings = {**open_to_all.model_dump(), "certificate": "board.crt", "key": "board.key"}
    found = listener(DashboardSettings(**settings), tmp_path)
    assert found.door == DashboardAddress("https://127.0.0.1:7503", TOKEN, tmp_path / "board.crt")
    assert (
        listener(DashboardSettings(listen="[::1]:7503", token_file="peer3.token"), tmp_path).door.url
        == "http://[::1]:7503"
    )


@pytest.mark.asyncio
async def test_with_tls_the_certificate_is_known_by_itself_and_the_cookie_stays_inside(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    file, key = certificate(tmp_path)
    stranger, _ = certificate(tmp_path / "other")
    async with running(certificate=file, key=key) as board:
        door = board.listener.door
        status = await asyncio.to_thread(ask, door)
        assert status["peer"] == "peer3"
        with pytest.raises(DashboardError, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(ask, DashboardAddress(door.url, TOKEN, stranger))
        options: dict[str, Any] = {"params": {"token": TOKEN}, "allow_redirects": False, "ssl": False}
        async with visitor(board, Host="ward3.example") as session, session.get("/", **options) as answer:
            assert "Secure" in answer.headers["Set-Cookie"]


def test_an_unusable_certificate_is_named(tmp_path: Path) -> None:
    file, _ = certificate(tmp_path)
    with pytest.raises(DashboardError, match="belong together"):
        DashboardListener("127.0.0.1", 0, TOKEN, file, tmp_path / "missing.key").context()


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (TOKEN, 0o644, "chmod 600"),
        ("short", 0o600, "is not a token"),
        ("two words " * 9, 0o600, "is not a token"),
        ("", 0o600, "is not a token"),
    ],
)
def test_a_token_that_protects_nothing_is_refused(tmp_path: Path, text: str, mode: int, words: str) -> None:
    with pytest.raises(DashboardError, match=words):
        read_token(token_file(tmp_path, text, mode))


def test_a_missing_token_is_named(tmp_path: Path) -> None:
    assert read_token(token_file(tmp_path)) == TOKEN
    with pytest.raises(DashboardError, match="No such file"):
        read_token(tmp_path / "missing")


# ------------------------------------------------------------------------------------------------------------ asking


@pytest.mark.asyncio
async def test_asking_says_what_is_wrong() -> None:
    async with running() as board:
        door = board.listener.door
        with pytest.raises(DashboardError, match="rejects this token"):
            await asyncio.to_thread(ask, DashboardAddress(door.url, "f" * 32))
    with pytest.raises(DashboardError, match="No peer answers"):
        await asyncio.to_thread(ask, door)


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"schema": 2}', b"[" * 200_000])
async def test_an_answer_that_is_no_status_is_refused(body: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(DashboardError, match="not with a status"):
            await asyncio.to_thread(ask, DashboardAddress(f"http://127.0.0.1:{port}", TOKEN))


@pytest.mark.asyncio
async def test_the_token_is_not_carried_on_to_another_address() -> None:
    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(elsewhere, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(DashboardError, match="answers 302"):
            await asyncio.to_thread(ask, DashboardAddress(f"http://127.0.0.1:{port}", TOKEN))


@pytest.mark.asyncio
async def test_who_holds_connections_keeps_nobody_out_and_ends_no_stream() -> None:
    """A hundred connections send nothing or trickle a request: places are bounded, the oldest idle one gives way."""
    limits = Limits(connections=8, connections_per_peer=8)
    async with (
        running(limits=limits) as board,
        visitor(board, **BEARER) as session,
        AsyncExitStack() as held,
        session.get("/events") as stream,
    ):
        await events(stream, 1)
        lines = []
        for number in range(100):
            reader, writer = await asyncio.open_connection("127.0.0.1", board.listener.port)
            writer.write(b"GET /status.json HTTP/1.1\r\nHost" if number % 2 else b"")
            held.callback(writer.transport.abort)
            lines.append((reader, writer))
        async with visitor(board, **BEARER) as person, person.get("/status.json") as answer:
            assert answer.status == 200
        await events(stream, 2)
        for reader, _ in lines[:80]:
            assert await reader.read() == b""
        assert len(board._visitors._runner.server.connections) <= limits.connections  # type: ignore[union-attr]


@pytest.mark.asyncio
@pytest.mark.parametrize("said", [b"words\r\n\r\n", b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n"])
async def test_what_is_not_http_is_freed_with_its_connection_and_fills_no_log(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:  # P11
    """Strangers reach an invitation's listener, which is of the same kind."""
    gc.collect()
    gc.disable()
    try:
        async with running() as board:
            reader, writer = await asyncio.open_connection("127.0.0.1", board.listener.port)
            writer.write(said)
            with suppress(ConnectionError):
                assert b"400 Bad Request" in await reader.read()
            writer.close()
        assert [each for each in gc.get_objects() if isinstance(each, HttpProcessingError)] == []
    finally:
        gc.enable()
    assert caplog.records == []
