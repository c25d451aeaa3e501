"""Peers find one another's addresses by multicast DNS on this machine, and only those of their own federation."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import ipaddress
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fedpeer.config.address import Endpoint
from fedpeer.peer.runtime.discovery import _MOVED_S, Discovery, DiscoveryError, _reached_at
from fedpeer.peer.runtime.found_addresses import TURN_S, FoundAddresses
from fedpeer.peer.runtime.process import PeerProcess
from fedpeer.peer.runtime.transient import RETRY_SECONDS
from tests.peer.runtime.alone import alone_at

needs_zeroconf = pytest.mark.skipif(
    importlib.util.find_spec("zeroconf") is None, reason="needs zeroconf (fedpeer[discovery])"
)


Found = dict[str, str | None]


def everybody(peer: str) -> bool:
    return True


@asynccontextmanager
async def running(*all_of: Discovery) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.run()) for each in all_of]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.01)


@pytest.mark.slow
@needs_zeroconf
@pytest.mark.asyncio
async def test_two_of_one_federation_find_each_other_and_nobody_else() -> None:
    """One of the two has an id of the greatest length, which is longer than DNS allows."""
    long = "p" * 63
    found: dict[str, Found] = {"peer1": {}, long: {}, "stranger": {}}

    def peer(id: str, federation: bytes, port: int) -> Discovery:
        at = Endpoint("0.0.0.0", port)
        return Discovery(federation, id, at, member=everybody, found=found[id].__setitem__)

    ours, others = b"ours".ljust(16), b"others".ljust(16)
    two = peer(long, ours, 7402)
    async with running(peer("peer1", ours, 7401), peer("stranger", others, 7403)):
        async with running(two):
            await until(lambda: bool(found["peer1"] and found[long]))
        assert list(found["peer1"]) == [long]
        assert list(found[long]) == ["peer1"]
        url = found[long]["peer1"]
        assert url is not None
        assert url.startswith("https://")
        assert url.endswith(":7401")
        await until(lambda: found["peer1"][long] is None)
    assert not found["stranger"]


#: What may fail: the system, a library that was installed in part, and a fault of the library's own.
FAILURES = [OSError(errno.ENODEV, "No such device"), ImportError("no ifaddr"), RuntimeError("it has a bug")]


def fail_with(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@needs_zeroconf
@pytest.mark.asyncio
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
async def test_what_fails_is_told_once_by_name_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried, said = 0, list[str]()

    def none() -> None:
        nonlocal tried
        tried += 1
        raise error

    monkeypatch.setattr("zeroconf.asyncio.AsyncZeroconf", none)
    at = Endpoint("0.0.0.0", 7401)
    async with running(Discovery(bytes(16), "peer1", at, member=everybody, found=lambda *_: None, say=said.append)):
        await until(lambda: tried > 1)
    (text,) = said
    assert f"({type(error).__name__}: {error})" in text


class Network:
    """Multicast DNS that only raises the error of each attempt, if it has one; after the last, `run` is cancelled.

    leaves   the error that its goodbye raises
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, attempts: Sequence[Exception | None], leaves: Exception | None = None
    ) -> None:
        self.zeroconf, self._attempts, self._leaves = None, [*attempts, asyncio.CancelledError()], leaves
        self.working = asyncio.Event()
        monkeypatch.setattr("zeroconf.asyncio.AsyncZeroconf", self._attempt)
        monkeypatch.setattr("zeroconf.asyncio.AsyncServiceBrowser", self._browse)

    def _attempt(self) -> Network:
        if (error := self._attempts.pop(0)) is not None:
            raise error
        return self

    def _browse(self, *_: object, handlers: object) -> Network:
        self.working.set()
        return self

    async def async_register_service(self, info: object, *, allow_name_change: bool) -> None:
        return None

    async def async_close(self) -> None:
        if self._leaves is not None:
            raise self._leaves

    async_unregister_all_services = async_cancel = async_close


