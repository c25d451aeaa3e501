"""Discovery of the federation's peers on the local network by multicast DNS (the extra `fedpeer[discovery]`).

It finds addresses and nothing more: a peer there proves its identity by its key, as everywhere. A peer announces its id
and its federation, which anybody on the network can read; so it is off by default.
"""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fedpeer.config.address import Endpoint, PeerUrl, unspecified

_SERVICE = "_fedpeer._tcp.local."
#: Milliseconds to wait for the address of an announced service; it answers at once or not at all.
_ANSWER_MS = 3000
#: Where the question goes, and an IPv6 address (RFC 3849) whose route shows this machine's own global one.
_MULTICAST, _FAR, _MULTICAST_PORT = "224.0.0.251", "2001:db8::1", 5353


class DiscoveryError(Exception):
    """Discovery is on but not available; the message says what to install."""


class Discovery:
    """Announces this peer and looks for others, from `start` to `stop`, on the running event loop.

    at       host and port that this peer listens on
    found    called with the id and the URL of each peer of this federation that is found
    """

    def __init__(self, federation: bytes, peer: str, at: Endpoint, found: Callable[[str, str], None]) -> None:
        if importlib.util.find_spec("zeroconf") is None:
            raise DiscoveryError(
                "discovery: true needs zeroconf; run pip install fedpeer[discovery], or remove the setting"
            )
        self._federation, self._peer, self._at, self._found = federation.hex(), peer, at, found
        self._asking: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        from zeroconf import ServiceStateChange
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

        self._zeroconf = AsyncZeroconf()
        self._info = AsyncServiceInfo(
            _SERVICE,
            f"{self._peer}-{self._federation[:12]}.{_SERVICE}",
            port=self._at.port,
            addresses=[ipaddress.ip_address(host).packed for host in _reached_at(self._at.host)],
            properties={"federation": self._federation, "peer": self._peer},
        )
        await self._zeroconf.async_register_service(self._info, allow_name_change=True)

        def changed(zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:
            if state_change is not ServiceStateChange.Removed:
                task = asyncio.ensure_future(self._ask(name))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

        self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, [_SERVICE], handlers=[changed])

    async def _ask(self, name: str) -> None:
        """Report the peer behind an announcement if it is of our federation and complete."""
        from zeroconf.asyncio import AsyncServiceInfo

        info = AsyncServiceInfo(_SERVICE, name)
        if not await info.async_request(self._zeroconf.zeroconf, _ANSWER_MS):
            return
        properties = {key: value for key, value in info.decoded_properties.items() if value is not None}
        hosts = [host for host in info.parsed_addresses() if not ipaddress.ip_address(host).is_link_local]
        if (
            properties.get("federation") == self._federation
            and hosts
            and info.port
            and properties.get("peer", self._peer) != self._peer
        ):
            self._found(str(properties["peer"]), str(PeerUrl("https", Endpoint(hosts[0], info.port))))

    async def stop(self) -> None:
        for task in self._asking:
            task.cancel()
        await self._browser.async_cancel()
        await self._zeroconf.async_unregister_all_services()
        await self._zeroconf.async_close()


def _reached_at(host: str) -> list[str]:
    """Return the IP addresses at which a peer that listens on `host` is reached; nothing is sent."""
    if not unspecified(host):
        with suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
    probes = {socket.AF_INET: _MULTICAST, **({} if host == "0.0.0.0" else {socket.AF_INET6: _FAR})}
    return [found for family, far in probes.items() if (found := _source(family, far))] or ["127.0.0.1"]


def _source(family: socket.AddressFamily, far: str) -> str:
    """Return this machine's address on the route to `far`, or "" without one."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, _MULTICAST_PORT))
            return str(probe.getsockname()[0])
    except OSError:
        return ""
