"""Rosters: each has one spelling and one signature, the highest number wins, and no bit of a roster may differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.config.peer_id import is_id
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.peer.wire.roster import (
    ROSTER_BYTES_MAX,
    Roster,
    RosterEntry,
    RosterError,
    admit,
    expel,
    federation_id,
    from_bytes,
    is_url,
    newer,
    sign,
    sign_statement,
    statement,
    to_bytes,
    verify_statement,
)


def key_of(seed: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(seed.to_bytes(32, "big"))


def public(seed: int) -> bytes:
    return key_of(seed).public_key().public_bytes_raw()


AUTHORITY = key_of(1000)


def entry(number: int) -> RosterEntry:
    return RosterEntry(id=f"peer{number}", key=public(number), address=f"https://10.0.0.{number}:7401")


def roster(peers: int = 3, **changes: Any) -> Roster:
    entries = tuple(entry(number) for number in range(1, peers + 1))
    plain = Roster(federation="wards", authority=public(1000), number=1, entries=entries)
    return sign(replace(plain, **changes), AUTHORITY)


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(RosterError) as caught:
        act()
    assert caught.value.code in REJECTIONS
    return caught.value.code


# ------------------------------------------------------------------------------------------------------------- bytes


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
            st.none() | st.lists(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=9), max_size=3),
            st.booleans(),
        ),
        max_size=6,
        unique_by=lambda each: each[0],
    ),
    st.lists(st.integers(100, 199), unique=True, max_size=3),
)
@settings(max_examples=30)
def test_bytes_and_back(people: list[tuple[str, list[str] | None, bool]], revoked: list[int]) -> None:
    entries = tuple(
        RosterEntry(
            id=name,
            key=public(number),
            address=f"https://host{number}:7401",
            models=None if models is None else tuple(models),
            voter=voter,
        )
        for number, (name, models, voter) in enumerate(people, start=1)
        if name != "authority"
    )
    made = roster(entries=entries, revoked=tuple(map(public, revoked)))
    assert from_bytes(to_bytes(made)) == made


@pytest.mark.slow
def test_any_flipped_bit_is_refused() -> None:
    """This holds for every bit of a roster: signature, keys, names, and the white space between them."""
    text = to_bytes(roster(2, revoked=(public(7),)))
    codes = set()
    for bit in range(8 * len(text)):
        flipped = bytearray(text)
        flipped[bit // 8] ^= 1 << bit % 8
        codes.add(code_of(partial(from_bytes, bytes(flipped))))
    assert codes == {"bad_metadata", "bad_signature"}


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_a_roster_or_refused_by_name(text: bytes) -> None:
    assert code_of(lambda: from_bytes(text)) == "bad_metadata"


@pytest.mark.parametrize(
    "text",
    [b"[" * 100_000, b'{"a":' * 50_000, b"9" * 10_000, b"NaN", b"\xff\xfe{\x00}\x00", bytes(ROSTER_BYTES_MAX + 1)],
    ids=["deep list", "deep mapping", "long number", "nan", "utf-16", "too long"],
)
def test_bombs_are_refused(text: bytes) -> None:
    assert code_of(lambda: from_bytes(text)) == "bad_metadata"


@pytest.mark.parametrize(
    "spelled",
    [
        lambda data: json.dumps(data),
        lambda data: json.dumps(data, indent=1),
        lambda data: json.dumps(data, indent=1) + "\n\n",
        lambda data: json.dumps({**data, "more": 1}, indent=1) + "\n",
        lambda data: json.dumps({**data, "signature": data["signature"].upper()}, indent=1) + "\n",
        lambda data: json.dumps(dict(sorted(data.items())), indent=1) + "\n",
    ],
)
def test_another_spelling_of_the_same_roster_is_refused(spelled: Callable[[Any], str]) -> None:
    made = roster()
    assert code_of(lambda: from_bytes(spelled(json.loads(to_bytes(made))).encode())) == "bad_metadata"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("number",), True),
        (("number",), 1.0),
        (("number",), "1"),
        (("entries", 0, "voter"), 1),
        (("entries", 0, "id"), 5),
        (("entries", 0, "models"), "everyone"),
        (("entries", 0, "key"), "00"),
        (("entries", 0), None),
        (("entries",), {}),
        (("authority",), None),
        (("signature",), ""),
    ],
)
def test_wrong_kinds_are_refused(path: tuple[str | int, ...], value: object) -> None:
    data = json.loads(to_bytes(roster()))
    inside = data
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    text = json.dumps(data, indent=1).encode() + b"\n"
    assert code_of(lambda: from_bytes(text)) in ("bad_metadata", "bad_signature")


def test_a_roster_signed_by_another_key_is_refused() -> None:
    made = roster()
    forged = replace(made, signature=sign_statement(key_of(5), "roster", made.federation_id, b"anything"))
    assert code_of(lambda: from_bytes(to_bytes(forged))) == "bad_signature"


def test_whose_it_is_and_the_signature_come_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of entries of another authority, or with a wrong signature, costs only these two checks."""
    made, other = roster(), to_bytes(sign(replace(roster(), authority=public(2000)), key_of(2000)))
    forged = to_bytes(made)[:-5] + b'f"\n}\n'

    def read(text: bytes) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr("fedpeer.peer.wire.roster.parse_json", read)
    assert code_of(lambda: from_bytes(other, public(1000))) == "foreign_roster"
    assert code_of(lambda: from_bytes(forged, public(1000))) == "bad_signature"
    with pytest.raises(AssertionError, match="it was read"):
        from_bytes(to_bytes(made), public(1000))


