"""P11: memory is bounded, also under attack.

A real process is flooded from outside and by one of its own neighbors; the operating system reports its peak memory.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpeer.gossip.transfers import WINDOW
from fedpeer.peer.runtime.identity import client_context
from fedpeer.peer.wire.roster import to_bytes
from tests.forked import python
from tests.peer.frames import PARTY
from tests.peer.hostile import ROSTER_NEWS, Party, craft_frame, transfer
from tests.peer.runtime.people import People
from tests.peer.runtime.port import Port, answer, connected, request

#: Parameters of the one group: 4 MB on the wire.
LENGTH = 1_000_000
#: Memory that a peer may need in addition to its buffers, at most (P11).
SLACK_BYTES = 64 << 20
#: Attackers of each kind at once: far more than the limits admit. If all were admitted, their bodies alone would take
#: 112 MB, a third more than P11 allows.
MANY = 28
#: Seconds that one attacker stays connected if it is not disconnected.
STAY = 0.5
#: Seconds within which a good message passes after the flood.
PATIENCE = 30.0
STATUS = "/proc/self/status"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path(STATUS).exists(), reason=f"needs {STATUS} (Linux)")]


@contextmanager
def flooded(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int, Port]]:
    """Start the program; yield the process that was started, the number of the program's own, and its port."""
    command = [*python(), "-m", "tests.peer.runtime.flooded", str(folder), str(LENGTH)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            pid, port = map(int, process.stdout.readline().split())
            yield process, pid, Port(number=port)
        finally:
            process.kill()


def memory(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def party() -> Party:
    return replace(PARTY, length=LENGTH)


async def attack(port: Port, tls: ssl.SSLContext | None, said: bytes) -> None:
    """Send these bytes, then stay connected until disconnected."""
    try:
        async with asyncio.timeout(STAY), connected(port, tls) as (reader, writer):
            writer.write(said)
            await writer.drain()
            while await reader.read(65536):
                pass
    except (OSError, TimeoutError):
        pass


async def flood(port: Port, insider: ssl.SSLContext, stranger: ssl.SSLContext) -> None:
    long = craft_frame(PARTY, ROSTER_NEWS, [2, b""], bytes(1 << 20))
    good, bad = transfer(party(), tail=bytes(4 * LENGTH)), transfer(party(), tail=b"\xff" * 4 * LENGTH)
    kinds: list[Callable[[], Coroutine[Any, Any, None]]] = [
        lambda: attack(port, None, b""),
        lambda: attack(port, None, b"\x16\x03\x01\x40\x00" + bytes(1 << 20)),
        lambda: attack(port, None, request(good)),
        lambda: attack(port, stranger, request(good)),
        lambda: attack(port, insider, request(good)[:-1]),
        lambda: attack(port, insider, request(bad)),
        lambda: attack(port, insider, request(long)[:-1]),
        lambda: attack(port, insider, request(b"", content_length="99999999999") + bytes(1 << 20)),
        lambda: attack(port, insider, b"POST /v1/message HTTP/1.1\r\n" + b"X: " + b"y" * (1 << 20)),
        lambda: attack(port, insider, request(b"", content_length=None, transfer_encoding="chunked") + good),
    ]
    for kind in kinds:  # each kind alone, so that no other kind keeps it out; then all kinds together
        await asyncio.gather(*(kind() for _ in range(MANY)))
    await asyncio.gather(*(kind() for kind in kinds for _ in range(MANY // 4)))


def test_memory_is_bounded_under_a_flood_and_good_messages_pass_after_it(tmp_path: Path) -> None:
    people = People.at(tmp_path / "wards")
    people.identity("bob")
    ann = people.identity("ann")
    (people.folder / "roster.json").write_bytes(to_bytes(people.roster))
    to_bob = client_context(ann, people.roster.by_id["bob"].key)
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE

    async def say(port: Port, byte: bytes) -> int:
        """Return the answer's status; try again while the rest of the flood occupies all of ann's places."""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    async with connected(port, to_bob) as (reader, writer):
                        writer.write(request(transfer(party(), tail=byte * 4 * LENGTH)))
                        return (await answer(reader)).status
                except (ConnectionError, asyncio.IncompleteReadError):
                    continue

    with flooded(people.folder) as (process, pid, port):
        asyncio.run(say(port, b"\0"))  # the memory of imports and first uses is part of the idle peer's
        idle = memory(pid, "VmRSS") - 4 * LENGTH
        asyncio.run(flood(port, to_bob, stranger))
        peak = memory(pid, "VmHWM")
        assert [asyncio.run(say(port, byte)) for byte in (b"\0", b"\xff")] == [204, 400]
        counts = json.loads(process.communicate("", timeout=30)[0])
    buffers = (WINDOW + 1) * 4 * LENGTH
    assert peak <= idle + buffers + SLACK_BYTES, f"{(peak - idle) >> 20} MiB above the idle peer"
    assert counts["taken"] >= 2
    assert {"tls_refused", "too_many_requests", "not_finite", "body_too_large", "unknown_route"} <= counts.keys()
    print(f"{(peak - idle) / 2**20:.1f} MiB above the idle peer, of {(buffers + SLACK_BYTES) / 2**20:.1f}: {counts}")
