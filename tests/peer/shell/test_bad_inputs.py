"""P9: everything bad that bytes can be, said over TLS to a running peer.

`bob` is a whole process but for the fork: node, disk, port, in a thread of its own; `ann` is in his roster, and the
test has her key. Each input gets its name in the answer and in the status, changes nothing in the ledger, and a good
message is still taken afterwards. Ids are those of the table of bad inputs.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pytest

from fedpeer.peer.core import codec
from fedpeer.peer.core.events import Asked
from fedpeer.peer.core.journal import snapshot_bytes
from fedpeer.peer.core.messages import Envelope, Ping
from fedpeer.peer.core.peer_file import PeerFile
from fedpeer.peer.core.roster import to_bytes
from fedpeer.peer.shell.identity import Identity
from fedpeer.peer.shell.listener import bind
from fedpeer.peer.shell.prepared import prepare
from fedpeer.peer.shell.process import Process
from fedpeer.peer.shell.server import CONTENT_TYPE, ROUTE
from tests.peer.hostile import HOSTILE, Hostile, Party
from tests.peer.shell.people import People
from tests.sims import worlds

#: Seconds after which something hangs.
PATIENCE = 20.0
T = TypeVar("T")


@dataclass
class Running:
    """bob, and ann's ways to speak to him."""

    process: Process
    loop: asyncio.AbstractEventLoop
    port: int
    party: Party
    tls: ssl.SSLContext

    def inside(self, do: Callable[[], T]) -> T:
        """In bob's own thread, between two of his steps."""

        async def done() -> T:
            return do()

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(PATIENCE)

    def say(self, frame: bytes) -> str:
        """The code of the refusal, or "" if it is taken."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE, context=self.tls)
        try:
            connection.request("POST", ROUTE, frame, {"Content-Type": CONTENT_TYPE})
            answer = connection.getresponse()
            refused = codec.decode_answer(answer.read())
            assert refused is not None or answer.status == 204
            return refused.code if refused is not None else ""
        finally:
            connection.close()

    def counted(self, code: str) -> int:
        rows = self.inside(lambda: self.process.status.as_json()["refusals"])
        return sum(row["count"] for row in rows if row["code"] == code)

    def ledger(self) -> bytes:
        """A digest of all that is durable."""
        return self.inside(lambda: hashlib.sha256(snapshot_bytes(self.process._node.ledger, {})).digest())

    def forgive(self) -> None:
        """Whatever ann did before is not held against her."""

        def clear() -> None:
            self.process._node.life.standing.clear()
            self.process._node.life.changed()

        self.inside(clear)

    def good(self) -> bytes:
        head, tail = codec.encode(
            Envelope(federation=self.party.federation, sender="ann", recipient="bob", incarnation=1, to_incarnation=0),
            Ping(number=1, claims=()),
        )
        return bytes(head) + bytes(tail)


@pytest.fixture(scope="module")
def bob(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("bad inputs")
    people = People.at(folder / "people")
    ann, mine, _ = (people.identity(peer) for peer in ("ann", "bob", "cas"))
    (folder / "roster.json").write_bytes(to_bytes(people.roster))
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    models = {
        "all": {"neurons": {"input": "all", "hidden1": 1}},
        "closed": {"depends_on": ["all"], "neurons": {"hidden1": 1}, "members": ["bob", "cas"]},
    }
    federation = worlds.federation(network="mlp:64+3+10", gossip__gather=3600.0, partial_models=models)
    keys = {"certificate": mine.certificate_file, "key": mine.key_file, "authority": mine.authority_file}
    file = PeerFile.model_validate(
        {
            "id": "bob",
            "federation": "federation.yaml",
            "roster": str(folder / "roster.json"),
            "listen": f"127.0.0.1:{port}",
            "state": str(folder / "state"),
            "identity": {name: str(path) for name, path in keys.items()},
            "data": {"simulation": 1},
        }
    )
    begun = threading.Event()
    found: dict[str, object] = {}

    async def live() -> None:
        process = Process(prepare(file, federation), quiet=True)
        found.update(process=process, loop=asyncio.get_running_loop())
        run = asyncio.create_task(process.run())
        while not any("listening on" in line["text"] for line in process.status.as_json()["log"]) and not run.done():
            await asyncio.sleep(0.01)
        begun.set()
        await run

    thread = threading.Thread(target=lambda: asyncio.run(live()), name="bob")
    thread.start()
    assert begun.wait(PATIENCE)
    process, loop = found["process"], found["loop"]
    assert isinstance(process, Process)
    assert isinstance(loop, asyncio.AbstractEventLoop)
    yield running(process, loop, port, ann, people)
    loop.call_soon_threadsafe(process.feed, Asked("pause"))
    thread.join(PATIENCE)
    assert not thread.is_alive()


def running(process: Process, loop: asyncio.AbstractEventLoop, port: int, ann: Identity, people: People) -> Running:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = False
    tls.load_verify_locations(ann.authority_file)
    tls.load_cert_chain(ann.certificate_file, ann.key_file)
    party = Party(
        federation=people.roster.federation_id,
        sender="ann",
        recipient="bob",
        third="cas",
        incarnation=1,
        to_incarnation=1,
        group="all",
        closed="closed",
        far="all",
        length=process._node.life.circle.groups["all"].length,
        weight_max=3.0,
    )
    return Running(process, loop, port, party, tls)


#: A ring of three has no two who are not neighbours; `tests/peer/core/test_node.py` has that one.
SAID = [bad for bad in HOSTILE if bad.id != "S12"]


@pytest.mark.parametrize("bad", SAID, ids=lambda bad: bad.id)
def test_a_running_peer_refuses_by_name_and_goes_on(bob: Running, bad: Hostile) -> None:
    bob.forgive()
    ledger, before = bob.ledger(), bob.counted(bad.code)
    assert bob.say(bad.build(bob.party)) == bad.code
    assert bob.counted(bad.code) == before + 1
    assert bob.ledger() == ledger
    bob.forgive()
    assert bob.say(bob.good()) == ""
