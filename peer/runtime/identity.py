"""Identity of peers: key and certificate from files, and TLS 1.3 with certificates on both sides.

A peer is identified by its Ed25519 key, and the roster maps keys to peers. TLS proves that the other side holds the key
of its certificate and that the federation's authority signed that certificate; `peer_of` then looks the key up in the
roster. Names in certificates decide nothing. Both contexts trust the federation's authority only.

A failed handshake never reaches a handler: the accepting or connecting side gets an exception, which `reasons.py` puts
into words.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedpeer.peer.wire.roster import AUTHORITY, ROSTER_BYTES_MAX, Roster, RosterError, from_bytes
from fedpeer.rejection import Rejection

#: Most bytes of a key or certificate file; ours have less than 1 KB.
_PEM_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Flaw:
    """One problem of an identity, with its setting: "key", "certificate", "authority" or "roster"."""

    setting: str
    text: str


class IdentityError(Exception):
    """Problems with a peer's keys or certificates; the message lists all of them, each with the way out."""

    def __init__(self, peer: str, flaws: list[Flaw]) -> None:
        self.flaws = flaws
        super().__init__("\n".join([f"{peer} cannot prove its identity.", *(f"  {flaw.text}" for flaw in flaws)]))


@dataclass(frozen=True)
class Identity:
    """A peer's id and private key, and the files that TLS loads."""

    id: str
    key: Ed25519PrivateKey
    certificate_file: Path
    key_file: Path
    authority_file: Path


# ---------------------------------------------------------------------------------------------------------- from files


def load_identity(peer: str, certificate: Path, key: Path, authority: Path, roster: Roster | None) -> Identity:
    """Return the identity in these files; raise IdentityError with everything that is wrong (C10)."""
    identity, flaws = examine_identity(peer, certificate, key, authority, roster)
    if identity is None:
        raise IdentityError(peer, flaws)
    return identity


def examine_identity(
    peer: str, certificate: Path, key: Path, authority: Path, roster: Roster | None
) -> tuple[Identity | None, list[Flaw]]:
    """Return the identity, or None and everything that is wrong with its files and its entry in the roster."""
    flaws: list[Flaw] = []
    private = _read(flaws, "key", key, _private_key)
    own = _read(flaws, "certificate", certificate, _certificate)
    issuer = _read(flaws, "authority", authority, _certificate)
    if private and own and own.public_key() != private.public_key():
        flaws.append(
            Flaw("certificate", f"{certificate} does not belong to {key}; use the pair that was made together")
        )
    if own and issuer:
        flaws += [Flaw("certificate", f"{certificate} {text}") for text in _flaws_of(own, issuer)]
    if roster and issuer and issuer.public_key() != Ed25519PublicKey.from_public_bytes(roster.authority):
        flaws.append(Flaw("authority", f"{authority} is not the authority that signed the roster"))
    if roster and private:
        flaws += [Flaw("roster", text) for text in _strangeness(peer, private.public_key().public_bytes_raw(), roster)]
    if flaws or private is None:
        return None, flaws
    return Identity(peer, private, certificate, key, authority), []


def read_roster(path: Path) -> Roster:
    """Return the roster in a file. Raises RosterError; its message names the file."""
    try:
        with path.open("rb") as file:
            text = file.read(ROSTER_BYTES_MAX + 1)
    except OSError as error:
        raise RosterError("bad_roster", f"{path} cannot be read ({error.strerror}); fedpeer init makes one") from None
    try:
        return from_bytes(text)
    except RosterError as error:
        raise RosterError(error.code, f"{path}: {error}") from None


_Parsed = TypeVar("_Parsed")