@needs_zeroconf
@pytest.mark.asyncio
async def test_a_failure_after_it_worked_is_told_anew_and_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Discovery begins anew when the machine's addresses change: announcement and sockets have the earlier ones."""
    no_network, said, slept = FAILURES[0], list[str](), list[float]()
    Network(monkeypatch, [no_network, no_network, no_network, None, no_network, no_network])
    sleep, addresses = asyncio.sleep, iter([["10.0.0.1"]] * 6 + [["10.0.0.2"]] * 9)

    async def noted(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr("fedpeer.peer.runtime.discovery._reached_at", lambda host: next(addresses))
    monkeypatch.setattr(asyncio, "sleep", noted)
    at = Endpoint("0.0.0.0", 7401)
    with pytest.raises(asyncio.CancelledError):
        await Discovery(bytes(16), "peer1", at, member=everybody, found=lambda *_: None, say=said.append).run()
    assert len(said) == 2
    shorter = [RETRY_SECONDS * 2**n for n in range(3)]
    assert slept == [*shorter, _MOVED_S, _MOVED_S, *shorter[:2]]


@needs_zeroconf
@pytest.mark.asyncio
async def test_it_ends_although_its_goodbye_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure used to replace the cancellation: discovery went on, and the peer waited for its end forever."""
    said = list[str]()
    network = Network(monkeypatch, [None], leaves=FAILURES[0])
    at = Endpoint("0.0.0.0", 7401)
    one = Discovery(bytes(16), "peer1", at, member=everybody, found=lambda *_: None, say=said.append)
    async with asyncio.timeout(20), running(one):
        await network.working.wait()
    assert not said


@pytest.mark.slow
@needs_zeroconf
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_peer_without_a_network_for_it_learns_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("zeroconf.asyncio.AsyncZeroconf", fail_with(error))
    federation = {
        "name": "ward",
        "network": "mlp:64+4+10",
        "learning": {"algorithm": "local", "steps_between_averaging": 1, "rounds": 2},
        "gossip": {"gather": 0.0, "tick": 0.001},
        "simulation": {"peers": 2, "split": "blocks:20,test=10"},
    }
    peer = alone_at(tmp_path, federation, data={"simulation": 1}, discovery=True)
    assert asyncio.run(PeerProcess(peer, quiet=True).run()).code == 0


@needs_zeroconf
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("hosts", "peer", "near", "expected"),
    [
        (["10.0.0.5"], "peer2", False, "https://10.0.0.5:7402"),
        (["fe80::5", "2001:db8::5"], "peer2", False, "https://[2001:db8::5]:7402"),
        (["127.0.0.1"], "peer2", False, None),
        (["127.0.0.1"], "peer2", True, "https://127.0.0.1:7402"),
        (["fe80::5"], "peer2", False, None),
        (["10.0.0.5"], "nobody", False, None),
        (["10.0.0.5"], "peer1", False, None),
        ([], "peer2", False, None),
    ],
)
async def test_what_cannot_be_of_this_federation_or_be_reached_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], peer: str, near: bool, expected: str | None
) -> None:
    class Info:
        def __init__(self, *_: object) -> None:
            self.port, self.decoded_properties = 7402, {"federation": bytes(16).hex(), "peer": peer}

        async def async_request(self, *_: object) -> bool:
            return True

        def parsed_addresses(self) -> list[str]:
            return hosts

    monkeypatch.setattr("zeroconf.asyncio.AsyncServiceInfo", Info)
    found: Found = {}
    asked = Discovery(
        bytes(16), "peer1", Endpoint("0.0.0.0", 1), member={"peer1", "peer2"}.__contains__, found=found.__setitem__
    )
    await asked._ask(None, "a name", near=near)
    assert found == ({} if expected is None else {"peer2": expected})
    asked._gone("another name")
    asked._gone("a name")
    assert found == ({} if expected is None else {"peer2": None})


def test_where_a_peer_was_seen_and_what_is_stated_are_tried_in_turn() -> None:
    found = FoundAddresses()
    assert found.choose("peer2", "roster", by_itself=False) == "roster"
    found.failed("peer2", 0.0)
    found.see("peer2", "seen")
    chosen = []
    for turn in range(3):
        stated = [found.choose("peer2", "stated", by_itself=by_itself) for by_itself in (False, True)]
        chosen.append(stated)
        for later in (0.0, 0.5 * TURN_S):  # several messages fail at a time
            found.failed("peer2", turn * TURN_S + later)
    assert chosen == [["seen", "stated"], ["stated", "seen"], ["seen", "stated"]]
    found.see("peer2", None)
    assert found.choose("peer2", "roster", by_itself=False) == "roster"


def test_without_zeroconf_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DiscoveryError, match=r"pip install fedpeer\[discovery\]"):
        Discovery(bytes(16), "peer1", Endpoint("0.0.0.0", 7401), member=everybody, found=lambda *_: None)


def test_what_is_announced_is_where_the_peer_listens() -> None:
    assert _reached_at("::1") == ["::1"]
    assert _reached_at("10.0.0.5") == ["10.0.0.5"]
    assert all(ipaddress.ip_address(host).version == 4 for host in _reached_at("0.0.0.0"))
    assert _reached_at("::")
    assert _reached_at("some-name")
