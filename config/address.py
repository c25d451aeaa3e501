"""Addresses of peers and dashboards: the one place that reads and prints hosts, host:port and URLs.

A host is a name, an IPv4 address or an IPv6 address. Here it is kept in one form, without brackets: names in lower
case, IP addresses as `ipaddress` writes them. So two spellings of one address are equal. `str` of an `Endpoint` or a
`PeerUrl` puts an IPv6 address in brackets, and what it prints is read as the same value.

Pure: names are not looked up.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from fedpeer.config.problems import found_text

#: The port of a peer whose file names none.
DEFAULT_PORT = 7400
#: What a person writes instead of an address to listen on or to be reached at, if nobody can connect to the peer.
OUTBOUND = "none"
#: The end of the host of such a peer: RFC 6761 keeps it for names that do not exist.
_NO_HOST = ".invalid"
_PORT_MAX = 65535
#: Limits of DNS for a whole name and for each part of it.
_NAME_LETTERS_MAX, _LABEL_LETTERS_MAX = 253, 63
#: Letters of a name. Underscores are not in the standard, but occur in container networks.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
#: Four numbers are an IPv4 address or a mistake, never a name.
_FOUR_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+){3}")
#: A host, in brackets if it has colons, and a port.
_HOST_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]{1,5}))?")
_SCHEMES = ("https", "http")


def read_host(text: str) -> str:
    """Return the host that the text names; an IPv6 address may be in brackets.

    >>> read_host("Host1"), read_host("[::1]"), read_host("2001:DB8::0:1")
    ('host1', '::1', '2001:db8::1')

    Raises:
        ValueError: the text is no host, or has a scope id; a sentence with the way out.
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if "%" in bare:
        raise ValueError(
            f'"{found_text(text)}" has a scope id, which has a meaning on one machine only; '
            "use an address without one (not fe80::...), or a host name"
        )
    try:
        if ":" in bare or bare != text:
            return _plain(ipaddress.IPv6Address(bare))
        if _FOUR_NUMBERS.fullmatch(text):
            return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise ValueError(f'"{found_text(text)}" is not a host name or IP address') from None
    too_long = len(text) > _NAME_LETTERS_MAX or any(len(label) > _LABEL_LETTERS_MAX for label in text.split("."))
    if too_long or not _NAME.fullmatch(text):
        raise ValueError(f'"{found_text(text)}" is not a host name or IP address')
    return text.lower()


def bracketed(host: str) -> str:
    """Return the host as it is written before a colon: in URLs, in host:port and for scp."""
    return f"[{host}]" if ":" in host else host


def loopback(host: str) -> bool:
    """Return whether this host is this machine's loopback address, which no other machine can reach."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def unspecified(host: str) -> bool:
    """Return whether to listen on this host is to listen on all interfaces."""
    return host in ("0.0.0.0", "::")


def same_place(one: Endpoint, other: Endpoint) -> bool:
    """Return whether no two listeners of one machine can have these: one port, at one host or at all of them.

    :: are all interfaces for both families of addresses, 0.0.0.0 for IPv4 alone.
    """
    hosts = {one.host, other.host}
    every = "::" in hosts or ("0.0.0.0" in hosts and not any(":" in host for host in hosts))
    return one.port == other.port != 0 and (len(hosts) == 1 or every)


def all_interfaces(host: str) -> str:
    """Return the host to listen on so that others reach this machine at `host`."""
    return "::" if ":" in host else "0.0.0.0"


def source_host(address: str) -> str:
    """Return the host of a connection's source address, without the interface that a link-local address comes with."""
    bare = address.partition("%")[0]
    return _plain(ipaddress.IPv6Address(bare)) if ":" in bare else bare


def _plain(address: ipaddress.IPv6Address) -> str:
    """Return the address as text; ::ffff:10.0.0.1, as a socket for both families shows it, is the IPv4 address."""
    return str(address.ipv4_mapped or address)


class Endpoint(NamedTuple):
    """A host and a port, such as those that a peer listens on; port 0 stands for any free one."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str, port: int | None = None) -> Endpoint:
        """Return the endpoint that `host:port` names; an IPv6 address is in brackets.

        >>> Endpoint.read("0.0.0.0:7403"), str(Endpoint.read("[0::1]:7403"))
        (Endpoint(host='0.0.0.0', port=7403), '[::1]:7403')

        Args:
            text: what a person wrote.
            port: the port of a text without one; None: the port is needed.

        Raises:
            ValueError: the text has another form; a sentence with the way out.
        """
        parts = _HOST_PORT.fullmatch(text)
        if parts is None or (parts["port"] is None and port is None):
            way_out = (
                "write an IPv6 address in brackets, like [2001:db8::5]"
                if text.count(":") > 1
                else "write it like 0.0.0.0"
            )
            raise ValueError(f'"{found_text(text)}" is not host:port; {way_out}:{DEFAULT_PORT}')
        number = port if parts["port"] is None else int(parts["port"])
        assert number is not None, "it is in the text, or a default"
        if number > _PORT_MAX:
            raise ValueError(f'"{found_text(text)}" has port {number}; a port is at most {_PORT_MAX}')
        return cls(read_host(parts["host"]), number)

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


class PeerUrl(NamedTuple):
    """The URL of a peer or a dashboard: https or http, and an endpoint. A peer's has nothing else."""

    scheme: str
    endpoint: Endpoint

    @classmethod
    def read(cls, text: str, port: int | None = None) -> PeerUrl:
        """Return the URL in the text, such as https://host1:7401 or https://[2001:db8::5]:7401.

        Args:
            text: what a person wrote, or a roster has.
            port: the port of a URL without one; None: the port is needed.

        Raises:
            ValueError: the text has another form; a sentence with the way out.
        """
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in _SCHEMES:
            raise ValueError(f'"{found_text(text)}" is not like https://host1:{DEFAULT_PORT}')
        endpoint = Endpoint.read(rest, port)
        if endpoint.port == 0:
            raise ValueError(f'"{found_text(text)}" has port 0, where nobody can be reached; write 1 to {_PORT_MAX}')
        return cls(scheme, endpoint)

    @property
    def host(self) -> str:
        return self.endpoint.host

    @classmethod
    def nowhere(cls, peer: str, port: int = DEFAULT_PORT) -> PeerUrl:
        """Return the URL of a peer to which nobody can connect; its port only sets it apart on its own machine.

        >>> str(PeerUrl.nowhere("north")), PeerUrl.nowhere("north").reachable
        ('https://north.invalid:7400', False)
        """
        return cls("https", Endpoint(f"{peer.lower()}{_NO_HOST}", port))

    @property
    def reachable(self) -> bool:
        """True if others may connect to the peer, as far as the URL says."""
        return not self.host.endswith(_NO_HOST)

    @property
    def port(self) -> int:
        return self.endpoint.port

    def __str__(self) -> str:
        return f"{self.scheme}://{self.endpoint}"
