"""A peer port in its own process, to be flooded: `python -m tests.peer.runtime.flooded FOLDER LENGTH`.

It is bob of the federation in FOLDER (`people.py`), with one averaging group of LENGTH parameters, and drops the
messages that it accepts. It prints its process id and its port, serves until its standard input ends, and then prints
as JSON the number of rejections by code and the number of accepted messages.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedpeer.peer.runtime.admission import Host
from fedpeer.peer.runtime.buffers import BufferPool, Lease
from fedpeer.peer.runtime.identity import Identity, peer_of, server_context
from fedpeer.peer.runtime.listener import bind_socket
from fedpeer.peer.runtime.server import PeerServer
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Message
from fedpeer.peer.wire.roster import from_bytes
from tests.peer.frames import POLICY, spec


async def serve(folder: Path, length: int) -> None:
    said: Counter[str] = Counter()
    roster = from_bytes((folder / "roster.json").read_bytes())
    policy = replace(POLICY, groups={"all": spec(length=length)})

    def deliver(sender: str, envelope: Envelope, message: Message, lease: Lease) -> None:
        said["taken"] += 1
        lease.release()

    host = Host(
        identify=lambda der: peer_of(der, roster),
        listens=lambda peer: True,
        policy=lambda peer: replace(policy, other=peer),
        deliver=deliver,
        rejected=lambda rejection: said.update([rejection.code]),
        broken=lambda error, sender: said.update(["broken"]),
    )
    key = load_pem_private_key((folder / "bob.key").read_bytes(), None)
    bob = Identity("bob", key, folder / "bob.crt", folder / "bob.key", folder / "ca.crt")  # type: ignore[arg-type]
    server, listening = PeerServer(host, BufferPool()), bind_socket("127.0.0.1", 0)
    await server.start(listening, server_context(bob))
    print(os.getpid(), listening.getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
