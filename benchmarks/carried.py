"""`python -m benchmarks.carried [--quick]`: a slice between two peers through a third, compared with the direct way.

There are three processes on loopback: this one sends, one receives, one carries. In both cases sender and receiver have
their own ordinary connection with mutual TLS, and each slice is read, checked and answered as between real peers. On a
machine with two cores the carrier has to share them with both.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.end import End
from benchmarks.measure import Lap, Spent, cpu_seconds, interleaved, times
from benchmarks.rows import Row, Section, compared, show
from benchmarks.transports import GROUP, Keys, Receiver
from fedpeer.config.address import PeerUrl
from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.runtime.outcomes import DeliveryReceipt
from fedpeer.peer.wire.messages import Transfer

SLICES = {"1 MB": 250_000, "10 MB": 2_500_000, "100 MB": 25_000_000}


def _serve(
    report: Callable[[int], None], me: str, folder: Path, public: dict[str, bytes], length: int, carrier: str
) -> None:
    """Run a peer that listens, or a peer that no peer can reach and that connects to a carrier."""

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
    """This process's peer and the other peer, connected directly or through a carrier."""

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
        outcome = await self._end.outcomes["b"].get()
        if not isinstance(outcome, DeliveryReceipt):
            raise RuntimeError(f"not taken: {outcome}")

    def acknowledged(self, count: int) -> Lap:
        """Send short messages one after the other; return the processor time of each side for one and its answer."""
        other = [self._others[-1].pid]
        ours, both = cpu_seconds([]), cpu_seconds(other)
        self._loop.run_until_complete(self._acknowledge(count))
        ours, both = cpu_seconds([]) - ours, cpu_seconds(other) - both
        return {"opener": Spent(ours / count, 0), "other": Spent((both - ours) / count, 0)}

    async def _acknowledge(self, count: int) -> None:
        for _ in range(count):
            await self._end.acknowledge("b", self.address)

    def close(self) -> None:
        self._loop.run_until_complete(self._end.links.close())
        self._loop.close()
        for each in self._others:
            each.close()


def measure(quick: bool) -> Section:
    """Measure slices of three sizes, in 11 pairs each; quick: 3."""
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


if __name__ == "__main__":
    show("carried", __doc__, measure)
