"""Discovery of the federation's peers on the local network by multicast DNS (the extra `fedpeer[discovery]`).

It finds addresses and nothing more: a peer there proves its identity by its key, as everywhere. A peer announces its id
and its federation, which anybody on the network can read; so it is off by default.
"""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from collections.abc import Callable
from typing import Any

_SERVICE = "_fedpeer._tcp.local."
#: Milliseconds to wait for the address of an announced service; it answers at once or not at all.
_ANSWER_MS = 3000


class DiscoveryError(Exception):
    """Discovery is on but not available; the message says what to install."""


class Discovery:
    """Announces this peer and looks for others, from `start` to `stop`, on the running event loop.

    found    called with the id and the URL of each peer of this federation that is found
    """

    def __init__(self, federation: bytes, peer: str, port: int, found: Callable[[str, str], None]) -> None:
        if importlib.util.find_spec("zeroconf") is None:
            raise DiscoveryError(
                "discovery: true needs zeroconf; run pip install fedpeer[discovery], or remove the setting"
            )
        self._federation, self._peer, self._port, self._found = federation.hex(), peer, port, found
        self._asking: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        from zeroconf import ServiceStateChange
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

        self._zeroconf = AsyncZeroconf()
        self._info = AsyncServiceInfo(
            _SERVICE,
            f"{self._peer}-{self._federation[:12]}.{_SERVICE}",
            port=self._port,
            addresses=[socket.inet_aton(_own_address())],
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
        addresses = info.parsed_addresses()
        if (
            properties.get("federation") == self._federation
            and addresses
            and properties.get("peer", self._peer) != self._peer
        ):
            host = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
            self._found(str(properties["peer"]), f"https://{host}:{info.port}")

    async def stop(self) -> None:
        for task in self._asking:
            task.cancel()
        await self._browser.async_cancel()
        await self._zeroconf.async_unregister_all_services()
        await self._zeroconf.async_close()


def _own_address() -> str:
    """Return the address with which this machine reaches its local network; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("224.0.0.251", 5353))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
