"""A peer port for a test: bob's server, with a host that records its calls, and functions to send raw requests."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fedpeer.peer.runtime.admission import Host
from fedpeer.peer.runtime.buffers import BufferPool, Lease
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.listener import bind_socket
from fedpeer.peer.runtime.outcomes import Outcome
from fedpeer.peer.runtime.server import PeerServer
from fedpeer.peer.runtime.two_way import TwoWayLink
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_policy import MessagePolicy
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Message, RejectMessage, RosterNews
from fedpeer.rejection import Rejection
from tests.peer.frames import POLICY

#: Seconds after which a test counts as hanging; everything here takes milliseconds.
PATIENCE = 10.0


@dataclass
class Port:
    """Record of all that the server has passed to its host. With `keep` the test itself releases the leases."""

    policy: MessagePolicy = field(default_factory=lambda: replace(POLICY, other=None))
    owner: str | Rejection = "ann"
    listens: bool = True
    keep: bool = False
    delivered: list[tuple[str, Envelope, Message]] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    refusals: list[tuple[str, str, str]] = field(default_factory=list)
    mistakes: list[tuple[str, str]] = field(default_factory=list)
    told: asyncio.Condition = field(default_factory=asyncio.Condition)
    pool: BufferPool = field(default_factory=BufferPool)
    number: int = 0
    scheme: str = "http"

    @property
    def codes(self) -> list[str]:
        return [code for code, _, _ in self.refusals]

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.number}"

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked after each message or rejection."""
        async with asyncio.timeout(PATIENCE), self.told:
            await self.told.wait_for(done)

    def deliver(self, sender: str, envelope: Envelope, message: Message, lease: Lease) -> None:
        self.delivered.append((sender, envelope, message))
        self.leases.append(lease)
        if not self.keep:
            lease.release()
        self._send()

    def rejected(self, rejection: Rejection) -> None:
        self.refusals.append((rejection.code, rejection.sender, rejection.text))
        self._send()

    def _send(self) -> None:
        async def send() -> None:
            async with self.told:
                self.told.notify_all()

        self._sending = asyncio.create_task(send())


@asynccontextmanager
async def serving(
    port: Port,
    limits: Limits | None = None,
    tls: ssl.SSLContext | None = None,
    listening: socket.socket | None = None,
    linked: Callable[[str, TwoWayLink], None] = lambda peer, link: None,
    *,
    outbound: bool = False,
    **host_callbacks: Any,
) -> AsyncIterator[PeerServer]:
    """Run bob's server, by default on a free loopback port; `outbound`: on none."""
    host = Host(
        identify=lambda der: port.owner,
        listens=lambda peer: port.listens,
        policy=lambda peer: replace(port.policy, other=peer),
        deliver=port.deliver,
        rejected=port.rejected,
        broken=lambda error, sender: port.mistakes.append((sender, str(error))),
        linked=linked,
    )
    server = PeerServer(replace(host, **host_callbacks), port.pool, limits)
    if not outbound:
        listening = listening or bind_socket("127.0.0.1", 0)
        port.number, port.scheme = listening.getsockname()[1], "https" if tls else "http"
    await server.start(listening, tls)
    try:
        yield server
    finally:
        await server.stop()


@dataclass
class Answer:
    """An answer: its status and its decoded body."""

    status: int
    said: RejectMessage | RosterNews | None

    @property
    def code(self) -> str:
        return self.said.code if isinstance(self.said, RejectMessage) else ""


@dataclass
class Reports:
    """Outcomes of the frames of links to one peer, in the order in which they were reported."""

    about: str = "bob"
    outcomes: list[Outcome] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, peer: str, outcome: Outcome) -> None:
        assert peer == self.about
        self.outcomes.append(outcome)
        self.changed.set()

    async def first(self, count: int) -> list[Outcome]:
        async with asyncio.timeout(PATIENCE):
            while len(self.outcomes) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.outcomes


HEADERS = {"Host": "bob", "Content-Type": "application/octet-stream"}


def request(body: bytes, *, line: str = "POST /v1/message HTTP/1.1", **headers: str | None) -> bytes:
    """Return a request as bytes; a header's name has _ for -, and None omits a header."""
    given = {name.replace("_", "-").title(): value for name, value in headers.items()}
    lines = HEADERS | {"Content-Length": str(len(body))} | given
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"{line}\r\n{head}\r\n".encode() + body


@asynccontextmanager
async def connected(
    port: Port, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=tls)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer(reader: asyncio.StreamReader) -> Answer:
    """Read the next answer on a connection."""
    async with asyncio.timeout(PATIENCE):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
    return Answer(int(head.split()[1]), codec.decode_answer(body) if body else None)


async def ask(port: Port, said: bytes, tls: ssl.SSLContext | None = None) -> Answer:
    """Send one request on a new connection and return its answer."""
    async with connected(port, tls) as (reader, writer):
        writer.write(said)
        return await answer(reader)
