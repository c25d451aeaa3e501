"""A small federation on disk for a test: its authority, and peers whose certificates may be invalid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpeer.peer.runtime.authority import write_private
from fedpeer.peer.runtime.certificates import authority_certificate, key_pem, peer_certificate, pem
from fedpeer.peer.runtime.identity import Identity
from fedpeer.peer.wire.roster import Roster, RosterEntry, sign


@dataclass
class People:
    """An authority that admits the peers that a test asks for. `roster` is always the newest."""

    folder: Path
    key: Ed25519PrivateKey
    certificate: x509.Certificate
    roster: Roster

    @classmethod
    def at(cls, folder: Path, name: str = "wards") -> People:
        folder.mkdir()
        key = Ed25519PrivateKey.generate()
        certificate = authority_certificate(key, name)
        (folder / "ca.crt").write_bytes(pem(certificate))
        public = key.public_key().public_bytes_raw()
        return cls(folder, key, certificate, sign(Roster(federation=name, authority=public, number=1, entries=()), key))

    def identity(
        self,
        peer: str,
        *,
        admitted: bool = True,
        key: Ed25519PrivateKey | None = None,
        made: datetime | None = None,
        expires: datetime | None = None,
        by: tuple[x509.Certificate, Ed25519PrivateKey] | None = None,
        address: str = "",
    ) -> Identity:
        """Make a peer's identity; `admitted` adds it to the roster, `by` is another issuer of its certificate."""
        key = key or Ed25519PrivateKey.generate()
        issuer, signer = by or (self.certificate, self.key)
        certificate = peer_certificate(issuer, signer, peer, key.public_key(), "127.0.0.1", made, expires)
        paths = [self.folder / f"{peer}.{kind}" for kind in ("crt", "key")]
        paths[0].write_bytes(pem(certificate))
        write_private(paths[1], key_pem(key))
        if admitted:
            address = address or f"https://127.0.0.1:{7401 + len(self.roster.entries)}"
            entry = RosterEntry(id=peer, key=key.public_key().public_bytes_raw(), address=address)
            new = replace(self.roster, number=self.roster.number + 1, entries=(*self.roster.entries, entry))
            self.roster = sign(new, self.key)
        return Identity(peer, key, paths[0], paths[1], self.folder / "ca.crt")


def _self_signed(people: People, peer: str) -> Identity:
    key = Ed25519PrivateKey.generate()
    identity = people.identity(peer, key=key)
    identity.certificate_file.write_bytes(pem(authority_certificate(key, "wards")))
    return identity


def _of_another_authority(people: People, peer: str) -> Identity:
    key = Ed25519PrivateKey.generate()
    return people.identity(peer, by=(authority_certificate(key, "other"), key))


def _of_an_authority_of_the_same_name(people: People, peer: str) -> Identity:
    key = Ed25519PrivateKey.generate()
    return people.identity(peer, by=(authority_certificate(key, "wards"), key))


def _expired(people: People, peer: str) -> Identity:
    past = datetime.now(UTC) - timedelta(days=30)
    return people.identity(peer, made=past, expires=past + timedelta(days=20))


def _not_valid_yet(people: People, peer: str) -> Identity:
    return people.identity(peer, made=datetime.now(UTC) + timedelta(days=30))


#: T01: for each invalid certificate its maker, the reason on the rejecting side, and the reason on the rejected side.
#: A reason contains one of the texts that are separated by |.
SPOILT: dict[str, tuple[Callable[[People, str], Identity], str, str]] = {
    "self-signed": (_self_signed, "its certificate is self-signed", "does not know our authority"),
    "other-authority": (_of_another_authority, "signed by another authority", "does not know our authority"),
    "authority-of-that-name": (
        _of_an_authority_of_the_same_name,
        "signature is wrong|another authority",
        "our certificate|our authority",
    ),
    "expired": (_expired, "has expired", "not valid today"),
    "not-valid-yet": (_not_valid_yet, "not valid yet", "rejected our certificate"),
}
