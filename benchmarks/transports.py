"""Ways to send a float32 slice from a tensor in this process to a tensor in another process, over loopback.

The ways are fedpeer's own server and links and the alternatives: hand-written sockets, gRPC with a protobuf bytes
field, and naive HTTP. Each has its receiver in a separate process, and a `send` that returns when the receiver reports
that it has the slice and has done the job: only moved it, or also checked it for finiteness and added it to float64, or
also saved it. A receiver with a kept buffer has allocated it before the clock starts.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import struct
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, Protocol

import grpc
import msgpack
import numpy as np
import torch
from aiohttp import ClientSession, web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.wrappers_pb2 import BytesValue
from torch import Tensor

from fedpeer.gossip.reductions import FLOAT32, all_finite
from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.runtime.admission import Host
from fedpeer.peer.runtime.buffers import BufferPool, Lease
from fedpeer.peer.runtime.certificates import authority_certificate, key_pem, peer_certificate, pem
from fedpeer.peer.runtime.client import PeerLinks
from fedpeer.peer.runtime.identity import Identity, client_context, server_context, shared_client_context
from fedpeer.peer.runtime.listener import bind_socket
from fedpeer.peer.runtime.outcomes import DeliveryReceipt, Outcome
from fedpeer.peer.runtime.server import PeerServer
from fedpeer.peer.runtime.two_way import Chunks
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_policy import GroupSpec, MessagePolicy
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Message, Transfer
from fedpeer.rejection import Rejection, RejectionError

#: "cold" is "moved" without a buffer that was allocated before.
Job = Literal["moved", "merged", "saved", "cold"]
#: Bytes of one read of the hand-written sockets: the fastest of 16 KiB to 4 MiB with a kept buffer.
READ_BYTES = 128 * 1024
#: Numbers added at a time: float32 and float64 of them stay in the cache.
MERGE_COUNT = 1 << 15
#: Seconds after which a receiver counts as broken.
PATIENCE = 120.0

FEDERATION, GROUP = bytes(16), "slice"
#: The sender, the receiver, and a peer that may carry between them.
PEERS = ("a", "b", "c")


class Arrived:
    """Work of a receiver on a slice that lies in its buffer; the same for all transports."""

    def __init__(self, job: Job, length: int) -> None:
        self.job, self.held_D = job, np.zeros(length)
        self.held_D += 1.0  # touched, so that its pages exist before the clock starts
        self.file = tempfile.TemporaryFile(dir=".") if job == "saved" else None  # noqa: SIM115 (lives as long as we)

    def merge(self, value_D: Tensor) -> None:
        """Add the slice to float64, a piece at a time."""
        value = value_D.numpy()
        for start in range(0, len(value), MERGE_COUNT):
            held = self.held_D[start : start + MERGE_COUNT]
            np.add(held, value[start : start + MERGE_COUNT], out=held)

    def finish(self, value_D: Tensor, checked: bool) -> None:
        """Do the job; `checked`: whether the slice is known to be finite."""
        if self.job in ("moved", "cold"):
            return
        assert checked or all_finite(value_D), "what was sent is finite"
        self.merge(value_D)
        if self.file is not None:
            self.file.seek(0)
            self.file.write(value_D.numpy().data)
            self.file.flush()
            os.fsync(self.file.fileno())


class Transport(Protocol):
    """One way to send a slice; `receiver` is the process at the other end."""

    receiver: Receiver

    def send(self, value_D: Tensor) -> None: ...

    def close(self) -> None: ...


class Receiver:
    """A process that runs `serve(report, *options)`, which reports its port."""

    def __init__(self, serve: Callable[..., None], *options: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_child, args=(serve, theirs, *options), daemon=True)
        self._process.start()
        self.port = self._port_reported()
        self.pid = self._process.pid or 0

    def _port_reported(self) -> int:
        if not self._pipe.poll(PATIENCE):
            raise RuntimeError("a receiver does not start")
        port: int = self._pipe.recv()
        return port

    def close(self) -> None:
        self._process.terminate()
        self._process.join(PATIENCE)


def _child(serve: Callable[..., None], report: Connection, *options: object) -> None:
    torch.set_num_threads(1)
    serve(report.send, *options)


def kept(length: int) -> Tensor:
    """Return a buffer whose pages exist."""
    return torch.zeros(length, dtype=torch.float32)


# ----------------------------------------------------------------------------------------------------------- the keys


class Keys:
    """The peers' certificates, in a folder that exists as long as this object."""

    def __init__(self, peers: Sequence[str] = PEERS) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fedpeer-bench-")
        authority = Ed25519PrivateKey.generate()
        issuer = authority_certificate(authority, "bench")
        self.folder, self.public = Path(self._folder.name), {}
        (self.folder / "ca.crt").write_bytes(pem(issuer))
        for peer in peers:
            key = Ed25519PrivateKey.generate()
            certificate = peer_certificate(issuer, authority, peer, key.public_key(), "127.0.0.1")
            (self.folder / f"{peer}.crt").write_bytes(pem(certificate))
            (self.folder / f"{peer}.key").write_bytes(key_pem(key))
            self.public[peer] = key.public_key().public_bytes_raw()

    def close(self) -> None:
        self._folder.cleanup()


