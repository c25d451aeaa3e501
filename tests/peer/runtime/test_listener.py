"""Members get through while others hold places or connect: real floods of one port, from several loopback addresses.

The addresses are 127.0.0.2 and up, which Linux provides by default; members come from 127.0.0.1, their address in the
roster. Nothing is timed: a member sends its messages while the flood goes on, each on a connection of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from fedpeer.peer.runtime.handshakes import Handshakes
from fedpeer.peer.runtime.identity import client_context, peer_of, put_out, server_context
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.server import PeerServer
from fedpeer.peer.wire.messages import RosterNews
from fedpeer.peer.wire.roster import expel, to_bytes
from tests.peer.frames import MESSAGES, framed
from tests.peer.runtime.people import People
from tests.peer.runtime.port import PATIENCE, Port, answer, request, serving

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(sys.platform != "linux", reason="needs the addresses 127.0.0.2 and up (Linux)"),
]

HOME = "127.0.0.1"
#: As many addresses as once filled all places.
FLOODING = tuple(f"127.0.0.{number}" for number in range(2, 6))
ACK = request(framed(MESSAGES["ack"]))


@asynccontextmanager
async def bob(people: People, limits: Limits | None = None) -> AsyncIterator[tuple[Port, PeerServer]]:
    """Run bob's port, which follows the newest roster of `people` and expects members at `HOME`."""
    port = Port()
    async with serving(port, limits, tls=server_context(people.identity("bob"))) as server:

        def farewell(der: bytes | None) -> RosterNews | None:
            roster = people.roster
            return RosterNews(number=roster.number, text=to_bytes(roster)) if put_out(der, roster) else None

        server.admission.host = replace(
            server.admission.host, identify=lambda der: peer_of(der, people.roster), farewell=farewell
        )
        server._listener._expects = lambda address: address == HOME
        yield port, server


