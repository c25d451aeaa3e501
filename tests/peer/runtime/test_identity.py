"""Admission over real TLS on loopback: a valid pair connects, and any other gets the reason on both sides."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from fedpeer.peer.runtime.authority import write_private
from fedpeer.peer.runtime.certificates import authority_certificate, key_pem, pem
from fedpeer.peer.runtime.identity import (
    Identity,
    IdentityError,
    accept_tls,
    client_context,
    joining_context,
    load_identity,
    peer_of,
    put_out,
    read_roster,
    server_context,
)
from fedpeer.peer.runtime.reasons import tls_reason
from fedpeer.peer.wire.roster import Roster, RosterError, expel, to_bytes
from fedpeer.rejection import Rejection
from tests.peer.runtime.people import SPOILT, People

#: Seconds until a handshake on loopback counts as hanging; it takes some milliseconds.
PATIENCE = 10.0


@pytest.fixture
def people(tmp_path: Path) -> People:
    return People.at(tmp_path / "wards")


async def meet(server: ssl.SSLContext, client: ssl.SSLContext | None, say: bytes = b"hello") -> tuple[object, object]:
    """Open a connection; return for each side the other's certificate (DER) once both have sent, or its exception."""
    loop = asyncio.get_running_loop()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)

    async def speak(connection: socket.socket, tls: ssl.SSLContext | None, *, accepted: bool) -> object:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            if accepted:
                assert tls is not None
                transport: asyncio.BaseTransport = await accept_tls(
                    connection, lambda: protocol, tls, PATIENCE, PATIENCE
                )
            else:
                name = "" if tls else None
                transport, _ = await loop.create_connection(
                    lambda: protocol, sock=connection, ssl=tls, server_hostname=name
                )
        except OSError as error:
            return error
        assert isinstance(transport, asyncio.Transport)
        try:
            transport.write(say)
            await reader.readexactly(len(say))
        except (OSError, EOFError) as error:
            return error
        finally:
            transport.abort()
        return transport.get_extra_info("ssl_object").getpeercert(binary_form=True)

    with listening, socket.socket() as asking:
        asking.setblocking(False)
        async with asyncio.timeout(PATIENCE):
            await loop.sock_connect(asking, listening.getsockname())
            accepted, _ = await loop.sock_accept(listening)
            with accepted:
                return await asyncio.gather(
                    speak(accepted, server, accepted=True), speak(asking, client, accepted=False)
                )


def reasons(server: ssl.SSLContext, client: ssl.SSLContext | None, say: bytes = b"hello") -> list[str | None]:
    """Return each side's reason for a failed handshake, the server's first."""
    return [
        tls_reason(each) if isinstance(each, BaseException) else None for each in asyncio.run(meet(server, client, say))
    ]


def test_two_peers_of_a_federation_know_each_other_by_their_keys(people: People) -> None:
    one, two = people.identity("peer1"), people.identity("peer2")
    client = client_context(two, people.roster.by_id["peer1"].key)
    at_server, at_client = asyncio.run(meet(server_context(one), client))
    assert isinstance(at_server, bytes)
    assert isinstance(at_client, bytes)
    assert (peer_of(at_server, people.roster), peer_of(at_client, people.roster)) == ("peer2", "peer1")


def test_nothing_older_than_tls_1_3_is_spoken(people: People) -> None:
    one = people.identity("peer1")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    at_server, at_client = reasons(server_context(one), old)
    assert at_server == "it does not support TLS 1.3"
    assert at_client == "the other side requires another version of TLS; peers use 1.3 only"


def test_another_peer_at_the_address_is_not_spoken_to(people: People) -> None:
    one, two = people.identity("peer1"), people.identity("peer2")
    _, at_client = reasons(server_context(one), client_context(two, people.roster.by_id["peer2"].key))
    assert at_client == "the peer at this address has another key than expected"


@pytest.mark.parametrize(("make", "refusing", "refused"), SPOILT.values(), ids=SPOILT)
def test_t01_a_wrong_certificate_is_refused_with_the_reason(
    people: People, make: Callable[[People, str], Identity], refusing: str, refused: str
) -> None:
    one, wrong = people.identity("peer1"), make(people, "peer2")
    # As a client: the server rejects it, and the client receives the reason.
    at_server, at_client = reasons(server_context(one), client_context(wrong, people.roster.by_id["peer1"].key))
    assert at_server is not None
    assert at_client is not None
    assert any(words in at_server for words in refusing.split("|")), at_server
    assert any(words in at_client for words in refused.split("|")), at_client
    # As a server: the client rejects it and never sends it anything.
    _, at_client = reasons(server_context(wrong), client_context(one, people.roster.by_id["peer2"].key))
    assert at_client is not None
    assert any(words in at_client for words in refusing.split("|")), at_client


def test_t01_no_certificate(people: People) -> None:
    one = people.identity("peer1")
    nobody = joining_context(people.roster.by_id["peer1"].key)
    at_server, at_client = reasons(server_context(one), nobody)
    assert at_server == "it presented no certificate; only peers with one may connect"
    assert at_client == "the other side requires a certificate, and none was presented"


def test_t01_plain_http_on_the_tls_port(people: People) -> None:
    at_server, _ = reasons(server_context(people.identity("peer1")), None, b"POST /v1/message HTTP/1.1\r\n\r\n")
    assert at_server == "it sent plain HTTP to the TLS port; use an https:// address"


def test_t01_noise_on_the_tls_port(people: People) -> None:
    at_server, _ = reasons(server_context(people.identity("peer1")), None, b"\x00" * 64)
    assert at_server


def _der(identity: Identity) -> bytes:

    return x509.load_pem_x509_certificate(identity.certificate_file.read_bytes()).public_bytes(Encoding.DER)


