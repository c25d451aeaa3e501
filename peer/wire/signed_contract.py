"""Signed contracts: the next contract of a running federation, numbered and signed by its authority like a roster.

Whichever peer sends it, the signature shows that the authority wrote it, and the highest number wins. It is in force
from a round on: peers that keep step with others switch when they begin that round, or a later one if they receive the
contract too late.

Pure: keys and bytes come in as arguments.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpeer.peer.wire.json_text import parse_json
from fedpeer.peer.wire.roster import RosterError, federation_id, sign_statement, verify_statement
from fedpeer.peer.wire.wire_types import NUMBER_MAX

#: First bytes of a signed contract; no other contract begins so.
BEGINNING = b'{"authority":"'
#: Hexadecimal digits of a public key.
_KEY_LETTERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedContract:
    """One contract of a federation.

    authority   (32 bytes) public key of the authority that signed it
    number      1, 2, ...; 0 is the file with which the federation began
    starts      first round in which it is in force
    text        its canonical text (`contract.text_of`)
    signature   (64 bytes) by the authority; b"": not signed yet
    """

    authority: bytes
    number: int
    starts: int
    text: bytes
    signature: bytes = b""


def sign_contract(contract: SignedContract, key: Ed25519PrivateKey) -> SignedContract:
    """Return the contract with the authority's signature."""
    assert key.public_key().public_bytes_raw() == contract.authority, "signed by another key than it names"
    federation = federation_id(contract.authority)
    return replace(contract, signature=sign_statement(key, "contract", federation, _body(contract)))


def contract_bytes(contract: SignedContract) -> bytes:
    """Return a signed contract's only valid encoding."""
    return _spelled(contract, signature=contract.signature.hex())


def contract_from(text: bytes, authority: bytes) -> SignedContract:
    """Return the contract in these bytes, signed by this authority (32 bytes).

    The authority is named at the beginning and compared before anything else is read.

    Raises RosterError with the code foreign_roster (another authority's), bad_metadata or bad_signature.
    """
    named = text[len(BEGINNING) : len(BEGINNING) + _KEY_LETTERS]
    if not text.startswith(BEGINNING) or named != authority.hex().encode():
        raise RosterError("foreign_roster", f"the contract is by another authority ({named[:16]!r}...)")
    try:
        data = parse_json(text)
        number, starts = data["number"], data["starts"]
        if not (type(number) is type(starts) is int and 1 <= number <= NUMBER_MAX and 0 <= starts <= NUMBER_MAX):
            raise ValueError("its number or its round is out of range")
        contract = SignedContract(
            authority=authority,
            number=number,
            starts=starts,
            text=data["text"].encode(),
            signature=bytes.fromhex(data["signature"]),
        )
        if contract_bytes(contract) != text:
            raise ValueError("it is not encoded as it was signed")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RosterError("bad_metadata", f"the contract cannot be read: {error}") from None
    if not verify_statement("contract", federation_id(authority), _body(contract), authority, contract.signature):
        raise RosterError(
            "bad_signature", "the contract's signature is not its authority's; the contract was changed or forged"
        )
    return contract


def _body(contract: SignedContract) -> bytes:
    return _spelled(contract)


def _spelled(contract: SignedContract, **more: str) -> bytes:
    message = {"number": contract.number, "starts": contract.starts, "text": contract.text.decode(), **more}
    return json.dumps(
        {"authority": contract.authority.hex(), **message}, separators=(",", ":"), sort_keys=True
    ).encode()
