"""Peers find one another's addresses by multicast DNS on this machine, and only those of their own federation."""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress

import pytest

from fedpeer.config.address import Endpoint
from fedpeer.peer.runtime.discovery import Discovery, DiscoveryError, _reached_at

needs_zeroconf = pytest.mark.skipif(
    importlib.util.find_spec("zeroconf") is None, reason="needs zeroconf (fedpeer[discovery])"
)


@pytest.mark.slow
@needs_zeroconf
@pytest.mark.asyncio
async def test_two_of_one_federation_find_each_other_and_nobody_else() -> None:
    found: dict[str, dict[str, str]] = {"peer1": {}, "peer2": {}, "stranger": {}}
    complete = asyncio.Event()

    def on_event(who: str, peer: str, url: str) -> None:
        found[who][peer] = url
        if found["peer1"] and found["peer2"]:
            complete.set()

    ours, others = b"ours".ljust(16), b"others".ljust(16)
    everyone = [
        Discovery(ours, "peer1", Endpoint("0.0.0.0", 7401), lambda peer, url: on_event("peer1", peer, url)),
        Discovery(ours, "peer2", Endpoint("0.0.0.0", 7402), lambda peer, url: on_event("peer2", peer, url)),
        Discovery(others, "stranger", Endpoint("0.0.0.0", 7403), lambda peer, url: on_event("stranger", peer, url)),
    ]
    try:
        for each in everyone:
            await each.start()
        await asyncio.wait_for(complete.wait(), 20)
    finally:
        for each in everyone:
            await each.stop()
    assert list(found["peer1"]) == ["peer2"]
    assert list(found["peer2"]) == ["peer1"]
    assert found["peer1"]["peer2"].startswith("https://")
    assert found["peer1"]["peer2"].endswith(":7402")
    assert not found["stranger"]


def test_without_zeroconf_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DiscoveryError, match=r"pip install fedpeer\[discovery\]"):
        Discovery(bytes(16), "peer1", Endpoint("0.0.0.0", 7401), lambda peer, url: None)


def test_what_is_announced_is_where_the_peer_listens() -> None:
    assert _reached_at("::1") == ["::1"]
    assert _reached_at("10.0.0.5") == ["10.0.0.5"]
    assert all(ipaddress.ip_address(host).version == 4 for host in _reached_at("0.0.0.0"))
    assert _reached_at("::")
    assert _reached_at("some-name")
