"""`python -m benchmarks.meeting [--quick]`: processor time until many peers have met, beside bare TLS handshakes.

All peers are in this process. They begin one after another, like processes; a peer that begins sends a message to each
peer that has begun, and gets one from each. The floor is one handshake a pair by asyncio, with one context a peer, and
one byte in each direction. The measurement includes neither a peer's saving nor its computations to join.
"""

from __future__ import annotations

import asyncio
import gc
import ssl

import psutil

from benchmarks.end import AGAIN_S, End
from benchmarks.measure import Lap, Spent, cpu_seconds, interleaved, times
from benchmarks.rows import Section, compared, show
from benchmarks.transports import Keys, identity_of
from fedpeer.peer.runtime.identity import server_context, shared_client_context
from fedpeer.peer.runtime.listener import bind_socket
from fedpeer.peer.runtime.outcomes import DeliveryReceipt

PEERS, PEERS_QUICK = 100, 30


class Meeting:
    """Peers that begin one after another."""

    def __init__(self, keys: Keys) -> None:
        self._keys, self.connections = keys, 0

    def lap(self) -> Lap:
        return {"met": asyncio.run(self._met())}

    async def _met(self) -> Spent:
        began, there = cpu_seconds([]), list[tuple[End, str]]()
        for peer in self._keys.public:
            end = End(peer, self._keys.folder, self._keys.public, outbound=False)
            ports = list[int]()
            await end.listen(ports.append)
            newest = end, f"https://127.0.0.1:{ports[0]}"
            await asyncio.gather(*(_greet(*pair) for each in there for pair in ((newest, each), (each, newest))))
            there.append(newest)
        spent = cpu_seconds([]) - began
        self.connections = _connections()
        for end, _ in there:
            await end.links.close()
            await end.server.stop()
        return Spent(spent, 0)


async def _greet(sender: tuple[End, str], to: tuple[End, str]) -> None:
    """Send a message again until one has arrived."""
    (end, _), (other, address) = sender, to
    while not isinstance(await end.acknowledge(other.me, address), DeliveryReceipt):
        await asyncio.sleep(AGAIN_S)


class Handshakes:
    """One handshake a pair, by asyncio alone."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def lap(self) -> Lap:
        return {"met": asyncio.run(self._met())}

    async def _met(self) -> Spent:
        began, ports = cpu_seconds([]), list[int]()
        servers, writers = list[asyncio.Server](), list[asyncio.StreamWriter]()
        for peer in self._keys.public:
            identity = identity_of(self._keys.folder, peer)
            listening = bind_socket("127.0.0.1", 0)
            servers.append(await asyncio.start_server(_echo, sock=listening, ssl=server_context(identity)))
            tls = shared_client_context(identity)
            writers += await asyncio.gather(*(_exchanged(tls, port) for port in ports))
            ports.append(listening.getsockname()[1])
        spent = cpu_seconds([]) - began
        for writer in writers:
            writer.transport.abort()
        for server in servers:
            server.close()
        return Spent(spent, 0)


def _connections() -> int:
    """Return the number of TCP connections between the peers of this process, each of which has two ends here."""
    ends = psutil.Process().net_connections("tcp")
    return sum(end.status == psutil.CONN_ESTABLISHED for end in ends) // 2


async def _exchanged(tls: ssl.SSLContext, port: int) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    writer.write(b"x")
    await reader.readexactly(1)
    return writer


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readexactly(1))


def measure(quick: bool) -> Section:
    """Measure 100 peers in 5 pairs; quick: 30 peers in 3 pairs."""
    peers, pairs = (PEERS_QUICK, 3) if quick else (PEERS, 5)
    gc.freeze()  # as a peer does when it begins
    keys = Keys([f"p{number:03}" for number in range(peers)])
    ours, floor = Meeting(keys), Handshakes(keys)
    a, b = interleaved(ours.lap, floor.lap, pairs)
    spent = (times(laps, "met", per=1e-3) for laps in (a, b))
    rows = [compared(f"first meeting of {peers} peers", "ms", next(spent), next(spent), 1.3)]
    keys.close()
    return Section(
        "First meeting",
        f"Processor time of all peers together. Connections that were open at the end: {ours.connections}, "
        f"of {peers * (peers - 1) // 2} pairs.",
        rows,
    )


if __name__ == "__main__":
    show("meeting", __doc__, measure)