def _read(flaws: list[Flaw], setting: str, path: Path, parse: Callable[[bytes], _Parsed]) -> _Parsed | None:
    """Return what `parse` reads from the file, or None after adding a flaw."""
    try:
        with path.open("rb") as file:
            text = file.read(_PEM_BYTES_MAX + 1)
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except OSError as error:
        flaws.append(Flaw(setting, f"{path} cannot be read ({error.strerror}); fedpeer init or join makes it"))
        return None
    if setting == "key" and mode & 0o077:
        flaws.append(Flaw(setting, f"{path} can be read by others (mode {mode:o}); run  chmod 600 {path}"))
    try:
        return parse(text)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # no PEM, another kind of key, one with a password
        kind = "an Ed25519 private key without a password" if setting == "key" else "an Ed25519 certificate"
        flaws.append(Flaw(setting, f"{path} does not hold {kind}; use the file that fedpeer init or join made"))
        return None


def _private_key(text: bytes) -> Ed25519PrivateKey:
    key = load_pem_private_key(text, password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise TypeError("another kind of key")
    return key


def _certificate(text: bytes) -> x509.Certificate:
    certificate = x509.load_pem_x509_certificate(text)
    if not isinstance(certificate.public_key(), Ed25519PublicKey):
        raise TypeError("another kind of key")
    return certificate


def _flaws_of(certificate: x509.Certificate, authority: x509.Certificate) -> Iterator[str]:
    """Yield why TLS would reject this certificate. Only this check reads a wall clock, for the dates."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        yield "is not signed by the federation's authority; use the one that fedpeer init or join made"
    today = datetime.now(UTC)
    if not certificate.not_valid_before_utc <= today <= certificate.not_valid_after_utc:
        dates = f"{certificate.not_valid_before_utc:%Y-%m-%d} to {certificate.not_valid_after_utc:%Y-%m-%d}"
        yield f"is valid from {dates} only; set this machine's clock, or revoke this peer and invite it again"


def _strangeness(peer: str, key: bytes, roster: Roster) -> Iterator[str]:
    """Yield why the roster does not have this peer with this key."""
    if key in roster.revoked:
        yield f"roster {roster.number} says that this key was revoked; ask for an invitation (fedpeer invite {peer})"
    elif peer not in roster.by_id:
        yield f"roster {roster.number} does not list {peer}; copy the newest roster.json, or ask for an invitation"
    elif roster.by_id[peer].key != key:
        yield f"roster {roster.number} lists another key for {peer}; use the key that was made for {peer}"


# ---------------------------------------------------------------------------------------------------- TLS, both sides


def server_context(identity: Identity) -> ssl.SSLContext:
    """Return the TLS 1.3 context of the peer port: it accepts only certificates signed by the federation's authority.

    The handler asks `peer_of` who the other side is, and `reasons.py` why a handshake failed.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # no resumption: a peer that was revoked since must not return with an old ticket
    return context


def client_context(identity: Identity, expected: bytes) -> ssl.SSLContext:
    """Return the TLS 1.3 context to one peer: the handshake fails unless it holds the key `expected` (32 bytes)."""
    return expecting(shared_client_context(identity), expected)


def shared_client_context(identity: Identity) -> ssl.SSLContext:
    """Return the context that those to all peers share (`expecting`): loading the keys costs as much as a handshake."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, identity)
    context.check_hostname = False  # the key is checked instead, which proves more than a name
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def expecting(shared: ssl.SSLContext, expected: bytes) -> ssl.SSLContext:
    """Return the TLS 1.3 context to one peer, which has to hold the key `expected` (32 bytes).

    Each peer has one of its own, so that no connection to another peer at the same address is used for it.
    """
    context = _ToOne(ssl.PROTOCOL_TLS_CLIENT)
    context.shared, context.expected = shared, expected
    return context


def invitation_context(authority: Identity) -> ssl.SSLContext:
    """Return the authority's TLS 1.3 context for a joining peer, which has no certificate yet but the token's key."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, authority)
    context.verify_mode = ssl.CERT_NONE
    return context


def joining_context(expected: bytes) -> ssl.SSLContext:
    """Return a joining peer's TLS 1.3 context: without the authority's file, only its key is checked (32 bytes)."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, None)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.expected = expected
    return context


def peer_of(der: bytes | None, roster: Roster) -> str | Rejection:
    """Return the peer that presented this certificate (DER) in a successful handshake.

    "authority" is the federation's authority itself, which may bring a new roster or contract only.
    """
    key = None if der is None else _public_key_of(der)
    if key is None:
        return Rejection("unknown_peer", "no certificate with an Ed25519 key")
    if key == roster.authority:
        return AUTHORITY
    if key in roster.by_key:
        return roster.by_key[key].id
    why = "is revoked" if key in roster.revoked else "is not"
    return Rejection("unknown_peer", f"the key of the certificate {why} in roster {roster.number}")


def put_out(der: bytes | None, roster: Roster) -> bool:
    """Return whether the roster lists this certificate's key (DER) as revoked."""
    return der is not None and _public_key_of(der) in roster.revoked


@lru_cache(maxsize=4096)
def _public_key_of(der: bytes) -> bytes | None:
    """Return the Ed25519 public key (32 bytes) in a certificate (DER); None if it has none.

    Cached, because each message needs it.
    """
    try:
        key = x509.load_der_x509_certificate(der).public_key()
    except (ValueError, UnsupportedAlgorithm):
        return None
    return key.public_bytes_raw() if isinstance(key, Ed25519PublicKey) else None


async def accept_tls(
    connection: socket.socket,
    speak: Callable[[], asyncio.Protocol],
    context: ssl.SSLContext,
    patience: float,
    goodbye: float,
) -> asyncio.Transport:
    """Run the TLS handshake of an accepted connection; send the alert if it fails.

    asyncio closes the connection of a failed handshake without sending TLS's alert, and the other side could not tell
    an expired certificate from a broken cable. So a second handle keeps the connection open until the alert has left.

    Args:
        connection: the accepted socket.
        speak: makes the protocol.
        context: of the listener.
        patience: seconds for the handshake.
        goodbye: seconds for the shutdown of TLS.

    Raises OSError (also `ssl.SSLError`, see `reasons.py`); the connection is then closed.
    """
    loop = asyncio.get_running_loop()
    try:
        spare = connection.dup()
    except OSError:  # no file handle is left for it
        connection.close()
        raise
    with spare:
        try:
            transport, _ = await loop.connect_accepted_socket(
                speak,
                connection,
                ssl=context,
                ssl_handshake_timeout=patience,
                ssl_shutdown_timeout=goodbye,
            )
        except ssl.SSLError as error:
            with contextlib.suppress(OSError):  # the other side may have gone
                spare.send(getattr(error, "alert", b""))  # a few bytes into an empty buffer: never blocks
            raise
    assert isinstance(transport, asyncio.Transport), "asyncio gives one for every stream"
    return transport


def _context(protocol: int, identity: Identity | None) -> _Context:
    context = _Context(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    if identity is not None:
        context.load_cert_chain(identity.certificate_file, identity.key_file)
        context.load_verify_locations(identity.authority_file)
    return context


class _Handshake(ssl.SSLObject):
    """A TLS object that attaches its alert to the error and, if `expected` is set, accepts only that key."""

    expected: bytes | None
    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            error.alert = self.outgoing.read()  # type: ignore[attr-defined]
            raise
        if self.expected is not None and _public_key_of(self.getpeercert(binary_form=True) or b"") != self.expected:
            raise ssl.SSLCertVerificationError(1, "the peer at this address has another key than expected")


class _Context(ssl.SSLContext):
    """A TLS context that makes `_Handshake` objects; the other side has to hold the key `expected` (32 bytes)."""

    sslobject_class = _Handshake
    expected: bytes | None = None

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **settings: Any) -> _Handshake:
        made = super().wrap_bio(incoming, outgoing, *args, **settings)
        assert isinstance(made, _Handshake)
        made.expected, made.outgoing = self.expected, outgoing
        return made


class _ToOne(ssl.SSLContext):
    """A context with the keys and settings of another one, whose TLS objects accept only the key `expected`."""

    shared: ssl.SSLContext
    expected: bytes

    def wrap_bio(self, *args: Any, **settings: Any) -> _Handshake:
        made = self.shared.wrap_bio(*args, **settings)
        assert isinstance(made, _Handshake)
        made.expected = self.expected
        return made
