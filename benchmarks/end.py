"""A peer's server, links and carrier, without the rest of a peer, for benchmarks of connections."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.transports import FEDERATION, GROUP, identity_of
from fedpeer.gossip.reductions import FLOAT32
from fedpeer.peer.runtime.admission import Host
from fedpeer.peer.runtime.buffers import BufferPool
from fedpeer.peer.runtime.carrier import Carrier, Neighborhood
from fedpeer.peer.runtime.client import PeerLinks
from fedpeer.peer.runtime.identity import expecting, server_context, shared_client_context
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.listener import bind_socket
from fedpeer.peer.runtime.outcomes import DeliveryReceipt, Outcome
from fedpeer.peer.runtime.server import PeerServer
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_policy import GroupSpec, MessagePolicy
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Ack, Message

#: Seconds between two attempts to reach a peer that is not connected yet.
AGAIN_S = 0.05
#: Limit on messages per second that never applies, since the rate is measured.
ANY_RATE = 1e6
#: Seconds after which a short message that was not sent is dropped.
OUTDATED_S = Limits().stale_s


class End:
    """One peer with server, links and carrier, like a real peer; it drops all messages that arrive.

    me         its id
    folder     the folder with its keys
    public     the keys of all peers
    length     numbers of the longest slice
    outbound   whether it opens all connections at once, whatever its id
    """

    def __init__(
        self, me: str, folder: Path, public: dict[str, bytes], length: int = 1, *, outbound: bool = True
    ) -> None:
        self.me, self.outcomes = me, defaultdict[str, asyncio.Queue[Outcome]](asyncio.Queue)
        identity, everybody = identity_of(folder, me), frozenset(public)
        limits = replace(Limits.among(len(public)), requests_per_second=ANY_RATE, requests_per_second_of_all=ANY_RATE)
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
            expects=lambda address: True,
        )
        self.server = PeerServer(host, BufferPool(), limits)
        known = Neighborhood(link=lambda peer: self.links.link(peer, direct=True), member=everybody.__contains__)
        self.carrier = Carrier(me, known, self.server.take, limits, rate=math.inf)
        shared = shared_client_context(identity)
        self.links = PeerLinks(
            lambda peer: expecting(shared, public[peer]),
            lambda peer, outcome: self.outcomes[peer].put_nowait(outcome),
            limits,
            me=me,
            receive=self.server.admission.take_over,
            carrier=self.carrier,
            outbound=outbound,
        )

    async def listen(self, report: Callable[[int], None]) -> None:
        listening = bind_socket("127.0.0.1", 0)
        await self.server.start(listening, self.tls)
        report(listening.getsockname()[1])

    def send(self, to: str, address: str, message: Message) -> None:
        envelope = Envelope(federation=FEDERATION, sender=self.me, recipient=to, incarnation=1, to_incarnation=1)
        self.links.send(to, address, *codec.encode(envelope, message), both_ways=True)

    async def until_linked(self, to: str, address: str) -> None:
        """Send short messages until one has arrived and there is a connection for both directions."""
        while not isinstance(await self.acknowledge(to, address), DeliveryReceipt) or self.links.link(to) is None:
            await asyncio.sleep(AGAIN_S)

    async def acknowledge(self, to: str, address: str) -> Outcome:
        """Send a short message, and again if it became outdated before it was sent; return the outcome."""
        while True:
            self.send(to, address, Ack(group=GROUP, taken=0, round=0))
            with suppress(TimeoutError):
                return await asyncio.wait_for(self.outcomes[to].get(), OUTDATED_S)


@lru_cache
def _key(der: bytes) -> bytes:
    from cryptography import x509

    key: Any = x509.load_der_x509_certificate(der).public_key()
    return bytes(key.public_bytes_raw())
