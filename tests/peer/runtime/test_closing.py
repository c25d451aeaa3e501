"""A peer that ends closes its connections also where the other side does not answer."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from dataclasses import replace
from pathlib import Path

from fedpeer.peer.runtime.client import PeerLinks
from fedpeer.peer.runtime.identity import client_context, server_context
from fedpeer.peer.wire.codec import encode
from tests.peer.frames import ENVELOPE, MESSAGES
from tests.peer.runtime.people import People
from tests.peer.runtime.port import PATIENCE, Port, Reports, serving


def test_no_connection_stays_open_while_the_other_peer_stands_still(tmp_path: Path) -> None:
    people = People.at(tmp_path / "wards")
    identities = {me: people.identity(me) for me in ("ann", "bob")}
    port, serves, linked, stands, over = Port(owner="ann"), *(threading.Event() for _ in range(4))

    async def bob() -> None:
        tls = server_context(identities["bob"])
        async with serving(port, tls=tls, linked=lambda peer, link: linked.set()):
            serves.set()
            assert await asyncio.to_thread(linked.wait, PATIENCE)
            stands.set()
            over.wait(PATIENCE)  # his loop is blocked, so he answers nothing

    async def ann() -> None:
        tls = client_context(identities["ann"], people.roster.by_id["bob"].key)
        links = PeerLinks(lambda peer: tls, Reports(), me="ann", receive=lambda *message: asyncio.sleep(0, b""))
        frame = encode(replace(ENVELOPE, sender="ann", recipient="bob"), MESSAGES["ack"])
        links.send("bob", port.url, *frame, both_ways=True)
        assert await asyncio.to_thread(stands.wait, PATIENCE)
        await links.close()

    beside = threading.Thread(target=asyncio.run, args=(bob(),))
    beside.start()
    assert serves.wait(PATIENCE)
    gc.collect()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        asyncio.run(ann())
        gc.collect()
    over.set()
    beside.join(PATIENCE)
    assert not [str(each.message) for each in found]