def identity_of(folder: Path, peer: str) -> Identity:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key_file = folder / f"{peer}.key"
    key = load_pem_private_key(key_file.read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    return Identity(peer, key, folder / f"{peer}.crt", key_file, folder / "ca.crt")


# ------------------------------------------------------------------------------------------------------------ fedpeer


def _serve_fedpeer(report: Callable[[int], None], job: Job, length: int, folder: Path | None) -> None:
    arrived = Arrived(job, length)

    def deliver(sender: str, envelope: Envelope, message: Message, lease: Lease) -> None:
        assert isinstance(message, Transfer)
        arrived.finish(message.share.payload, checked=True)
        lease.release()

    def rejected(rejection: Rejection) -> None:
        raise RejectionError(rejection)

    async def serve() -> None:
        host = Host(
            identify=lambda der: "a",
            listens=lambda peer: True,
            policy=lambda peer: _policy("b", length),
            deliver=deliver,
            broken=lambda error, sender: None,
            rejected=rejected,
        )
        pool = BufferPool()
        if job != "cold":
            warm = pool.lease("a", GROUP, 4 * length, most=1, kept=True)
            assert warm is not None, "nothing is lent yet"
            warm.view[:] = bytes(4 * length)
            warm.release()
        listening = bind_socket("127.0.0.1", 0, plain=folder is None)
        server = PeerServer(host, pool)
        await server.start(listening, server_context(identity_of(folder, "b")) if folder else None)
        report(listening.getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(serve())


def _policy(me: str, length: int) -> MessagePolicy:
    both = frozenset("ab")
    spec = GroupSpec(length=length, forms={"float32": FLOAT32}, members=both, neighbors=both, weight_max=2.0)
    return MessagePolicy(federation=FEDERATION, me=me, incarnation=1, other=None, peers=both, groups={GROUP: spec})


class Fedpeer:
    """The path of a real peer's transfer: `codec.encode`, `PeerLinks`, `PeerServer`, `codec.finish`; always checked."""

    def __init__(self, job: Job, length: int, keys: Keys | None = None) -> None:
        self.receiver = Receiver(_serve_fedpeer, job, length, keys and keys.folder)
        self._tls = client_context(identity_of(keys.folder, "a"), keys.public["b"]) if keys else None
        self._address = f"{'https' if keys else 'http'}://127.0.0.1:{self.receiver.port}"
        self._loop, self._seq = asyncio.new_event_loop(), 0
        self._links = self._loop.run_until_complete(self._opened())

    async def _opened(self) -> PeerLinks:
        """Return links. With TLS, as between real peers, the first slice opens a connection for both directions."""

        async def receive(certificate: bytes, length: int, chunks: Chunks) -> bytes:
            raise AssertionError("the receiver sends answers only")

        tls = self._tls
        return PeerLinks((lambda peer: tls) if tls is not None else None, self._reported, me="a", receive=receive)

    def _reported(self, peer: str, outcome: Outcome) -> None:
        self._answered.set_result(outcome)

    def send(self, value_D: Tensor) -> None:
        self._seq += 1
        self._answered: asyncio.Future[Outcome] = self._loop.create_future()
        envelope = Envelope(federation=FEDERATION, sender="a", recipient="b", incarnation=1, to_incarnation=1)
        share = NumberedTransfer(seq=self._seq, round=1, exchange=1, weight=1.0, form="float32", payload=value_D)
        head, tail = codec.encode(envelope, Transfer(group=GROUP, share=share))
        self._loop.call_soon(partial(self._links.send, "b", self._address, head, tail, both_ways=True))
        outcome = self._loop.run_until_complete(self._answered)
        if not isinstance(outcome, DeliveryReceipt):
            raise RuntimeError(f"not taken: {outcome}")

    def close(self) -> None:
        self._loop.run_until_complete(self._links.close())
        self._loop.close()
        self.receiver.close()


# ---------------------------------------------------------------------------------------------------- sockets by hand


def _serve_sockets(report: Callable[[int], None], job: Job, length: int, folder: Path | None) -> None:
    arrived, value_D = Arrived(job, length), kept(length)
    view = value_D.numpy().data.cast("B")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        report(listening.getsockname()[1])
        connection, _ = listening.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if folder:
        connection = server_context(identity_of(folder, "b")).wrap_socket(connection, server_side=True)
    while len(connection.recv(8)) == 8:
        read = 0
        while read < len(view):
            read += connection.recv_into(view[read : read + READ_BYTES])
        arrived.finish(value_D, checked=False)
        connection.sendall(b"k")


class Sockets:
    """A blocking socket, TCP or `ssl`, with a head of 8 bytes: the floor."""

    def __init__(self, job: Job, length: int, keys: Keys | None = None) -> None:
        self.receiver = Receiver(_serve_sockets, job, length, keys and keys.folder)
        self._socket = socket.create_connection(("127.0.0.1", self.receiver.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if keys:
            self._socket = shared_client_context(identity_of(keys.folder, "a")).wrap_socket(self._socket)

    def send(self, value_D: Tensor) -> None:
        self._socket.sendall(struct.pack("<Q", 4 * len(value_D)))
        self._socket.sendall(value_D.numpy().data.cast("B"))
        assert self._socket.recv(1) == b"k", "the receiver is gone"

    def close(self) -> None:
        self._socket.close()
        self.receiver.close()


# --------------------------------------------------------------------------------------------------------------- gRPC


def _serve_grpc(report: Callable[[int], None], job: Job, length: int) -> None:
    arrived, value_D = Arrived(job, length), kept(length)

    def take(request: BytesValue, context: grpc.ServicerContext) -> BytesValue:
        value_D.copy_(torch.frombuffer(bytearray(request.value), dtype=torch.float32))
        arrived.finish(value_D, checked=False)
        return BytesValue()

    method = grpc.unary_unary_rpc_method_handler(take, BytesValue.FromString, BytesValue.SerializeToString)
    server = grpc.server(ThreadPoolExecutor(1), options=_GRPC_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"take": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    report(port)
    server.wait_for_termination()


_GRPC_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class Grpc:
    """A unary call whose message is a protobuf with one bytes field."""

    def __init__(self, job: Job, length: int) -> None:
        self.receiver = Receiver(_serve_grpc, job, length)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{self.receiver.port}", options=_GRPC_OPTIONS)
        self._call = self._channel.unary_unary("/bench/take", BytesValue.SerializeToString, BytesValue.FromString)

    def send(self, value_D: Tensor) -> None:
        self._call(BytesValue(value=value_D.numpy().tobytes()), timeout=PATIENCE)

    def close(self) -> None:
        self._channel.close()
        self.receiver.close()


# ---------------------------------------------------------------------------------------------------------- naive HTTP


def _serve_naive(report: Callable[[int], None], job: Job, length: int) -> None:
    arrived = Arrived(job, length)

    async def take(request: web.Request) -> web.Response:
        fields = msgpack.unpackb(await request.read(), max_bin_len=4 * length)
        arrived.finish(torch.frombuffer(bytearray(fields["value"]), dtype=torch.float32), checked=False)
        return web.Response(status=204)

    async def serve() -> None:
        app = web.Application(client_max_size=8 * length)
        app.router.add_post("/", take)
        runner, listening = web.AppRunner(app), bind_socket("127.0.0.1", 0)
        await runner.setup()
        await web.SockSite(runner, listening).start()
        report(listening.getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(serve())


class Naive:
    """aiohttp, with the whole body packed and read at once."""

    def __init__(self, job: Job, length: int) -> None:
        self.receiver = Receiver(_serve_naive, job, length)
        self._loop = asyncio.new_event_loop()
        self._session = self._loop.run_until_complete(self._opened())

    async def _opened(self) -> ClientSession:
        return ClientSession()

    def send(self, value_D: Tensor) -> None:
        self._loop.run_until_complete(self._post(msgpack.packb({"value": value_D.numpy().tobytes()})))

    async def _post(self, body: bytes) -> None:
        async with self._session.post(f"http://127.0.0.1:{self.receiver.port}/", data=body) as answer:
            assert answer.status == 204, answer.status

    def close(self) -> None:
        self._loop.run_until_complete(self._session.close())
        self._loop.close()
        self.receiver.close()