@pytest.mark.parametrize(
    "entries",
    [
        (entry(1), replace(entry(2), id="peer1")),
        (entry(1), replace(entry(2), key=public(1))),
        (entry(1), replace(entry(2), address=entry(1).address)),
        (replace(entry(1), id="authority"),),
        (replace(entry(1), id="../up"),),
        (replace(entry(1), address="ftp://x:1"),),
        (replace(entry(1), key=b"short"),),
        (replace(entry(1), models=("",)),),
        (replace(entry(1), models=("line\nbreak",)),),
    ],
)
def test_c06_a_roster_that_contradicts_itself_is_not_made(entries: tuple[RosterEntry, ...]) -> None:
    assert code_of(lambda: roster(entries=entries)) == "bad_metadata"


# ------------------------------------------------------------------------------------------------------ one to the next


def test_the_highest_number_of_the_same_authority_wins() -> None:
    old = roster()
    new = admit(old, entry(4), AUTHORITY)
    assert newer(old, new) is new
    assert code_of(lambda: newer(new, old)) == "repeated"
    assert code_of(lambda: newer(new, new)) == "repeated"
    stranger = key_of(2000)
    other = sign(Roster(federation="wards", authority=public(2000), number=9, entries=()), stranger)
    assert code_of(lambda: newer(old, other)) == "wrong_federation"


def test_two_rosters_of_one_number_are_told_apart() -> None:
    old = roster()
    with pytest.raises(RosterError, match="two were made with the same number"):
        newer(admit(old, entry(4), AUTHORITY), admit(old, entry(5), AUTHORITY))


def test_who_was_put_out_does_not_come_back_with_the_same_key() -> None:
    two = admit(roster(), entry(4), AUTHORITY)
    three = expel(two, "peer4", AUTHORITY)
    assert [each.number for each in (two, three)] == [2, 3]
    assert "peer4" not in three.by_id
    assert entry(4).key in three.revoked
    assert code_of(lambda: admit(three, entry(4), AUTHORITY)) == "bad_metadata"
    back = admit(three, replace(entry(4), key=public(44)), AUTHORITY)
    assert back.by_id["peer4"].key == public(44)
    assert from_bytes(to_bytes(back)) == back


def test_a_roster_that_nobody_would_read_is_not_made() -> None:
    long = replace(entry(4), models=("m" * 60,) * 20_000)
    with pytest.raises(RosterError, match=r"4 peers and 0 revoked keys has .* bytes.*split the federation"):
        admit(roster(), long, AUTHORITY)


def test_an_id_is_given_once_and_only_members_are_put_out() -> None:
    assert code_of(lambda: admit(roster(), replace(entry(9), id="peer1"), AUTHORITY)) == "bad_metadata"
    assert code_of(lambda: expel(roster(), "peer9", AUTHORITY)) == "unknown_peer"


# ---------------------------------------------------------------------------------------------------------- statements


@pytest.mark.slow
@given(st.binary(max_size=64), st.integers(0, 8 * 64 - 1))
@settings(max_examples=50)
def test_e07_a_statement_holds_for_its_author_domain_federation_and_text_only(text: bytes, bit: int) -> None:
    here, there = federation_id(public(1)), federation_id(public(2))
    signature = sign_statement(key_of(3), "claim", here, text)
    flipped = bytearray(signature)
    flipped[bit // 8] ^= 1 << bit % 8
    assert verify_statement("claim", here, text, public(3), signature)
    assert not verify_statement("vote", here, text, public(3), signature)
    assert not verify_statement("claim", there, text, public(3), signature)
    assert not verify_statement("claim", here, text + b"\0", public(3), signature)
    assert not verify_statement("claim", here, text, public(4), signature)
    assert not verify_statement("claim", here, text, public(3), bytes(flipped))
    assert not verify_statement("claim", here, text, public(3), b"")
    assert not verify_statement("claim", here, text, b"no key", signature)


def test_no_two_statements_have_one_text() -> None:
    """The domain ends at a zero byte and the federation has 16 bytes, so nothing can move from one into the other."""
    pieces = [(domain, bytes([f]) * 16, text) for domain in ("a", "ab") for f in (0, 98) for text in (b"", b"b", b"\0")]
    assert len({statement(*each) for each in pieces}) == len(pieces)


def test_the_federation_is_named_after_its_authority() -> None:
    import hashlib

    assert federation_id(public(1)) == hashlib.blake2b(public(1), digest_size=64).digest()[:16]
    assert len(federation_id(public(1))) == 16


# ------------------------------------------------------------------------------------------------- names and addresses


@pytest.mark.parametrize("text", ["https://10.0.0.1:7401", "https://[::1]:1", "http://127.0.0.1:65535", "https://h:1"])
def test_addresses(text: str) -> None:
    assert is_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https://host",
        "https://host:7401/",
        "https://host:7401?x",
        "https://u@host:7401",
        "https://:7401",
        "ftp://host:1",
        "https://host:70000",
        "https://ho st:1",
        "https://hôte:1",
        "https://[::1:1",
        "https://::1:1",
        "https://[fe80::1%eth0]:1",
        "https://h:0",
        "HTTPS://host:1",
        "https://" + "h" * 300 + ":1",
    ],
)
def test_no_addresses(text: str) -> None:
    assert not is_url(text)


def test_ids() -> None:
    assert all(map(is_id, ["peer1", "a", "North-2", "x.y_z", "a" * 63]))
    assert not any(map(is_id, ["", "-a", ".a", "a/b", "a b", "é", "a" * 64, "a\n"]))
