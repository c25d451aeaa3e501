"""A small federation on the disk, made for a test: its authority, and peers whose certificates may be wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpeer.peer.core.roster import Entry, Roster, sign
from fedpeer.peer.shell.authority import write_private
from fedpeer.peer.shell.certificates import authority_certificate, key_pem, peer_certificate, pem
from fedpeer.peer.shell.identity import Identity


@dataclass
class People:
    """An authority that lets in whom a test wants. `roster` is always the newest."""

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
    ) -> Identity:
        """A peer's identity; in the roster if `admitted`, its certificate signed by another pair if `by`."""
        key = key or Ed25519PrivateKey.generate()
        issuer, signer = by or (self.certificate, self.key)
        certificate = peer_certificate(issuer, signer, peer, key.public_key(), "127.0.0.1", made, expires)
        paths = [self.folder / f"{peer}.{kind}" for kind in ("crt", "key")]
        paths[0].write_bytes(pem(certificate))
        write_private(paths[1], key_pem(key))
        if admitted:
            port = 7401 + len(self.roster.entries)
            entry = Entry(id=peer, key=key.public_key().public_bytes_raw(), address=f"https://127.0.0.1:{port}")
            new = replace(self.roster, number=self.roster.number + 1, entries=(*self.roster.entries, entry))
            self.roster = sign(new, self.key)
        return Identity(peer, key, paths[0], paths[1], self.folder / "ca.crt")
