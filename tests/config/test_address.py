"""One parser and one printer of addresses: printed text is read back, and a mistake gives a sentence."""

from __future__ import annotations

import ast
import ipaddress
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.config.address import (
    Endpoint,
    PeerUrl,
    all_interfaces,
    bracketed,
    loopback,
    read_host,
    same_place,
    source_host,
    unspecified,
)

ROOT = Path(__file__).parents[2]
NAMES = st.from_regex(r"[a-z0-9_][a-z0-9_-]{0,20}(\.[a-z][a-z0-9-]{0,20}){0,3}", fullmatch=True)
IPV6 = st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address)
LITERALS = st.one_of(st.ip_addresses(), IPV6).map(str)
HOSTS = st.one_of(NAMES, LITERALS).map(read_host)
ENDPOINTS = st.builds(Endpoint, HOSTS, st.integers(0, 65535))
URLS = st.builds(PeerUrl, st.sampled_from(["https", "http"]), ENDPOINTS.filter(lambda place: place.port > 0))


@pytest.mark.slow
@settings(max_examples=40)
@given(ENDPOINTS)
def test_what_is_printed_is_read_as_the_same_endpoint(place: Endpoint) -> None:
    assert Endpoint.read(str(place)) == place
    assert read_host(place.host) == read_host(bracketed(place.host)) == place.host


@pytest.mark.slow
@settings(max_examples=40)
@given(URLS)
def test_what_is_printed_is_read_as_the_same_url(url: PeerUrl) -> None:
    assert PeerUrl.read(str(url)) == url


@given(IPV6.filter(lambda address: address.ipv4_mapped is None), st.integers(0, 65535))
def test_all_spellings_of_an_address_are_one(address: ipaddress.IPv6Address, port: int) -> None:
    spellings = {str(address), address.exploded, str(address).upper()}
    assert {Endpoint.read(f"[{each}]:{port}") for each in spellings} == {Endpoint(str(address), port)}


@given(st.text(max_size=40))
def test_any_text_is_an_endpoint_or_a_sentence(text: str) -> None:
    for read in (Endpoint.read, PeerUrl.read, read_host):
        try:
            outcome = str(read(text))
        except ValueError as error:
            outcome = f"refused: {error}"
        assert outcome.isprintable()
        assert outcome.startswith('refused: "') or outcome.isascii()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10.0.0.1", "is not host:port; write it like 0.0.0.0:7400"),
        ("host:", "is not host:port"),
        ("host:http", "is not host:port"),
        ("::1", "in brackets, like [2001:db8::5]:7400"),
        ("::1:7401", "in brackets, like [2001:db8::5]:7400"),
        ("[::1]", "is not host:port"),
        ("[::1]7401", "is not host:port"),
        ("[::1", "is not host:port"),
        ("h:70000", "has port 70000; a port is at most 65535"),
        ("h:-1", "is not host:port"),
        ("[fe80::1%eth0]:7401", "has a scope id"),
        ("[fe80::1%25eth0]:7401", "has a scope id"),
        ("[10.0.0.1]:7401", "is not a host name or IP address"),
        ("10.0.0.256:7401", "is not a host name or IP address"),
        ("[12345::]:7401", "is not a host name or IP address"),
        ("h h:1", "is not a host name or IP address"),
        ("u@h:1", "is not a host name or IP address"),
        ("h/x:1", "is not a host name or IP address"),
        ("h" * 64 + ":1", "is not a host name or IP address"),
        (":1", "is not a host name or IP address"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_way_out(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Endpoint.read(text)
    with pytest.raises(ValueError, match=re.escape(words)):
        PeerUrl.read(f"https://{text}")


def test_port_0_is_for_listening_only() -> None:
    assert Endpoint.read("[::]:0") == ("::", 0)
    with pytest.raises(ValueError, match="has port 0, where nobody can be reached"):
        PeerUrl.read("https://[::1]:0")


def test_a_port_may_be_left_out_where_there_is_a_default() -> None:
    assert [Endpoint.read(text, port=80) for text in ("h", "[::1]", "h:1")] == [("h", 80), ("::1", 80), ("h", 1)]
    with pytest.raises(ValueError, match="in brackets"):
        Endpoint.read("::1", port=80)


def test_hosts() -> None:
    assert [loopback(host) for host in ("127.0.0.9", "::1", "localhost", "0.0.0.0", "10.0.0.1", "::", "host")] == (
        [True] * 3 + [False] * 4
    )
    assert [unspecified(host) for host in ("0.0.0.0", "::", "::1", "host")] == [True, True, False, False]
    assert [all_interfaces(host) for host in ("10.0.0.1", "2001:db8::5", "host")] == ["0.0.0.0", "::", "0.0.0.0"]


def test_two_listeners_need_two_places() -> None:
    pairs = {
        ("127.0.0.1:7401", "127.0.0.1:7401"): True,
        ("0.0.0.0:7401", "127.0.0.1:7401"): True,
        ("[::]:7401", "127.0.0.1:7401"): True,
        ("0.0.0.0:7401", "[::1]:7401"): False,
        ("0.0.0.0:7401", "127.0.0.1:7501"): False,
        ("127.0.0.1:0", "127.0.0.1:0"): False,  # any two free ports
    }
    assert {pair: same_place(*map(Endpoint.read, pair)) for pair in pairs} == pairs


def test_a_connection_comes_from_the_host_that_a_roster_has() -> None:
    seen = ["10.0.0.1", "::ffff:10.0.0.1", "2001:db8::5", "fe80::5%eth0"]
    assert [source_host(each) for each in seen] == ["10.0.0.1", "10.0.0.1", "2001:db8::5", "fe80::5"]
    assert read_host("[::ffff:10.0.0.1]") == source_host("::ffff:10.0.0.1")


@pytest.mark.slow
def test_nobody_else_takes_an_address_apart() -> None:
    """Only the address module parses URLs and IP addresses: other code would get IPv6 wrong in its own way."""
    parsing = ("urlsplit", "urlparse", "ip_address", "is_loopback")
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for package in ("config", "peer", "cli", "sims")
        for path in (ROOT / package).rglob("*.py")
    }
    taken_apart = {
        path
        for path, text in texts.items()
        if any(name in text for name in parsing)  # the syntax tree shows whether the text is code
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Name, ast.Attribute))
        and (node.id if isinstance(node, ast.Name) else node.attr) in parsing
    }
    # A certificate and an announcement need an address as an object, not as text.
    assert taken_apart == {"config/address.py", "peer/runtime/certificates.py", "peer/runtime/discovery.py"}
