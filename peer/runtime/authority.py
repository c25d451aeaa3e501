"""The folder of a federation's authority: its key, the newest roster, and changes of the roster.

The owner of this folder decides who belongs to the federation. Each change reads the roster anew under a lock, makes
the roster with the next number, and replaces the file atomically, so that two invitations at once cannot make two
rosters with one number. The one before is kept (`roster_history.py`). Copies in peers' folders beside it are replaced,
too; peers elsewhere receive it by `announce.py` and from one another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpeer.peer.runtime.certificates import authority_certificate, key_pem, pem
from fedpeer.peer.runtime.contract_file import contract_file, read_contract, write_contract
from fedpeer.peer.runtime.identity import Identity, examine_identity, read_roster
from fedpeer.peer.runtime.roster_history import history_file, read_history, with_next, write_history
from fedpeer.peer.wire.messages import CONTRACT_BYTES_MAX
from fedpeer.peer.wire.roster import AUTHORITY, Roster, RosterError, newer, to_bytes
from fedpeer.peer.wire.signed_contract import SignedContract, contract_bytes, sign_contract
from fedpeer.runs.disk import replacing, take_lock

#: Seconds to wait for another invitation that is changing the roster; it holds the lock for one signature and one save.
_LOCK_PATIENCE = 5.0

Change = Callable[[Roster, Ed25519PrivateKey], Roster]


class EnrolmentError(Exception):
    """The user's mistake about the federation's members; the message names the problem and the way out."""


@dataclass(frozen=True)
class Authority:
    """An authority that can sign: its folder (federation.yaml, roster.json, authority/), identity and certificate."""

    folder: Path
    identity: Identity
    certificate: x509.Certificate

    @property
    def roster(self) -> Roster:
        """Newest roster, read from the disk."""
        return read_roster(self.folder / "roster.json")


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that nobody else can read at any moment, not even before its mode is set."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def create_authority(folder: Path, federation: str) -> tuple[Ed25519PrivateKey, x509.Certificate]:
    """Make a new authority's key and certificate and write them into `folder`/authority."""
    key = Ed25519PrivateKey.generate()
    certificate = authority_certificate(key, federation)
    keys = folder / "authority"
    keys.mkdir(mode=0o700)
    write_private(keys / "authority.key", key_pem(key))
    (keys / "authority.crt").write_bytes(pem(certificate))
    return key, certificate


def open_authority(folder: Path) -> Authority:
    """Return the authority in this folder, checked. Raises EnrolmentError."""
    keys = folder / "authority"
    if not keys.is_dir():
        raise EnrolmentError(
            f"There is no authority in {folder.resolve()}; run this in the folder that fedpeer init made, "
            "or name it with --in FOLDER."
        )
    roster = read_roster(folder / "roster.json")
    certificate = keys / "authority.crt"
    identity, flaws = examine_identity(AUTHORITY, certificate, keys / "authority.key", certificate, None)
    if identity is None:
        raise EnrolmentError("\n".join(flaw.text for flaw in flaws))
    if identity.key.public_key().public_bytes_raw() != roster.authority:
        raise EnrolmentError(
            f"{keys} is not the authority that signed {folder / 'roster.json'}; use both of one federation."
        )
    return Authority(folder, identity, x509.load_pem_x509_certificate(certificate.read_bytes()))


@contextmanager
def _locked(authority: Authority) -> Iterator[None]:
    """Keep other commands from changing the federation meanwhile.

    Raises EnrolmentError if one is changing it, or if the folder cannot be written.
    """
    try:
        lock = take_lock(authority.folder / "authority" / "lock", patience=_LOCK_PATIENCE)
        if lock is None:
            raise EnrolmentError("Another command is changing this federation; try again when it is done.")
        try:
            yield
        finally:
            os.close(lock)
    except OSError as problem:
        raise EnrolmentError(
            f"{problem.filename or authority.folder.resolve()} cannot be written ({problem.strerror}); make room "
            "there, or make it writable for this user, and run the same line again."
        ) from None


def change_roster(authority: Authority, change: Change) -> Roster:
    """Replace the roster by the changed one, here and in the peers' folders beside it, and return it.

    A copy that cannot be written stays as it is: other peers send the new one. Raises EnrolmentError or RosterError;
    then the roster is the one before.
    """
    with _locked(authority):
        path, before = authority.folder / "roster.json", authority.roster
        roster = change(before, authority.identity.key)
        earlier = with_next(read_history(history_file(path), roster.authority), before)
        _replace(path, roster, earlier)
        for copy in authority.folder.glob("*/roster.json"):
            with suppress(OSError):
                _bring_up(copy, roster, earlier)
    return roster


def sign_next(authority: Authority, text: bytes, starts: int, file: bytes) -> SignedContract:
    """Sign the next contract and write it here and in the peers' folders beside it.

    The federation file that it was made from replaces the one before. A copy that cannot be written stays as it is.

    Raises EnrolmentError or RosterError; then no contract is signed.
    """
    with _locked(authority):
        path, key = contract_file(authority.folder / "roster.json"), authority.identity.key
        public = authority.roster.authority
        before = read_contract(path, public)
        number = 1 if before is None else before.number + 1
        signed = sign_contract(SignedContract(authority=public, number=number, starts=starts, text=text), key)
        if len(contract_bytes(signed)) > CONTRACT_BYTES_MAX:
            raise EnrolmentError(
                f"The contract has more than {CONTRACT_BYTES_MAX:,} bytes; shorten the federation file."
            )
        _write_federation(authority.folder, file)
        write_contract(path, signed)
        for roster in authority.folder.glob("*/roster.json"):
            if _ours(roster, public):
                with suppress(OSError):
                    write_contract(contract_file(roster), signed)  # first: without it the file seems changed by hand
                    _write_federation(roster.parent, file)
    return signed


def _write_federation(folder: Path, file: bytes) -> None:
    with replacing(folder / "federation.yaml") as temporary:
        temporary.write_bytes(file)


def _ours(roster: Path, authority: bytes) -> bool:
    """Return whether this roster file is of this authority's federation."""
    try:
        return read_roster(roster).authority == authority
    except RosterError:
        return False


def _bring_up(path: Path, roster: Roster, earlier: Sequence[Roster]) -> None:
    """Replace a peer's copy of the roster, unless it is another federation's, damaged, or newer."""
    try:
        newer(read_roster(path), roster)
    except RosterError:
        return
    _replace(path, roster, earlier)


def _replace(path: Path, roster: Roster, earlier: Sequence[Roster]) -> None:
    write_history(history_file(path), earlier)
    with replacing(path) as temporary:
        temporary.write_bytes(to_bytes(roster))
