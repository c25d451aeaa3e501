"""`python -m benchmarks.carried [--quick]`: a slice between two peers through a third one, beside the direct way.

Three processes on loopback: this one sends, one receives, one carries. In both cases the two have an ordinary
connection with mutual TLS of their own, and each slice is read, checked and answered as between real peers. On a
machine with two cores the carrier has to share them with both.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from benchmarks.measure import Lap, Spent, interleaved, times
from benchmarks.rows import Row, Section, compared
from benchmarks.transports import FEDERATION, GROUP, PEERS, Keys, Receiver, identity_of
from fedpeer.config.address import PeerUrl
from fedpeer.gossip.reductions import FLOAT32
from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.runtime.admission import Host
from fedpeer.peer.runtime.buffers import BufferPool
from fedpeer.peer.runtime.carrier import Carrier, Neighborhood
from fedpeer.peer.runtime.client import DeliveryReceipt, Outcome, PeerLinks
from fedpeer.peer.runtime.identity import client_context, server_context
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.listener import bind_socket
from fedpeer.peer.runtime.server import PeerServer
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_policy import GroupSpec, MessagePolicy
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Ack, Message, Transfer

SLICES = {"1 MB": 250_000, "10 MB": 2_500_000, "100 MB": 25_000_000}
#: Seconds between two attempts to reach a peer that is not connected yet.
AGAIN_S = 0.05


class End:
    """One of the three peers: server, links and carrier, as in a real peer; what arrives is dropped."""

    def __init__(self, me: str, folder: Path, public: dict[str, bytes], length: int) -> None:
        self.me, self.outcomes = me, asyncio.Queue[tuple[str, Outcome]]()
        identity, limits, everybody = identity_of(folder, me), Limits(), frozenset(PEERS)
        self.tls = server_context(identity)
        spec = GroupSpec(
            length=length, forms={"float32": FLOAT32}, members=everybody, neighbors=everybody, weight_max=2
        )
        policy = MessagePolicy(
            federation=FEDERATION, me=me, incarnation=1, other=None, peers=everybody, groups={GROUP: spec}
        )
        by_key = {key: peer for peer, key in public.items()}
        host = Host(
            identify=lambda der: by_key[_key(der or b"")],
            listens=lambda peer: True,
            policy=lambda peer: policy,
            deliver=lambda sender, envelope, message, lease: lease.release(),
            broken=lambda error, sender: print(error),
            rejected=print,
            linked=lambda peer, link: self.links.linked(peer, link),
            begun=lambda sender, *stream: self.carrier.begun(sender, *stream),
        )
        self.server = PeerServer(host, BufferPool(), limits)
        known = Neighborhood(link=lambda peer: self.links.link(peer, direct=True), member=everybody.__contains__)
        self.carrier = Carrier(me, known, self.server.take, limits, rate=math.inf)
        self.links = PeerLinks(
            lambda peer: client_context(identity, public[peer]),
            lambda peer, outcome: self.outcomes.put_nowait((peer, outcome)),
            limits,
            me=me,
            receive=self.server.admission.take_over,
            carrier=self.carrier,
            outbound=True,
        )

    async def listen(self, report: Callable[[int], None]) -> None:
        listening = bind_socket("127.0.0.1", 0)
        await self.server.start(listening, self.tls)
        report(listening.getsockname()[1])

    def send(self, to: str, address: str, message: Message) -> None:
        envelope = Envelope(federation=FEDERATION, sender=self.me, recipient=to, incarnation=1, to_incarnation=1)
        self.links.send(to, address, *codec.encode(envelope, message), both_ways=True)

    async def until_linked(self, to: str, address: str) -> None:
        outcome: tuple[str, Outcome] | None = None
        while self.links.link(to) is None or not outcome or not isinstance(outcome[1], DeliveryReceipt):
            self.send(to, address, Ack(group=GROUP, taken=0, round=0))
            outcome = await self.outcomes.get()
            await asyncio.sleep(AGAIN_S)


def _key(der: bytes) -> bytes:
    from cryptography import x509

    key: Any = x509.load_der_x509_certificate(der).public_key()
    return bytes(key.public_bytes_raw())


def _serve(
    report: Callable[[int], None], me: str, folder: Path, public: dict[str, bytes], length: int, carrier: str
) -> None:
    """Run a peer that listens, or one to which nobody can connect and that connects to a carrier."""

    async def serve() -> None:
        end = End(me, folder, public, length)
        if carrier:
            await end.server.start(None, end.tls)
            await end.until_linked("c", carrier)
            report(1)
        else:
            await end.listen(report)
        await asyncio.Event().wait()

    asyncio.run(serve())


class Way:
    """This process's peer, and the other one, to which it has a connection: direct, or through a carrier."""

    def __init__(self, keys: Keys, length: int, *, carried: bool) -> None:
        self._loop, self._seq = asyncio.new_event_loop(), 0
        known = keys.folder, keys.public, length
        self._others = [Receiver(_serve, "c", *known, "")] if carried else []
        through = f"https://127.0.0.1:{self._others[0].port}" if carried else ""
        self._others.append(Receiver(_serve, "b", *known, through))
        self.address = str(PeerUrl.nowhere("b")) if carried else f"https://127.0.0.1:{self._others[0].port}"
        self._loop.run_until_complete(self._open(keys, length, through))

    async def _open(self, keys: Keys, length: int, through: str) -> None:
        self._end = End("a", keys.folder, keys.public, length)
        if through:
            await self._end.until_linked("c", through)
        await self._end.until_linked("b", self.address)

    def sent(self, value_D: Tensor) -> Lap:
        began = self._loop.time()
        self._loop.run_until_complete(self._send(value_D))
        return {"sent": Spent(0, self._loop.time() - began)}

    async def _send(self, value_D: Tensor) -> None:
        self._seq += 1
        share = NumberedTransfer(seq=self._seq, round=1, exchange=1, weight=1.0, form="float32", payload=value_D)
        self._end.send("b", self.address, Transfer(group=GROUP, share=share))
        outcome: tuple[str, Outcome] | None = None
        while outcome is None or outcome[0] != "b":
            outcome = await self._end.outcomes.get()
        if not isinstance(outcome[1], DeliveryReceipt):
            raise RuntimeError(f"not taken: {outcome[1]}")

    def close(self) -> None:
        self._loop.run_until_complete(self._end.links.close())
        self._loop.close()
        for each in self._others:
            each.close()


def measure(quick: bool) -> Section:
    """Slices of three sizes, 11 pairs each; quick: 3."""
    keys, pairs, rows = Keys(), 3 if quick else 11, list[Row]()
    for size, length in SLICES.items():
        value_D = torch.frombuffer(bytearray(os.urandom(4 * length)), dtype=torch.int32).to(torch.float32)
        carried, direct = Way(keys, length, carried=True), Way(keys, length, carried=False)
        for way in (carried, direct):
            way.sent(value_D)
        a, b = interleaved(partial(carried.sent, value_D), partial(direct.sent, value_D), pairs)
        wall = (times(laps, "sent", clock="wall", per=1e-3) for laps in (a, b))
        rows.append(compared(f"{size} through a third peer", "ms", next(wall), next(wall)))
        for way in (carried, direct):
            way.close()
    keys.close()
    return Section(
        "Through a third peer",
        "By the clock, until the receiver has answered; the floor is the direct way with the same code. The target of "
        "0.4 of the direct rate is a factor of 2.5.",
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.carried", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few pairs: wide intervals")
    Console(width=120).print(measure(parser.parse_args().quick).table())


if __name__ == "__main__":
    main()
