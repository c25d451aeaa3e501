"""Discovery of the federation's peers on the local network by multicast DNS (the extra `fedpeer[discovery]`).

It finds addresses and nothing more: a peer there proves its identity by its key, as everywhere. A peer announces its id
and its federation, which anybody on the network can read; so it is off by default.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from fedpeer.config.address import Endpoint, PeerUrl, loopback, unspecified
from fedpeer.peer.runtime.transient import pauses

_SERVICE = "_fedpeer._tcp.local."
#: Milliseconds to wait for the address of an announced service; it answers at once or not at all.
_ANSWER_MS = 3000
#: Most announcements that are asked about at once: anybody on the network can send any number of them.
_ASKED_MAX = 64
#: Most seconds between two attempts on a machine that has no network, and seconds between two looks at its addresses.
_AGAIN_S_MAX, _MOVED_S = 60.0, 10.0
#: Where the question goes, and an IPv6 address (RFC 3849) whose route shows this machine's own global one.
_MULTICAST, _FAR, _MULTICAST_PORT = "224.0.0.251", "2001:db8::1", 5353


class DiscoveryError(Exception):
    """Discovery is on but not available; the message says what to install."""


class Discovery:
    """Announces this peer and looks for others while it `run`s, on the running event loop.

    at       host and port that this peer listens on
    member   returns whether there is a peer of this id: others are not looked at, since anybody can announce them
    found    called with the id and the URL of each other peer of this federation that is found; None: it is gone
    say      called with a sentence if multicast DNS fails here now, once until it works again
    """

    def __init__(
        self,
        federation: bytes,
        peer: str,
        at: Endpoint,
        *,
        member: Callable[[str], bool],
        found: Callable[[str, str | None], None],
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        if importlib.util.find_spec("zeroconf") is None:
            raise DiscoveryError(
                "discovery: true needs zeroconf; run pip install fedpeer[discovery], or remove the setting"
            )
        self._federation, self._peer, self._at = federation.hex(), peer, at
        self._member, self._found, self._say = member, found, say
        self._asking: set[asyncio.Task[None]] = set()
        self._names: dict[str, str] = {}  # of the last announcement of each peer that was found

    async def run(self) -> None:
        """Announce and look until cancelled. Nothing depends on it: a failure is logged once and tried again.

        If this machine's addresses change, it begins anew, since sockets and announcement have the earlier ones.
        """
        reported, again = False, pauses(most=_AGAIN_S_MAX)
        while True:
            try:
                hosts = _reached_at(self._at.host)
                async with self._looking(hosts):
                    reported, again = False, pauses(most=_AGAIN_S_MAX)
                    while _reached_at(self._at.host) == hosts:
                        await asyncio.sleep(_MOVED_S)
                continue
            except Exception as problem:
                if not reported:
                    why = f"{type(problem).__name__}: {problem}"
                    self._say(f"no peer is looked for by multicast DNS now ({why}); this is tried again")
                reported = True
            await asyncio.sleep(next(again))

    @asynccontextmanager
    async def _looking(self, hosts: list[str]) -> AsyncIterator[None]:
        """Announce this peer at these addresses and look for others."""
        from zeroconf import ServiceStateChange
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

        info = AsyncServiceInfo(
            _SERVICE,
            f"{_label(self._federation, self._peer)}.{_SERVICE}",
            port=self._at.port,
            addresses=[ipaddress.ip_address(host).packed for host in hosts],
            properties={"federation": self._federation, "peer": self._peer},
        )

        def changed(zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:
            if state_change is ServiceStateChange.Removed:
                self._gone(name)
            elif len(self._asking) < _ASKED_MAX:
                task = asyncio.ensure_future(self._ask(zeroconf, name, near=any(map(loopback, hosts))))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

        zeroconf = AsyncZeroconf()
        async with AsyncExitStack() as leaving:
            leaving.push_async_callback(_quietly, zeroconf.async_close)
            leaving.push_async_callback(_quietly, zeroconf.async_unregister_all_services)
            leaving.push_async_callback(self._stop_asking)
            await zeroconf.async_register_service(info, allow_name_change=True)
            browser = AsyncServiceBrowser(zeroconf.zeroconf, [_SERVICE], handlers=[changed])
            leaving.push_async_callback(_quietly, browser.async_cancel)
            yield

    async def _stop_asking(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def _ask(self, zeroconf: Any, name: str, *, near: bool) -> None:
        """Report the peer behind an announcement if it is of our federation, complete, and can be reached from here.

        An announced loopback address is another machine's own, unless this peer is reached at one, too (`near`).
        """
        from zeroconf.asyncio import AsyncServiceInfo

        try:
            info = AsyncServiceInfo(_SERVICE, name)
            if not await info.async_request(zeroconf, _ANSWER_MS):
                return
            properties, hosts, port = info.decoded_properties, info.parsed_addresses(), info.port
            hosts = [host for host in hosts if not ipaddress.ip_address(host).is_link_local and loopback(host) <= near]
        except Exception:  # no peer announces this, but a stranger can
            return
        peer = str(properties.get("peer"))
        others = properties.get("federation") == self._federation and peer != self._peer and self._member(peer)
        if others and hosts and port:
            self._names[peer] = name
            self._found(peer, str(PeerUrl("https", Endpoint(hosts[0], port))))

    def _gone(self, name: str) -> None:
        for peer in [peer for peer, last in self._names.items() if last == name]:
            del self._names[peer]
            self._found(peer, None)


async def _quietly(leave: Callable[[], Awaitable[object]]) -> None:
    """Leave a network that may be gone: a failure here must not replace the exception that ends the search."""
    with suppress(Exception):
        await leave()


def _label(federation: str, peer: str) -> str:
    """Return the first part of this peer's name in DNS, of at most 63 letters, for people; nothing is read from it."""
    return f"{peer[:40]}-{hashlib.blake2b(f'{federation} {peer}'.encode(), digest_size=6).hexdigest()}"


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