def test_t02_a_key_that_is_not_in_the_roster_is_nobody(people: People) -> None:
    stranger = people.identity("peer9", admitted=False)
    assert peer_of(_der(stranger), people.roster) == Rejection(
        "unknown_peer", f"the key of the certificate is not in roster {people.roster.number}"
    )


def test_t02_the_name_in_a_certificate_decides_nothing(people: People) -> None:
    people.identity("peer1")
    (people.folder / "peer1.key").unlink()
    namesake = people.identity("peer1", admitted=False)
    assert isinstance(peer_of(_der(namesake), people.roster), Rejection)


def test_t02_a_revoked_key_is_said_to_be_revoked(people: People) -> None:
    one = people.identity("peer1")
    later = expel(people.roster, "peer1", people.key)
    found = peer_of(_der(one), later)
    assert found == Rejection("unknown_peer", f"the key of the certificate is revoked in roster {later.number}")
    assert put_out(_der(one), later)
    assert not put_out(_der(one), people.roster)
    assert not put_out(_der(people.identity("peer9", admitted=False)), later)


@pytest.mark.parametrize("der", [None, b"", b"no certificate", bytes(1000)])
def test_t02_what_is_no_certificate_is_nobody(people: People, der: bytes | None) -> None:
    assert isinstance(peer_of(der, people.roster), Rejection)


def test_the_authority_is_known_by_its_own_key(people: People) -> None:

    assert peer_of(people.certificate.public_bytes(Encoding.DER), people.roster) == "authority"


# ------------------------------------------------------------------------------------------------------ C10: the files


def _load(identity: Identity, roster: Roster | None) -> Identity:
    return load_identity(identity.id, identity.certificate_file, identity.key_file, identity.authority_file, roster)


def test_good_files_make_an_identity(people: People) -> None:
    one = people.identity("peer1")
    loaded = _load(one, people.roster)
    assert loaded.key.public_key() == one.key.public_key()
    assert replace(loaded, key=one.key) == one


def _missing(people: People, one: Identity) -> None:
    one.key_file.unlink()


def _readable_by_others(people: People, one: Identity) -> None:
    one.key_file.chmod(0o640)


def _no_pem(people: People, one: Identity) -> None:
    one.key_file.write_bytes(b"my secret key")


def _another_kind(people: People, one: Identity) -> None:
    key = generate_private_key(65537, 2048)
    one.key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _with_a_password(people: People, one: Identity) -> None:
    words = BestAvailableEncryption(b"password")
    one.key_file.write_bytes(one.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, words))


def _endless(people: People, one: Identity) -> None:
    one.key_file.write_bytes(bytes(1 << 20))


def _another_key(people: People, one: Identity) -> None:
    one.key_file.write_bytes(key_pem(Ed25519PrivateKey.generate()))


def _another_authority(people: People, one: Identity) -> None:
    one.authority_file.write_bytes(pem(authority_certificate(Ed25519PrivateKey.generate(), "wards")))


def _revoked(people: People, one: Identity) -> None:
    people.roster = expel(people.roster, "peer1", people.key)


@pytest.mark.parametrize(
    ("spoil", "settings", "words"),
    [
        (_missing, ["key"], "No such file"),
        (_readable_by_others, ["key"], "chmod 600"),
        (_no_pem, ["key"], "Ed25519 private key"),
        (_another_kind, ["key"], "Ed25519 private key"),
        (_with_a_password, ["key"], "without a password"),
        (_endless, ["key"], "Ed25519 private key"),
        (_another_key, ["certificate", "roster"], "another key"),
        (_another_authority, ["certificate", "authority"], "not signed by the federation's authority"),
        (_revoked, ["roster"], "revoked"),
    ],
)
def test_c10_a_wrong_file_is_one_clear_mistake(
    people: People, spoil: Callable[[People, Identity], None], settings: list[str], words: str
) -> None:
    one = people.identity("peer1")
    spoil(people, one)
    with pytest.raises(IdentityError, match=words) as caught:
        _load(one, people.roster)
    assert [flaw.setting for flaw in caught.value.flaws] == settings


def test_c10_all_mistakes_are_told_at_once(people: People) -> None:
    one = people.identity("peer1")
    one.certificate_file.unlink()
    one.key_file.chmod(0o644)
    one.authority_file.write_bytes(b"")
    with pytest.raises(IdentityError) as caught:
        _load(one, people.roster)
    assert [flaw.setting for flaw in caught.value.flaws] == ["key", "certificate", "authority"]


def test_c10_certificates_out_of_date(people: People) -> None:
    for name in ("expired", "not-valid-yet"):
        fresh = People.at(people.folder / name)
        with pytest.raises(IdentityError, match=r"is valid from .* only; set this machine's clock"):
            _load(SPOILT[name][0](fresh, "peer2"), None)


def test_c10_a_peer_whom_the_roster_does_not_know(people: People) -> None:
    with pytest.raises(IdentityError, match="does not list peer1"):
        _load(people.identity("peer1", admitted=False), people.roster)


def test_a_private_file_is_never_readable_by_others_and_never_overwritten(tmp_path: Path) -> None:
    write_private(tmp_path / "key", b"secret")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_private(tmp_path / "key", b"another")


def test_a_roster_file_is_read_whole_or_said_to_be_wrong(people: People) -> None:
    people.identity("peer1")
    path = people.folder / "roster.json"
    with pytest.raises(RosterError, match=r"roster\.json cannot be read \(No such file"):
        read_roster(path)
    path.write_bytes(to_bytes(people.roster))
    assert read_roster(path) == people.roster
    path.write_bytes(to_bytes(people.roster)[:-20])
    with pytest.raises(RosterError, match=r"roster\.json: this is not a roster"):
        read_roster(path)
