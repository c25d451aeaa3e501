"""The file beside the roster with the newest contract that the authority signed.

It is written when other peers send a later contract, and read again when somebody on this machine (`fedpeer update`, or
a person copying) has put one there.
"""

from __future__ import annotations

from pathlib import Path

from fedpeer.peer.runtime.roster_file import changed_at
from fedpeer.peer.wire.messages import CONTRACT_BYTES_MAX
from fedpeer.peer.wire.roster import RosterError
from fedpeer.peer.wire.signed_contract import SignedContract, contract_bytes, contract_from
from fedpeer.runs.disk import replacing


def contract_file(roster: Path) -> Path:
    """Return the contract's path, beside the roster's file."""
    return roster.with_name("contract.json")


def read_contract(path: Path, authority: bytes) -> SignedContract | None:
    """Return the contract in a file, by this authority (32 bytes); None if there is no such file.

    Raises:
        RosterError: the file holds no contract of this authority; the message names the file.
    """
    try:
        with path.open("rb") as file:
            text = file.read(CONTRACT_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RosterError(
            "bad_roster", f"{path} cannot be read ({error.strerror}); make it readable for this user"
        ) from None
    try:
        return contract_from(text, authority)
    except RosterError as error:
        raise RosterError(error.code, f"{path}: {error}; copy it again from a running peer") from None


def write_contract(path: Path, contract: SignedContract) -> None:
    """Write the contract, replacing whatever file is there."""
    with replacing(path) as temporary:
        temporary.write_bytes(contract_bytes(contract))


class ContractFile:
    """The contract file of a running peer; `contract` is the newest that it knows."""

    def __init__(self, path: Path, contract: SignedContract | None) -> None:
        self.contract = contract
        self._path, self._seen = path, changed_at(path)

    def write(self) -> None:
        """Write the contract into the file.

        Raises:
            OSError: the disk is full, read-only or failing; the file is unchanged.
        """
        assert self.contract is not None, "there is something to keep"
        write_contract(self._path, self.contract)
        self._seen = changed_at(self._path)

    def changed(self, authority: bytes) -> SignedContract | None:
        """Return a later contract if somebody has put one into the file since the last call, else None.

        Raises:
            RosterError: the file holds no contract of this authority.
        """
        at = changed_at(self._path)
        if at == self._seen:
            return None
        self._seen = at
        found = read_contract(self._path, authority)
        known = 0 if self.contract is None else self.contract.number
        return found if found is not None and found.number > known else None
