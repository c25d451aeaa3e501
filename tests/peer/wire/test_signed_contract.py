"""A signed contract is its authority's, to the last bit, and has one spelling."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.peer.wire.roster import RosterError
from fedpeer.peer.wire.signed_contract import SignedContract, contract_bytes, contract_from, sign_contract

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
AUTHORITY = KEY.public_key().public_bytes_raw()
SIGNED = sign_contract(SignedContract(authority=AUTHORITY, number=3, starts=40, text='{"name":"ä"}'.encode()), KEY)
BYTES = contract_bytes(SIGNED)


def test_what_is_written_is_what_is_read() -> None:
    assert contract_from(BYTES, AUTHORITY) == SIGNED


@given(st.integers(0, 8 * len(BYTES) - 1))
def test_no_bit_of_it_can_be_another(bit: int) -> None:
    changed = bytearray(BYTES)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RosterError):
        contract_from(bytes(changed), AUTHORITY)


@given(st.binary(max_size=200))
def test_whatever_comes_is_refused_by_name(text: bytes) -> None:
    with pytest.raises(RosterError) as found:
        contract_from(text, AUTHORITY)
    assert found.value.code in ("foreign_roster", "bad_metadata", "bad_signature")


def test_another_authoritys_is_refused_before_anything_of_it_is_read() -> None:
    other = Ed25519PrivateKey.generate()
    public = other.public_key().public_bytes_raw()
    theirs = contract_bytes(sign_contract(replace(SIGNED, authority=public, signature=b""), other))
    with pytest.raises(RosterError) as found:
        contract_from(theirs[:90] + b"[" * 100_000, AUTHORITY)
    assert found.value.code == "foreign_roster"


@pytest.mark.parametrize("field", ["number", "starts", "text"])
def test_all_that_it_says_is_signed(field: str) -> None:
    data = json.loads(BYTES)
    data[field] = "{}" if field == "text" else data[field] + 1
    with pytest.raises(RosterError) as found:
        contract_from(json.dumps(data, separators=(",", ":"), sort_keys=True).encode(), AUTHORITY)
    assert found.value.code == "bad_signature"