@asynccontextmanager
async def from_address(
    port: Port, address: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(HOME, port.number, ssl=tls, local_addr=(address, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def says(port: Port, tls: ssl.SSLContext, address: str = HOME) -> int:
    """Connect anew as a member and send a message; return the status of the answer."""
    async with from_address(port, address, tls) as (reader, writer):
        writer.write(ACK)
        return (await answer(reader)).status


@pytest.fixture
def people(tmp_path: Path) -> People:
    return People.at(tmp_path / "wards")


def member(people: People, name: str = "ann", *, admitted: bool = True) -> ssl.SSLContext:
    return client_context(people.identity(name, admitted=admitted), people.roster.by_id["bob"].key)


async def ended(reader: asyncio.StreamReader) -> None:
    """Wait until the other side has ended this connection, and ignore anything that it sends before."""
    async with asyncio.timeout(PATIENCE):
        with suppress(OSError):
            while await reader.read(65536):
                pass


# ----------------------------------------------------------------------------------------------------------- handshakes


async def test_who_holds_all_places_of_strangers_holds_none_of_members(people: People) -> None:
    """Four addresses with eight silent connections each once filled all places."""
    async with bob(people) as (port, _), AsyncExitStack() as stack:
        ann = member(people)
        for address in FLOODING * 8:
            await stack.enter_async_context(from_address(port, address))
        assert [await says(port, ann) for _ in range(5)] == [204] * 5
    assert set(port.codes) <= {"too_many_requests"}


async def test_members_are_heard_while_a_flood_goes_on(people: People) -> None:
    """The flood's connections send nothing, send nonsense, or end at once, and are made as quickly as possible."""
    async with bob(people) as (port, _):
        ann, going = member(people), True

        async def flood(address: str, said: bytes) -> int:
            for count in itertools.count():
                if not going:
                    return count
                with suppress(OSError, TimeoutError):
                    async with from_address(port, address) as (reader, writer):
                        writer.write(said)
                        if said:
                            await ended(reader)
            raise AssertionError("it counts for ever")

        kinds = (b"", b"\x16\x03\x01\x40\x00", b"GET / HTTP/1.1\r\n\r\n")
        floods = [asyncio.create_task(flood(address, said)) for address in FLOODING for said in kinds]
        received = [await says(port, ann) for _ in range(20)]
        going = False
        for each in floods:
            each.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
    assert received == [204] * 20
    assert len(port.codes) > 20, "there was a flood"
    assert "too_many_requests" in port.codes


async def test_a_member_from_an_address_that_nobody_expects_gets_the_place_of_the_oldest(people: People) -> None:
    """All strangers' places are held; once one is held for longer than a handshake takes, it gives way."""
    limits = Limits(handshakes_of_strangers=4, handshake_kept_s=0.05)
    async with bob(people, limits) as (port, _), AsyncExitStack() as stack:
        ann = member(people)
        held = [await stack.enter_async_context(from_address(port, address)) for address in FLOODING]
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(OSError, asyncio.IncompleteReadError):  # rejected: no place is old enough yet
                    assert await says(port, ann, "127.0.0.9") == 204
                    break
        await ended(held[0][0])
        assert "gave way" in " ".join(text for _, _, text in port.refusals)
        # From now on members are expected at this address, and strangers cannot take its places.
        for address in FLOODING * 2:
            await stack.enter_async_context(from_address(port, address))
        assert await says(port, ann, "127.0.0.9") == 204


async def test_of_one_address_no_place_is_held_for_ever(people: People) -> None:
    """This also holds for a stranger that has the very address of a member."""
    limits = Limits(handshakes_per_address=2, handshake_kept_s=0.0)
    async with bob(people, limits) as (port, _), from_address(port, HOME) as (first, _), from_address(port, HOME):
        assert await says(port, member(people)) == 204
        await ended(first)


async def test_handshakes_that_are_young_do_not_give_way() -> None:
    """A young handshake is kept; otherwise none of many honest ones would ever finish on an overloaded machine."""
    places, never = Handshakes(3, 2, kept_s=1.0), asyncio.Event()

    async def handshake() -> None:
        await never.wait()

    def begins(address: str, now: float) -> bool:
        if not places.has_room(address, now):
            return False
        places.begin(handshake(), address, now)
        return True

    assert [begins("a", 0.0), begins("a", 0.1), begins("a", 0.2)] == [True, True, False]
    assert [begins("b", 0.3), begins("c", 0.4)] == [True, False]
    first, *others = places.tasks()
    assert begins("c", 1.0), "the oldest of the address that has most"
    assert len(places.tasks()) == 3
    await asyncio.gather(first, return_exceptions=True)
    assert first.cancelled()
    assert not any(each.cancelled() for each in others)
    never.set()
    await asyncio.gather(*places.tasks())
    assert begins("c", 1.1)
    await asyncio.gather(*places.tasks())


# ---------------------------------------------------------------------------------------------------------- connections


async def test_a_revoked_key_holds_no_connection(people: People) -> None:
    """A revoked key once held 128 connections, and honest members were reset.

    One connection may send one message and receives the roster in return; then it ends as well.
    """
    async with bob(people, Limits(farewell_s=60.0)) as (port, server), AsyncExitStack() as stack:
        out, ann = member(people, "out"), member(people)
        people.roster = expel(people.roster, "out", people.key)
        first, *others = [await stack.enter_async_context(from_address(port, HOME, out)) for _ in range(40)]
        assert await says(port, ann) == 204
        for reader, _ in others:
            await ended(reader)
        await port.until(lambda: len(port.codes) == len(others))
        assert set(port.codes) == {"unknown_peer"}
        assert len(server._listener._open) <= 1
        first[1].write(ACK)
        assert isinstance((await answer(first[0])).said, RosterNews)
        await ended(first[0])
        assert await says(port, ann) == 204


async def test_a_farewell_is_not_waited_for(people: People) -> None:
    async with bob(people, Limits(farewell_s=0.1)) as (port, _):
        out = member(people, "out")
        people.roster = expel(people.roster, "out", people.key)
        async with from_address(port, HOME, out) as (reader, _):
            await ended(reader)


async def test_who_was_never_in_the_roster_hears_nothing(people: People) -> None:
    async with bob(people) as (port, _):
        stranger = member(people, "fay", admitted=False)
        async with from_address(port, HOME, stranger) as (reader, writer):
            writer.write(ACK)
            await ended(reader)
        await port.until(lambda: bool(port.codes))
    assert port.codes == ["unknown_peer"]


async def test_who_is_put_out_while_it_is_connected_is_told_and_then_not_connected(people: People) -> None:
    async with bob(people, Limits(farewell_s=0.2)) as (port, server):
        out = member(people, "out")
        async with from_address(port, HOME, out) as told, from_address(port, HOME, out) as silent:
            for reader, writer in (told, silent):
                writer.write(ACK)
                assert (await answer(reader)).code == "sender_mismatch", "it is ann's; it was heard"
            people.roster = expel(people.roster, "out", people.key)
            server.review(["out"], Limits(farewell_s=0.2))
            told[1].write(ACK)
            assert isinstance((await answer(told[0])).said, RosterNews)
            await ended(told[0])
            await ended(silent[0])


async def test_where_all_connections_are_taken_who_has_most_gives_one(people: People) -> None:
    async with bob(people, Limits(connections=4)) as (port, _), AsyncExitStack() as stack:
        greedy, ann = member(people, "greedy"), member(people)
        held = []
        for _ in range(4):
            held.append(await stack.enter_async_context(from_address(port, HOME, greedy)))
            held[-1][1].write(ACK)
            assert (await answer(held[-1][0])).code == "sender_mismatch", "it is ann's; it was heard"
        assert await says(port, ann) == 204
        await ended(held[0][0])
        held[-1][1].write(ACK)
        assert (await answer(held[-1][0])).code == "sender_mismatch"
    assert "too_many_requests" not in port.codes


async def test_a_later_roster_has_room_for_its_members(people: People) -> None:
    """Otherwise the members of a federation that has grown would take one another's only connection."""
    async with bob(people, Limits(connections=1)) as (port, server), AsyncExitStack() as stack:
        server.review([], Limits(connections=2))
        members = [member(people, each) for each in ("ben", "cas")]
        held = [await stack.enter_async_context(from_address(port, HOME, each)) for each in members]
        for reader, writer in held:
            writer.write(ACK)
            assert (await answer(reader)).code == "sender_mismatch", "it is ann's; it was heard"


async def test_who_does_not_hear_that_tls_ends_holds_no_handle(people: People) -> None:
    """A connection that we close ends soon, whether or not the other side confirms that it ends."""
    async with bob(people, Limits(goodbye_s=0.05)) as (port, server), from_address(port, HOME, member(people)) as line:
        line[1].write(request(b"", line="GET /v1/other HTTP/1.1"))
        assert (await answer(line[0])).code == "unknown_route"
        [transport] = server._listener._open
        cast(asyncio.Transport, line[1].transport).pause_reading()
        transport.close()
        async with asyncio.timeout(PATIENCE):
            while server._web.connections:
                await asyncio.sleep(0)
